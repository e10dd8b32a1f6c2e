"""cli/lab/learn.py: the commands of a student, their files, words and exit codes."""

import json

import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu_lab.cli import learn
from vgg16gpu_lab.exercises.exercise import NAMES, Finding, exercise
from vgg16gpu_lab.exercises.judge import Verdict


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(cli, ["lab", "exercise", *map(str, args)])

    return invoke


def test_list(lab):
    assert [found["name"] for found in json.loads(lab("list", "--json").stdout)["exercises"]] == list(NAMES)
    shown = lab("list").stdout
    assert all(f"{number}. {name}" in shown for number, name in enumerate(NAMES, start=1))


def test_start_check_solve(lab, tmp_path, monkeypatch):
    assert "exercise check exercises/coalesce.cu" in lab("start", "coalesce").stdout
    path = tmp_path / "exercises" / "coalesce.cu"
    assert path.read_text() == exercise("coalesce").start.read_text()
    checked = lab("check", "exercises/coalesce.cu", "--device", "cpu")
    assert checked.exit_code == 1, checked.output
    assert "wrong  sectors a read of x: 31.6; wanted: at most 5" in checked.stdout
    assert "threadIdx.x" in checked.stdout
    right = Verdict("coalesce", "CPU", (Finding("sums", True, "right", "right"),))  # test_exercises.py judges solutions
    monkeypatch.setattr(learn, "check", lambda *_: right)
    solved = lab("check", "coalesce", "--device", "cpu", "--json")
    assert solved.exit_code == 0, solved.output
    found = json.loads(solved.stdout)
    assert (found["passed"], found["exercise"], found["problem"]) == (True, "coalesce", "")
    assert all(finding["ok"] for finding in found["findings"])


def test_start_leaves_a_file_alone(lab, tmp_path):
    assert (
        json.loads(lab("start", "register_tile", "--dir", "mine", "--json").stdout)["file"] == "mine/register-tile.cu"
    )
    path = tmp_path / "mine" / "register-tile.cu"
    path.write_text("mine")
    again = lab("start", "register-tile", "--dir", "mine")
    assert again.exit_code == 2
    assert "is there already" in again.stderr
    assert path.read_text() == "mine"


def test_hints_and_solutions(lab):
    for name in NAMES:
        count = len(exercise(name).hints)
        texts = [json.loads(lab("hint", name, number, "--json").stdout) for number in range(1, count + 1)]
        assert [text["hint"] for text in texts] == list(exercise(name).hints)
        assert lab("hint", name, count + 1).exit_code == 2
        assert f"solution {name}" in lab("hint", name, count).stdout
        solution = json.loads(lab("solution", name, "--json").stdout)
        assert solution["code"] == exercise(name).solution.read_text()
        assert solution["explanation"]
        assert "extern" in lab("solution", name).stdout


def test_wrong_usage(lab, tmp_path):
    assert "there are: coalesce, barrier" in lab("start", "nothing").stderr
    assert "cannot be read" in lab("check", "nothing.cu").stderr
    assert "'/dev/zero' has more than 1,048,576 bytes" in lab("check", "/dev/zero").stderr
    (tmp_path / "mine.cu").write_text("// something else\n")
    refused = lab("check", "mine.cu")
    assert refused.exit_code == 2
    assert "is of no exercise" in refused.stderr
