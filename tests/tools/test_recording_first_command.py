"""tools/recording/first_command.py: what is recorded of a newcomer's two commands."""

import json
from pathlib import Path

import pytest
from recording import first_command, machine, recipes
from recording.steps import Ended

RECORDED = Path(__file__).resolve().parents[2] / "testbench" / "results" / "first-command-h100.json"
TESTS = {"tests": {"passed": 10, "failed": 2}, "slowest_seconds": {"tests/test_a.py::test_b": 1.5}}
SAID = "FAILED tests/test_a.py::test_c - assert 1 == 2\nERROR tests/test_a.py::test_d\nnothing FAILED here\n"


def test_it_has_what_the_recorded_one_has():
    old = json.loads(RECORDED.read_text())
    seconds = {"clone": 1.06, "demo": 42.74, "environment": 1.0, "all-tests": 254.6}
    logs = {"demo": "\n".join(old["log"]), "all-tests": SAID}
    new = first_command.record(seconds, logs, old["environment"], TESTS)
    assert old.keys() <= new.keys()
    for name in ("seconds_of_make_demo", "seconds_of_pycuda", "seconds_of_make_test", "environment", "log"):
        assert new[name] == old[name], name
    assert new["seconds_from_clone_to_the_end"] == 43.8
    assert new["failed"] == ["tests/test_a.py::test_c", "tests/test_a.py::test_d"]
    assert new["tests"] == TESTS["tests"]


def test_without_the_tests_it_says_nothing_of_them():
    found = first_command.record({"clone": 1.0, "demo": 2.0}, {"demo": "nothing built"}, {}, None)
    assert "tests" not in found
    assert "seconds_of_make_test" not in found
    assert found["seconds_of_pycuda"] is None


@pytest.fixture
def settings(tmp_path):
    return recipes.Settings("cuda", machine.Card("h200", "sm_90"), tmp_path / "records", tmp_path / "work")


def ended(steps, tmp_path, **statuses):
    found = {}
    for step in steps:
        status = statuses.get(step.name.replace("-", "_"), "done")
        log = tmp_path / f"{step.name}.log"
        log.write_text("PyCUDA is built: 12 s\n")
        found[step.name] = Ended(step, status, 0.0 if status == "no time left" else 5.0, log)
    return found


def test_the_record_is_written(settings, tmp_path):
    recipe = first_command.first_command(settings, Path("/packages"))
    first_command.clear(settings)
    home = settings.work / "newcomer"
    (home / "environment.json").write_text('{"cores": 2}')
    (home / "tests.json").write_text(json.dumps(TESTS))
    (path,) = recipe.finish(ended(recipe.steps, tmp_path, all_tests="exit code 2"))
    content = json.loads(path.read_text())
    assert (path.name, content["seconds_of_pycuda"], content["tests"]) == (
        "first-command-h200.json",
        12,
        TESTS["tests"],
    )
    (path,) = recipe.finish(ended(recipe.steps, tmp_path, all_tests="no time left"))
    assert "tests" not in json.loads(path.read_text())
    assert recipe.finish(ended(recipe.steps, tmp_path, demo="exit code 2")) == ()


def test_nothing_was_made_before(settings):
    left = settings.work / "newcomer" / ".cache" / "left"
    left.mkdir(parents=True)
    first_command.clear(settings)
    assert list((settings.work / "newcomer").iterdir()) == []


def test_a_newcomer_has_no_environment_of_ours(settings):
    steps = first_command.first_command(settings, Path("/packages")).steps
    for step in steps[1:]:
        assert step.environ["PYTHONPATH"] is None
        assert step.environ["HOME"] == str(settings.work / "newcomer")
        assert (step.environ["PIP_NO_INDEX"], step.environ["PIP_FIND_LINKS"]) == ("1", "/packages")
