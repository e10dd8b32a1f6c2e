"""The promises under stress: the tool on a small net, and faults of bits that it sees."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.stress import bits as stress_bits
from tests.stress import photos as stress_photos
from tests.stress import promises
from tests.stress import scores as stress_scores
from tests.support.onnx_models import torch_vgg

SIDE = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return torch_vgg((16, "M", 16, "M"), SIDE, hidden=16).save(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Red grows from left to right, green from top to bottom."""
    folder = tmp_path_factory.mktemp("photographs")
    for name, (width, height) in {"wide.png": (240, 160), "high.png": (160, 240)}.items():
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
        Image.fromarray(pixels).save(folder / name)
    return folder


# ---- Scores


class Plan:
    """Scores are channel means; an image with a value above 1e5 is run again.

    Faults that cost one bit: the scores of all depend on the largest value (`mixes`), or on how many there are
    (`counts`).
    """

    def __init__(self, mixes=False, counts=False):
        self.mixes, self.counts, self.second_passes = mixes, counts, 0

    def run(self, batch, x):
        assert len(x) <= batch == stress_scores.BATCH
        sizes = np.abs(x).max(axis=(1, 2, 3))
        self.second_passes += int((sizes > 1e5).sum())
        y = exact(x).astype(np.float32)
        if (self.mixes and sizes.max() > 1e5) or (self.counts and len(x) == 1):
            y = np.nextafter(y, np.float32(np.inf))
        return SimpleNamespace(outputs=(y,))


def exact(x):
    return x.astype(np.float64).mean(axis=(2, 3))


def stressed(plan, name):
    *ordinary, other = np.random.default_rng(0).standard_normal((stress_scores.BATCH + 1, 3, 8, 8), np.float32)
    image = stress_scores.strange_images(other)[name]
    return stress_scores.stress(plan, name, np.stack(ordinary), image, exact, exact)


def test_images_that_change_others_are_seen():
    sound = stressed(Plan(), "one value of 1e6")
    assert sound.passed
    assert (sound.flagged, sound.second_passes) == (True, 1)
    mixed, counted = stressed(Plan(mixes=True), "noise of 1e6"), stressed(Plan(counts=True), "ordinary")
    assert (mixed.others_keep_bits, mixed.alone_keeps_bits, mixed.passed) == (False, True, False)
    assert (counted.others_keep_bits, counted.alone_keeps_bits, counted.passed) == (True, False, False)


# ---- Bits


class Drifting:
    """An engine with one fault: "run" number 5, "place" 2 of a batch, or the second "engine" gives other bits."""

    fault, built = "", 0

    def __init__(self, model, *, device, precision, batch):  # noqa: ARG002
        type(self).built += 1
        self.program = SimpleNamespace(input=SimpleNamespace(shape=(max(batch), 3, SIDE, SIDE)))
        self.runs, self.second_passes = 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, x):
        self.runs += 1
        y = x.mean(axis=(1, 2)).astype(np.float32)
        faulty = {"run": self.runs == 5, "place": len(x) > 2, "engine": self.built == 2}
        if faulty.get(self.fault):
            y[-1 if self.fault != "place" else 2] += 1
        return y


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("", (0, 0, 0, 0)), ("run", (1, 0, 0, 0)), ("place", (0, 14, 0, 0)), ("engine", (0, 0, 1, 1))],
)
def test_other_bits_are_seen(monkeypatch, fault, expected):
    monkeypatch.setattr(stress_bits, "Engine", Drifting)
    monkeypatch.setattr(Drifting, "fault", fault)
    monkeypatch.setattr(Drifting, "built", 0)
    one, eight = stress_bits.measure("model", "cpu", "fp16", 10)
    new = one.new_engine_differs, eight.new_engine_differs
    assert (one.differing_runs + eight.differing_runs, eight.differing_positions, *map(int, new)) == expected
    assert (one.passed and eight.passed) == (not fault)


# ---- The tool


def run_tool(model, tmp_path, *arguments):
    output = tmp_path / "stress.json"
    code = promises.main([str(model), "--device", "cpu", "--runs", "2", "--output", str(output), *arguments])
    return code, json.loads(output.read_text())


def test_record_and_tables(model, photographs, tmp_path, capsys):
    options = ("--parts", "photographs", "bits", "memory", "--images", str(photographs), "--crops", "4")
    code, record = run_tool(model, tmp_path, *options)
    assert code == 0
    assert record["passed"]
    assert record["photographs"]["rows"] == [{"crops": 4, "flagged": {"high.png": 0, "wide.png": 0}, "passed": True}]
    precisions = [row["precision"] for row in record["bits"]["rows"]]
    assert precisions == [name for name in ("fp32", "fp16", "bf16") for _ in range(2)]  # the model has no int8 scales
    assert record["memory"]["rows"] == []
    assert record["environment"]["device"]["kind"] == "cpu"
    printed = capsys.readouterr().out
    assert printed.count("PASS") == 7
    assert "FAIL" not in printed


def test_a_broken_promise(model, photographs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stress_photos, "LARGEST_RATE", -1.0)
    options = ("--parts", "photographs", "memory", "--images", str(photographs), "--crops", "4")
    code, record = run_tool(model, tmp_path, *options)
    assert code == 1
    assert not record["passed"]
    assert [failure.partition(":")[0] for failure in record["failures"]] == ["photographs"]
    assert record["memory"]["failures"] == []
    assert "FAIL: photographs: 2 4 0 0.00%" in capsys.readouterr().out
