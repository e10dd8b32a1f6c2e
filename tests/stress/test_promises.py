"""The promises under stress: what it measures on a small net, and that it sees each kind of broken promise."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.stress import bits as stress_bits
from tests.stress import memory as stress_memory
from tests.stress import photos as stress_photos
from tests.stress import promises
from tests.stress import scores as stress_scores
from tests.support import reference
from tests.support.onnx_models import torch_vgg
from vgg16gpu.compiler.compile import EngineOptions, compile_model
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.quantization.scale_file import write_scales
from vgg16gpu.compiler.quantization.scheme import Scale, quantised_inputs
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.program.device_properties import DeviceFacts
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


@pytest.mark.parametrize(("name", "flagged"), [("ordinary", False), ("zeros", False), ("one value of 1e6", True)])
def test_a_sound_plan(name, flagged):
    row = stressed(Plan(), name)
    assert (row.flagged, row.second_passes) == (flagged, int(flagged))
    assert row.passed
    assert row.others_keep_bits
    assert row.alone_keeps_bits
    assert 0 < max(row.errors) < 1e-6
    assert max(row.library_errors) == 0


def test_neighbours_that_change():
    row = stressed(Plan(mixes=True), "noise of 1e6")
    assert not row.others_keep_bits
    assert row.alone_keeps_bits
    assert not row.passed
    assert "NO" in row.cells()


def test_an_image_that_is_another_when_alone():
    row = stressed(Plan(counts=True), "ordinary")
    assert row.others_keep_bits
    assert not row.alone_keeps_bits
    assert not row.passed


def test_errors_are_judged_by_the_library_and_a_floor():
    assert stressed(Plan(1 + 0.9e-5), "ordinary").passed
    assert not stressed(Plan(1 + 1.2e-5), "ordinary").passed
    assert stressed(Plan(1 + 1.2e-5), "ordinary", lambda x: exact(x) * (1 + 1e-5)).passed
    assert not stressed(Plan(1 + 1.6e-5), "ordinary", lambda x: exact(x) * (1 + 1e-5)).passed
    assert not stressed(Plan(np.nan), "ordinary").passed


def test_an_error_of_a_neighbour_counts():
    row = stressed(Plan(), "ordinary", lambda x: exact(x) * 1.01)
    worse = [1e-3 if i == 1 else 1e-7 for i in range(8)]
    assert not stress_scores.Stressed("", 0, False, tuple(worse), (0.0,) * 8, True, True).passed
    assert row.cells()[3:5] == (f"{row.errors[3]:.2e}", f"{row.library_errors[3]:.2e}")


def test_zeros_are_judged_absolutely():
    x = np.ones((2, 1, 1, 1), np.float32)
    x[1] = 0
    expected, y = np.array([[10.0, 1.0], [1e-3, 0.0]]), np.array([[10.0, 2.0], [3e-3, 0.0]])
    assert stress_scores.errors(x, y, expected) == pytest.approx((0.1, 2e-3))


def test_strange_images_are_strange():
    image = np.ones((3, 4, 6), np.float32)
    images = stress_scores.strange_images(image)
    assert images["channels times 1 to 2^-20"][:, 0, 0].tolist() == [1, 2.0**-10, 2.0**-20]
    assert images["channels times 2^10 to 2^-10"][:, 0, 0].tolist() == [2.0**10, 1, 2.0**-10]
    assert np.count_nonzero(images["one value of 1e6"] == 1e6) == 1
    assert 1e6 < np.abs(images["noise of 1e6"]).max() < 1e7
    assert not images["zeros"].any()
    assert (image == 1).all()


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


class Wrong(Plan):
    """Stands for a plan with its own scales."""

    made: tuple = ()

    def __init__(self, plan, device):
        super().__init__()
        self.samples, self.device, self.closed = plan.calibration.samples, device, False
        type(self).made += (self,)

    def close(self):
        self.closed = True


def test_wrong_scales_come_from_wrong_samples(model, monkeypatch):
    plan = compile_model(Model(model), EngineOptions(batch=stress_scores.BATCH), HOPPER)
    right = plan.calibration.samples
    engine = SimpleNamespace(plan=plan, program=plan.programs[-1], executor=Plan(), device="its own")
    monkeypatch.setattr(stress_scores, "Executor", Wrong)
    monkeypatch.setattr(Wrong, "made", ())
    rows = list(stress_scores.measure(engine, exact, exact))
    low, high = Wrong.made
    assert [row.name for row in rows[-2:]] == [f"ordinary, scales from samples times 2^{p}" for p in (-12, 12)]
    assert np.array_equal(low.samples, right * 2.0**-12)
    assert np.array_equal(high.samples, right * 2.0**12)
    assert all(wrong.closed and wrong.device == "its own" for wrong in Wrong.made)
    assert plan.calibration.samples is right


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


def test_crops_are_of_all_sizes_places_and_both_ways(photographs):
    found = np.stack(list(stress_photos.crops(photographs / "wide.png", 200, (32, 48), (1, 0))))
    assert found.shape == (200, 32, 48, 3)
    assert found.dtype == np.uint8
    red, green = (np.ptp(found[..., channel].astype(int), axis=(1, 2)) for channel in (0, 1))
    assert 35 <= green.min() < 50  # a quarter of the shorter side, 160, less what resizing averages
    assert 150 < green.max() <= 159
    assert np.abs(red - green).max() <= 6  # squares
    mirrored = found[:, 0, 0, 0] > found[:, 0, -1, 0]
    assert 60 < mirrored.sum() < 140
    assert found[..., 0].max() > 230
    assert (found[:, -1, :, 1] > found[:, 0, :, 1]).all()


def test_crops_are_the_same_every_time(photographs):
    first, second, other = (
        np.stack(list(stress_photos.crops(photographs / "wide.png", 5, (8, 8), seed)))
        for seed in ((1, 0), (1, 0), (1, 1))
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_no_crop_of_small_photographs_flags_on_the_cpu(model, photographs):
    with Engine(model, device="cpu", batch=4) as engine:
        found = stress_photos.measure(engine, photographs, 9)
    assert found == stress_photos.Photographs(10, {"high.png": 0, "wide.png": 0})
    assert found.passed


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


def test_what_is_no_photograph(tmp_path):
    with pytest.raises(InputError, match="has no images"):
        stress_photos.measure(Flagging(), tmp_path, 1)
    (tmp_path / "broken.jpg").write_bytes(b"none")
    with pytest.raises(InputError, match=r"broken\.jpg' is not a readable image"):
        stress_photos.measure(Flagging(), tmp_path, 1)


# ---- Bits


def test_bits_of_a_real_engine(model):
    one, eight = stress_bits.measure(model, "cpu", "fp32", 3)
    assert (one.batch, eight.batch) == stress_bits.BATCHES
    assert one.passed
    assert eight.passed
    assert (one.positions, eight.positions, eight.runs) == (1, 64, 3)
    assert one.digest != eight.digest


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


# ---- Memory


class Card:
    """A card of 8 GB, of which 100 MB are always taken."""

    def __init__(self):
        self.taken = 10**8

    @property
    def free(self):
        return 8 * 10**9 - self.taken

    def open(self, name):
        return Opened(self), name


class Opened:
    def __init__(self, card):
        self.card, self.mine = card, 0
        self.facts = SimpleNamespace(memory_free=card.free)

    def allocate(self, nbytes):
        self.mine += nbytes
        self.card.taken += nbytes

    def close(self):
        self.card.taken -= self.mine


class Heavy:
    """An engine of 900 MB; each keeps `leak` bytes, the first of all 5 MB for good."""

    card, leak, scores, problem = None, 0, 1.0, None
    started = False

    def __init__(self, model, *, device, precision, batch):  # noqa: ARG002
        if not self.started:
            type(self).started, self.card.taken = True, self.card.taken + 5_000_000
        if self.problem:
            raise self.problem
        if self.card.free < 900_000_000:
            self.card.taken += self.leak
            raise DeviceError(f"needs 900 MB and {self.card.free / 1e6:.0f} MB are free")
        self.program = SimpleNamespace(input=SimpleNamespace(shape=(batch, 3, SIDE, SIDE)))
        self.card.taken += 900_000_000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.card.taken -= 900_000_000 - self.leak

    def run(self, x):
        return np.full((len(x), CLASSES), self.scores)


def attempts(monkeypatch, **faults):
    card = Card()
    monkeypatch.setattr(stress_memory, "open_device", card.open)
    monkeypatch.setattr(stress_memory, "Engine", Heavy)
    for name, value in {"card": card, "started": False, **faults}.items():
        monkeypatch.setattr(Heavy, name, value)
    found = list(stress_memory.measure("model", "cuda"))
    assert [(row.precision, row.batch, row.expected) for row in found] == [
        ("fp32", 8, "ran"),
        ("fp16", 32, "ran"),
        ("fp32", 8, "refused"),
    ]
    return found, card


def test_a_card_that_is_nearly_full(monkeypatch):
    found, card = attempts(monkeypatch)
    assert all(row.passed for row in found)
    assert [row.free_nbytes for row in found] == [995_000_000, 995_000_000, 300_000_000]
    assert [row.taken_nbytes for row in found] == [900_000_000, 900_000_000, 0]
    assert [row.lost_nbytes for row in found] == [0, 0, 0]
    assert found[2].message == "needs 900 MB and 300 MB are free"
    assert card.taken == 105_000_000  # the card is as it was


def test_losses_are_seen(monkeypatch):
    found, _ = attempts(monkeypatch, leak=3_000_000)
    assert [row.lost_nbytes for row in found] == [3_000_000] * 3
    assert not any(row.passed for row in found)


def test_what_does_not_run_as_promised(monkeypatch):
    found, _ = attempts(monkeypatch, scores=np.nan)
    assert [row.outcome for row in found] == ["failed", "failed", "refused"]
    found, _ = attempts(monkeypatch, problem=KernelError("broken"))
    assert [row.outcome for row in found] == ["failed"] * 3
    assert found[0].message == "KernelError: broken"
    found, _ = attempts(monkeypatch, problem=DeviceError("too small"))
    assert [row.passed for row in found] == [False, False, True]


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


def test_int8_where_there_are_scales(model, tmp_path):
    graph = Model(model).graph()
    scales = {name: Scale(0.1, signed) for name, signed in quantised_inputs(graph).items()}
    path = write_scales(model, graph, scales, method="a test's", images=0, images_digest="")
    try:
        _, record = run_tool(model, tmp_path, "--parts", "bits")
    finally:
        path.unlink()
    assert [row["precision"] for row in record["bits"]["rows"]][-2:] == ["int8", "int8"]


def test_a_broken_promise(model, photographs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stress_photos, "LARGEST_RATE", -1.0)
    options = ("--parts", "photographs", "bits", "--images", str(photographs), "--crops", "4")
    code, record = run_tool(model, tmp_path, *options)
    assert code == 1
    assert not record["passed"]
    assert [failure.partition(":")[0] for failure in record["failures"]] == ["photographs"]
    assert record["bits"]["failures"] == []
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


def test_scores_beside_torch(model, tmp_path):
    pytest.importorskip("torch")
    code, record = run_tool(model, tmp_path, "--parts", "scores")
    assert code == 0
    rows = record["scores"]["rows"]
    assert len(rows) == 7
    assert all(0 < max(row["library_errors"]) < 1e-5 for row in rows)
