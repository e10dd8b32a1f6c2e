"""tools/recording/compare.py: ratios of turns, what all rounds agree on, and whose commit was measured."""

import json
from pathlib import Path

import pytest
from recording import compare, machine, recipes
from recording.compare import FASTER, SAME, SLOWER, TURNS, UNKNOWN, Figure, figures, shown
from recording.steps import Ended

from vgg16gpu.errors import Error

WHAT = ("fp32", 1, "isolated", "cool")


def figure(*rounds):
    return Figure(WHAT, rounds)


def test_a_ratio_is_free_of_what_drifts():
    """A card that becomes slower by as much in each turn is slower for both."""
    assert figure((1.0, 1.1, 1.2, 1.3)).ratios == pytest.approx([1.0])
    assert figure((1.0, 1.02, 1.02, 1.0)).ratios == pytest.approx([1.02])
    assert figure((2.0, 1.0, 1.0, 2.0)).ratios == pytest.approx([0.5])


def test_noise_is_that_of_one_checkout():
    assert figure((1.0, 2.0, 2.0, 1.0)).noise == 0
    assert figure((1.0, 2.0, 2.0, 1.0), (1.0, 2.0, 2.1, 1.0)).noise == pytest.approx(0.05)
    assert figure((1.1, 2.0, 2.0, 1.0)).noise == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.009), SAME),
        ((0.991, 1.0), SAME),
        ((1.011, 1.2), SLOWER),
        ((0.98, 0.9), FASTER),
        ((1.0, 1.02), UNKNOWN),
        ((0.98, 1.02), UNKNOWN),
        ((1.0, float("nan")), UNKNOWN),
    ],
)
def test_a_verdict_is_that_of_every_round(ratios, verdict):
    assert figure(*((1.0, ratio, ratio, 1.0) for ratio in ratios)).verdict(0.01) == verdict


def test_only_what_all_turns_have_is_compared():
    turns = [{WHAT: 1.0, ("new",): 1.0}, {WHAT: 1.0, ("new",): 1.0}, {WHAT: 1.0, ("new",): 1.0}, {WHAT: 1.0}]
    assert [found.what for found in figures([turns])] == [WHAT]


def bench(commit, seconds):
    records = [
        {"name": name, "precision": "fp16", "batch": 8, "method": "isolated", "regime": "cool", "median_s": value}
        for name, value in (("vgg16gpu", seconds), ("torch", 9.0))
    ]
    environment = {"commit": {"hash": commit, "dirty": False}}
    return {"records": records, "model": {"sha256": "x"}, "environment": environment}


def finished(tmp_path, commits=("old", "new", "new", "old"), rounds=2, failed=(), left_out=(), precisions=None):
    settings = recipes.Settings("cuda", machine.Card("h200", "sm_90"), tmp_path / "records", tmp_path)
    recipe = compare.compare(settings, Path("/other"), rounds, 0.01, precisions=precisions)
    ended = {
        step.name: Ended(step, "exit code 1" if step.name in failed else "done", 1.0)
        for step in recipe.steps
        if step.name not in left_out
    }
    folder = recipe.steps[-1].makes[0].parent
    folder.mkdir(exist_ok=True)
    for number in range(1, rounds + 1):
        for turn, whose in enumerate(TURNS):
            name = f"{number}-{turn + 1}-{whose}"
            seconds = 1.0 if whose == "other" else 1.1
            (folder / f"bench-{name}.json").write_text(json.dumps(bench(commits[turn], seconds)))
            start = {"to_result_s": 0.5, "to_exit_s": 0.6, "parts_s": {"plan": seconds / 10, f"{whose} alone": 0.001}}
            start["environment"] = {"commit": {"hash": commits[turn], "dirty": False}}
            (folder / f"start-{name}.json").write_text(json.dumps({"checkouts": [start]}))
    written = recipe.finish(ended)
    return [json.loads(path.read_text()) for path in written]


