"""The promises under stress: what it measures on a small net, and that it sees each kind of broken promise."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.stress import bits as stress_bits
from tests.stress import photos as stress_photos
from tests.stress import promises
from tests.stress import scores as stress_scores
from tests.support import reference
from tests.support.onnx_models import torch_vgg
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import KernelError
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.engine import Engine

HOPPER = DeviceFacts("cuda", "an H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
SIDE = 16
CLASSES = 5


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
    """Scores are channel means times `gain`; an image with a value above 1e5 is run again.

    Faults that cost one bit: the scores of all depend on the largest value (`mixes`), or on how many there are
    (`counts`).
    """

    def __init__(self, gain=1.0, mixes=False, counts=False):
        self.gain, self.mixes, self.counts, self.second_passes = gain, mixes, counts, 0

    def run(self, batch, x):
        assert len(x) <= batch == stress_scores.BATCH
        sizes = np.abs(x).max(axis=(1, 2, 3))
        self.second_passes += int((sizes > 1e5).sum())
        y = exact(x).astype(np.float32) * np.float32(self.gain)
        if (self.mixes and sizes.max() > 1e5) or (self.counts and len(x) == 1):
            y = np.nextafter(y, np.float32(np.inf))
        return SimpleNamespace(outputs=(y,))


def exact(x):
    return x.astype(np.float64).mean(axis=(2, 3))


def stressed(plan, name, library=exact):
    *ordinary, other = np.random.default_rng(0).standard_normal((stress_scores.BATCH + 1, 3, 8, 8), np.float32)
    image = stress_scores.strange_images(other)[name]
    return stress_scores.stress(plan, name, np.stack(ordinary), image, exact, library)


def test_images_that_change_others_are_seen():
    sound = stressed(Plan(), "one value of 1e6")
    assert sound.passed
    assert (sound.flagged, sound.second_passes) == (True, 1)
    mixed, counted = stressed(Plan(mixes=True), "noise of 1e6"), stressed(Plan(counts=True), "ordinary")
    assert (mixed.others_keep_bits, mixed.alone_keeps_bits, mixed.passed) == (False, True, False)
    assert (counted.others_keep_bits, counted.alone_keeps_bits, counted.passed) == (True, False, False)


def test_errors_are_judged_by_the_library_and_a_floor():
    assert stressed(Plan(1 + 0.9e-5), "ordinary").passed
    assert not stressed(Plan(1 + 1.2e-5), "ordinary").passed
    assert stressed(Plan(1 + 1.2e-5), "ordinary", lambda x: exact(x) * (1 + 1e-5)).passed
    assert not stressed(Plan(1 + 1.6e-5), "ordinary", lambda x: exact(x) * (1 + 1e-5)).passed
    assert not stressed(Plan(np.nan), "ordinary").passed


def test_zeros_are_judged_absolutely():
    x = np.ones((2, 1, 1, 1), np.float32)
    x[1] = 0
    expected, y = np.array([[10.0, 1.0], [1e-3, 0.0]]), np.array([[10.0, 2.0], [3e-3, 0.0]])
    assert stress_scores.errors(x, y, expected) == pytest.approx((0.1, 2e-3))


def test_a_real_engine_without_scales(model):
    with Engine(model, device="cpu", batch=stress_scores.BATCH) as engine:
        rows = list(stress_scores.measure(engine, *references(engine.graph)))
    assert [row.name for row in rows] == list(stress_scores.strange_images(np.zeros((3, 4, 4), np.float32)))
    assert all(row.passed for row in rows)
    assert all(0 < max(row.errors) <= 1e-5 for row in rows)


def references(graph):
    def judge(x):
        return reference.evaluate(graph, x)[graph.outputs[0]]

    return judge, lambda x: judge(x).astype(np.float32)


# ---- torch


def test_torch_computes_the_network(model):
    torch = pytest.importorskip("torch")
    from testbench.measure.torch_layers import apply, network

    graph = Model(model).graph()
    x = np.random.default_rng(0).standard_normal((3, 3, SIDE, SIDE), np.float32)
    values = reference.evaluate(graph, x)
    expected = values[graph.outputs[0]]
    found = network(graph, "cpu", torch.float64)(x)
    assert np.abs(found - expected).max() <= 1e-13 * np.abs(expected).max()
    rounded = network(graph, "cpu", torch.float32)(x)
    assert rounded.dtype == np.float64
    assert 1e-9 < np.abs(rounded - expected).max() / np.abs(expected).max() < 1e-5
    for op in graph.ops:
        y = apply(op, torch.from_numpy(values[op.x].copy()), torch.float64).numpy()
        assert np.abs(y - values[op.y]).max() <= 1e-13 * np.abs(values[op.y]).max()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


# ---- Photographs


class Flagging:
    """An engine that runs images again that have much red."""

    program = SimpleNamespace(input=SimpleNamespace(shape=(32, 3, SIDE, SIDE)))
    second_passes = 0

    def run(self, x):
        self.second_passes += int((x[..., 0].max(axis=(1, 2)) > 170).sum())


def test_flagged_crops_are_counted_by_photograph(photographs):
    found = stress_photos.measure(Flagging(), photographs, 100)
    assert found.flagged["high.png"] == 0  # 160 wide
    assert 5 < found.flagged["wide.png"] < 45
    assert found.rate == found.flagged["wide.png"] / 100
    assert not found.passed
    assert found.cells()[-1] == f"{found.flagged['wide.png']} (wide.png)"
    assert stress_photos.Photographs(1000, {"a": 10}).passed
    assert not stress_photos.Photographs(1000, {"a": 10, "b": 1}).passed


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


def test_a_part_that_cannot_be_measured_keeps_its_rows_and_the_other_parts(model, tmp_path, monkeypatch):
    def breaks(*_):
        yield stress_bits.Bits("fp32", 1, 1, 0, 1, 0, False, 0, "0")
        raise KernelError("the GPU is gone")

    monkeypatch.setattr(stress_bits, "measure", breaks)
    code, record = run_tool(model, tmp_path, "--parts", "bits", "photographs")
    assert code == 1
    assert record["failures"] == ["bits: KernelError: the GPU is gone"]
    assert len(record["bits"]["rows"]) == 1
    assert record["photographs"]["rows"] == []
