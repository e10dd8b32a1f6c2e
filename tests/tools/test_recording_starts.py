"""tools/recording/starts.py and pairs.py: who starts when, and what many pairs of starts say."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from recording import machine, pairs, recipes, starts
from recording.starts import Starter, in_turns
from recording.steps import Ended

from vgg16gpu.bench.measure.cold_start import Start


def test_they_take_turns_and_the_first_of_each_does_not_count(monkeypatch):
    order = []
    monkeypatch.setattr(starts, "one_start", lambda command, _: order.append(command[0]) or Start(len(order), 0.0, ""))
    found = in_turns([Starter(Path(), [name], {}) for name in "ab"], 3)
    assert "".join(order) == "ba" + "ab" + "ba" + "ab"
    assert [[start.result_s for start in each] for each in found] == [[3, 6, 7], [4, 5, 8]]


def test_each_checkout_keeps_its_own_byte_code_and_comes_first(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(starts, "one_start", lambda _, environ: seen.append(environ) or Start(1.0, 2.0, ""))
    monkeypatch.setenv("PYTHONPATH", "/others")
    (tmp_path / "picture.png").touch()
    words = ["--model", "digits", "--picture", str(tmp_path / "picture.png"), "--device", "cpu", "--runs", "2"]
    starts.main(["/one", "/two", *words, "--output", str(tmp_path / "found.json")])
    assert {environ["PYTHONPATH"] for environ in seen} == {f"/one{os.pathsep}/others", f"/two{os.pathsep}/others"}
    assert len({environ["PYTHONPYCACHEPREFIX"] for environ in seen}) == 2
    found = json.loads((tmp_path / "found.json").read_bytes())["checkouts"]
    assert [each["results_s"] for each in found] == [[1.0, 1.0]] * 2
    assert [each["to_exit_s"] for each in found] == [2.0, 2.0]


def sample(seconds):
    return {"results_s": list(seconds), "exits_s": list(seconds)}


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.1, "slower"), (0.9, "faster"), (1.0, "cannot tell"), (1.005, "cannot tell")]
)
def test_what_pairs_say_is_free_of_drift(factor, verdict):
    """The machine becomes half as fast while they run, and each start differs by a twentieth."""
    random = np.random.default_rng(0)
    drift = np.linspace(1, 2, 60)
    noise = random.normal(1, 0.05, (2, 60))
    for told in pairs.compared(sample(factor * drift * noise[0]), sample(drift * noise[1])):
        assert told["verdict"] == verdict
        assert told["low"] < factor < told["high"]
        assert told["pairs"] == 60


def test_a_record_of_starts(tmp_path, capsys):
    settings = recipes.Settings("cuda", machine.Card("h200", "sm_90"), tmp_path / "records", tmp_path)
    recipe = pairs.starts(settings, Path("/other"), 5)
    step = recipe.steps[-1]
    assert step.command[2:4] == (str(pairs.ROOT), "/other")
    assert list(recipe.finish({step.name: Ended(step, "exit code 1", 1.0)})) == []
    content = [
        {**sample([0.5] * 5), "parts_s": {"plan": 0.1, name: 0.02}, "environment": {"commit": {"hash": name}}}
        for name in ("new", "old")
    ]
    (tmp_path / "starts.json").write_text(json.dumps({"checkouts": content}))
    (path,) = recipe.finish({step.name: Ended(step, "done", 1.0)})
    record = json.loads(path.read_bytes())
    assert path.name == "starts-h200.json"
    assert record["checkouts"] == {"this": {"hash": "new"}, "other": {"hash": "old"}}
    assert [each["verdict"] for each in record["times"]] == ["cannot tell"] * 2
    assert "plan                                       100.0   100.0" in capsys.readouterr().out