def test_a_record_of_two_rounds(tmp_path, capsys):
    (content,) = finished(tmp_path)
    assert (content["rounds"], content["bound"]) == (2, 0.01)
    assert {whose: commit["hash"] for whose, commit in content["checkouts"].items()} == {"this": "new", "other": "old"}
    assert content["environment"]["commit"]["hash"] == "new"
    assert [(each["method"], each["verdict"]) for each in content["figures"]] == [
        ("isolated", SLOWER),
        ("infer, to the answer", SAME),
        ("infer, to the end", SAME),
    ]
    assert content["figures"][0]["ratio"] == pytest.approx(1.1)
    assert content["figures"][0]["turns_s"] == [[1.0, 1.1, 1.1, 1.0]] * 2
    assert content["start_parts_s"] == {
        "other": {"plan": 0.1, "other alone": 0.001},
        "this": {"plan": pytest.approx(0.11), "this alone": 0.001},
    }
    printed = capsys.readouterr().out
    assert "fp16, batch 8, isolated, cool" in printed
    assert " 1.1000  1.1000  1.1000   0.0%  slower" in printed
    assert shown(content["figures"]) in printed


def test_a_round_that_is_not_whole_does_not_count(tmp_path):
    (content,) = finished(tmp_path, failed=["start-2-3-this"])
    assert content["rounds"] == 1
    assert finished(tmp_path, rounds=1, failed=["bench-1-1-other"]) == []


def test_turns_of_an_earlier_call_count(tmp_path):
    """`--only` with the turns for which there was no time: those before them are in the folder."""
    (content,) = finished(tmp_path, left_out=["bench-1-1-other", "start-1-1-other", "bench-1-2-this"])
    assert content["rounds"] == 2
    settings = recipes.Settings("cuda", machine.Card("h200", "sm_90"), tmp_path, tmp_path)
    (record,) = compare.compare(settings, Path("/other"), 3, 0.01).finish({})
    assert json.loads(record.read_text())["rounds"] == 2  # nothing lies there of a third
    for other in ({"batches": "1"}, {"precisions": ["fp16"]}):  # nor of other figures
        assert compare.compare(settings, Path("/other"), 3, 0.01, **other).finish({}) == ()


def test_a_checkout_that_changes_meanwhile_is_refused(tmp_path):
    with pytest.raises(Error, match="commit of the this checkout changed"):
        finished(tmp_path, commits=("old", "new", "newer", "old"))


def test_each_turn_runs_in_its_own_checkout(tmp_path):
    settings = recipes.Settings("cuda", machine.Card("h200", "sm_90"), tmp_path, tmp_path)
    steps = compare.compare(settings, Path("/other"), 1, 0.01).steps
    places = [step.cwd for step in steps if step.name.startswith("bench-")]
    assert places == [Path("/other"), compare.ROOT, compare.ROOT, Path("/other")]
    timed = [step.command[2] for step in steps if step.name.startswith("start-")]
    assert timed == list(map(str, places))


def test_batches_are_as_asked(tmp_path):
    settings = recipes.Settings("cuda", machine.Card("h200", "sm_90"), tmp_path, tmp_path)
    steps = compare.compare(settings, Path("/other"), 1, 0.01, "1,2").steps
    asked = [step.command[step.command.index("--batch") + 1] for step in steps if step.name.startswith("bench-")]
    assert asked == ["1,2"] * 4


def test_precisions_are_as_asked_and_in_the_record_s_name(tmp_path):
    record = tmp_path / "records" / "compare-h200-fp32-bf16.json"
    settings = recipes.Settings("cuda", machine.Card("h200", "sm_90"), record.parent, tmp_path)
    recipe = compare.compare(settings, Path("/other"), 1, 0.01, "32,128", ["fp32", "bf16"])
    benches = [step for step in recipe.steps if step.name.startswith("bench-")]
    asked = [step.command[step.command.index("--precision") + 1] for step in benches]
    assert asked == ["fp32,bf16"] * 4
    assert {step.seconds for step in benches} == {4 * compare.BENCH_SECONDS}  # two precisions, two sizes
    assert finished(tmp_path, rounds=1, precisions=["fp32", "bf16"])
    assert record.is_file()
