"""The engine: a narrow VGG step by step, the same bits under all circumstances, one copy each way, and refusals."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.kernel_harness import assert_same_bits, bounds
from tests.support.reference import apply, evaluate
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, SCORE_TOLERANCES, assert_close, layer_error, score_error
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.errors import DeviceError, InputError, ModelError
from vgg16gpu.io.imagenet import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.zoo.generate import make_vgg

SIZES = {"vgg16-48": 48, "vgg16_bn-48": 48, "vgg11-61": 61}  # 61: odd maps all the way
SCORES = 10


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """VGGs with an eighth of the channels, small maps and a small classifier."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for name, size in SIZES.items():
        variant = name.partition("-")[0]
        paths[name] = folder / f"{name}.onnx"
        options: dict[str, Any] = {"variant": variant.removesuffix("_bn"), "batch_norm": variant.endswith("_bn")}
        make_vgg(paths[name], size=size, width=8, hidden=64, classes=SCORES, **options)
    return paths


@pytest.fixture
def model(models: dict[str, Path]) -> Path:
    return models["vgg16-48"]


def pixels(count: int, size: int = 48) -> Any:
    return structured_images(count, size, seed=3)


def images(count: int, size: int = 48) -> Array:
    return normalise(pixels(count, size), IMAGENET_MEAN, IMAGENET_STD)


def run(engine: Engine, x: Any) -> Array:
    scores = engine.run(x)
    assert isinstance(scores, np.ndarray)
    return scores


# ---- Right answers


def check_steps(engine: Engine, x: Array) -> None:
    """Each value against float64, from the value before it as the device has it, and from the input."""
    scores = run(engine, x)
    stored = {names[-1]: array for names, array in engine.read_values()}
    exact = evaluate(engine.graph, x)
    assert list(stored) == list(exact)
    for op in engine.graph.ops:
        expected = apply(op, stored[op.x].astype(np.float64))
        assert_close(stored[op.y], expected, *bounds(op, stored[op.x]), label=op.y)
        assert layer_error(stored[op.y], exact[op.y]) <= SCORE_TOLERANCE, op.y
    assert (score_error(scores, exact[engine.graph.outputs[0]]) <= SCORE_TOLERANCE).all()


@pytest.mark.parametrize("name", SIZES)
def test_step_by_step(device: Device, models: dict[str, Path], name: str) -> None:
    with Engine(models[name], device=device.facts.kind, batch=2, keep_values=True) as engine:
        check_steps(engine, images(2, SIZES[name]))


@pytest.mark.parametrize("name", SIZES)
def test_every_onnx_value_as_an_output(device: Device, models: dict[str, Path], name: str) -> None:
    """Nothing is fused then: each ReLU, pool and normalisation runs on its own."""
    nodes = onnx.load(models[name]).graph.node
    names = [node.output[0] for node in nodes]
    x = images(1, SIZES[name])
    with Engine(models[name], device=device.facts.kind, outputs=names) as engine:
        values = engine.run(x)
        exact = evaluate(engine.graph, x)
    assert isinstance(values, tuple)
    assert len(values) == len(nodes)
    for value_name, value in zip(names, values, strict=True):
        assert layer_error(value, exact[value_name]) <= SCORE_TOLERANCE, value_name
    with Engine(models[name], device=device.facts.kind) as engine:
        fused = run(engine, x)
    assert (score_error(values[-1], fused) <= SCORE_TOLERANCE).all()


@pytest.mark.parametrize("name", [name for name in SIZES if "_bn" not in name])
def test_fusing_changes_no_bits(device: Device, models: dict[str, Path], name: str) -> None:
    """On float32 kernels, and but for a normalisation: folding one into the weights rounds them."""
    names = [node.output[0] for node in onnx.load(models[name]).graph.node]
    x = images(1, SIZES[name])
    with Engine(models[name], device=device.facts.kind, kernels="ffma") as engine:
        fused = run(engine, x)
    with Engine(models[name], device=device.facts.kind, kernels="ffma", outputs=names) as engine:
        assert_same_bits(engine.run(x)[-1], fused)


def test_bytes_are_normalised_on_the_device(device: Device, model: Path) -> None:
    with Engine(model, device=device.facts.kind, batch=4) as engine:
        assert (score_error(run(engine, pixels(3)), run(engine, images(3))) <= SCORE_TOLERANCE).all()
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    with Engine(model, device=device.facts.kind, mean=mean, std=std) as engine:
        expected = run(engine, normalise(pixels(1), mean, std))
        assert (score_error(run(engine, pixels(1)), expected) <= SCORE_TOLERANCE).all()


# ---- The same bits


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_same_bits_at_one_batch_size(device: Device, model: Path, precision: str) -> None:
    """On the kernels that the planner takes. Other sizes may round otherwise, each within the precision's tolerance."""
    x = images(5)
    answers = []
    most = 8 if device.facts.kind == "cpu" else 16
    for batch in (1, 2, 5, most):
        with Engine(model, device=device.facts.kind, batch=batch, precision=precision) as engine:
            answers.append(check_one_size(engine, x))
    for scores in answers[1:]:
        assert (score_error(scores, answers[0]) <= 2 * SCORE_TOLERANCES[precision]).all()


def check_one_size(engine: Engine, x: Array) -> Array:
    """The scores: the same again, streamed, at other places, beside others and in batches that are not full."""
    expected = run(engine, x)
    assert len({row.tobytes() for row in expected}) == len(x)
    assert_same_bits(run(engine, x), expected, "again")
    assert_same_bits(run(engine, x[::-1]), expected[::-1], "backwards")
    for first in range(1, len(x)):
        assert_same_bits(run(engine, np.roll(x, first, axis=0)), np.roll(expected, first, axis=0), f"{first} further")
        assert_same_bits(run(engine, x[first:]), expected[first:], f"without the first {first}")
    streamed: list[Any] = list(engine.stream([x[:1], x[1:4], x[4:]]))
    assert_same_bits(np.concatenate(streamed), expected, "streamed")
    return expected


def test_same_bits_in_any_batch_on_float32_kernels(device: Device, model: Path) -> None:
    x = images(5)
    with Engine(model, device=device.facts.kind, kernels="ffma") as engine:
        expected = run(engine, x)
    for batch in ([2], [5], [1, 3], [4, 2], 16):
        with Engine(model, device=device.facts.kind, kernels="ffma", batch=batch) as engine:
            assert_same_bits(run(engine, x), expected, f"batch {batch}")
            assert_same_bits(run(engine, x[::-1]), expected[::-1], f"batch {batch}, reversed")


def test_same_bits_with_and_without_kept_values(device: Device, model: Path) -> None:
    x = images(2)
    with Engine(model, device=device.facts.kind, batch=2) as engine:
        expected = run(engine, x)
    with Engine(model, device=device.facts.kind, batch=2, keep_values=True) as engine:
        assert_same_bits(run(engine, x), expected)


@pytest.mark.parametrize("name", SIZES)
def test_a_nan_stays_in_its_image(device: Device, models: dict[str, Path], name: str) -> None:
    x = images(4, SIZES[name])
    with Engine(models[name], device=device.facts.kind, batch=4, allow_nonfinite=True) as engine:
        clean = run(engine, x)
        x[1, 2, 20, 20] = np.nan
        scores = run(engine, x)
        assert np.isnan(scores[1]).all()
        assert_same_bits(scores[[0, 2, 3]], clean[[0, 2, 3]])
        x[1] = x[0]
        assert_same_bits(run(engine, x), clean[[0, 0, 2, 3]], "afterwards")


def test_threads_share_an_engine(device: Device, model: Path) -> None:
    x = images(6)
    with Engine(model, device=device.facts.kind, batch=2) as engine:
        expected = run(engine, x)
        found: dict[int, Array] = {}

        def work(index: int) -> None:
            for _ in range(3):
                found[index] = run(engine, x[index : index + 2])

        threads = [threading.Thread(target=work, args=(index,)) for index in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 5
    for index, scores in found.items():
        assert_same_bits(scores, expected[index : index + 2])


def test_built_run_and_closed_in_different_threads(device: Device, model: Path) -> None:
    x = images(1)
    with Engine(model, device=device.facts.kind) as engine:
        expected = run(engine, x)
    made: list[Engine] = []
    scores: list[Array] = []

    def build() -> None:
        made.append(Engine(model, device=device.facts.kind))

    def use() -> None:
        scores.append(run(made[0], x))

    def close() -> None:
        made[0].close()

    for task in (build, use, close):
        thread = threading.Thread(target=task)
        thread.start()
        thread.join()
    assert_same_bits(scores[0], expected)
    with pytest.raises(InputError, match="the engine is closed; build a new one"):
        made[0].run(x)


# ---- Counters


def runs(count: int, launches: int) -> Counters:
    """What that many runs of one batch each count."""
    return Counters(count, count, count * launches, count, 0)


def test_counters(device: Device, model: Path) -> None:
    with Engine(model, device=device.facts.kind, batch=[1, 4]) as engine:
        assert engine.counters == Counters()
        launches = {program.batch: 1 + len(program.steps) for program in engine.plan.programs}
        engine.run(images(1))
        assert engine.counters == runs(1, launches[1])
        engine.run(pixels(1))
        assert engine.counters == runs(2, launches[1])
    with Engine(model, device=device.facts.kind, batch=4) as engine:
        engine.run(images(9))
        assert engine.counters == runs(3, launches[4])


class DriverCalls:
    """Counts, below the device, what goes to the driver; or on the cpu, to the C library and the compiled kernels."""

    def __init__(self) -> None:
        self.counted = Counters()

    def count(self, patch: pytest.MonkeyPatch, owner: Any, name: str, field: str) -> None:
        original = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            setattr(self.counted, field, getattr(self.counted, field) + 1)
            return original(*arguments, **options)

        patch.setattr(owner, name, counting)

    def watch_cpu(self, patch: pytest.MonkeyPatch) -> None:
        from vgg16gpu.devices.cpu import library as cpu_library
        from vgg16gpu.devices.cpu import memory as cpu_memory
        from vgg16gpu.devices.cpu.device import CpuDevice

        original, heaps = cpu_memory.copy, []
        remember = cpu_memory.Heap.__init__

        def made(heap: Any, *arguments: Any, **options: Any) -> None:
            remember(heap, *arguments, **options)
            heaps.append(heap)

        def copy(target: int, source: int, nbytes: int) -> None:
            inwards = any(lies_in(heap, target, nbytes) for heap in heaps)
            outwards = any(lies_in(heap, source, nbytes) for heap in heaps)
            assert inwards != outwards
            self.counted.copies_in += inwards
            self.counted.copies_out += outwards
            original(target, source, nbytes)

        patch.setattr(cpu_memory.Heap, "__init__", made)
        patch.setattr(cpu_memory, "copy", copy)
        self.count(patch, cpu_memory.Heap, "allocate", "allocations")
        self.count(patch, cpu_library.BoundLaunch, "__call__", "launches")
        self.count(patch, CpuDevice, "synchronize", "synchronisations")

    def watch_cuda(self, patch: pytest.MonkeyPatch) -> None:
        from pycuda import driver  # type: ignore[import-not-found]

        prefixes = {"memcpy_htod": "copies_in", "memcpy_dtoh": "copies_out", "mem_alloc": "allocations"}
        prefixes |= {"pagelocked": "allocations", "managed": "allocations", "memcpy_dtod": "launches"}
        prefixes |= {"memset": "launches", "matrix": "launches"}
        for name in dir(driver):
            for prefix, field in prefixes.items():
                if name.startswith(prefix):
                    self.count(patch, driver, name, field)
        for owner in (driver.Stream, driver.Event, driver.Context):
            self.count(patch, owner, "synchronize", "synchronisations")
        for name in ("prepared_call", "__call__"):
            self.count(patch, driver.Function, name, "launches")
        self.watch_launches(patch, driver)
        self.watch_graphs(patch)

    def watch_launches(self, patch: pytest.MonkeyPatch, driver: Any) -> None:
        """A kernel whose first argument is where to write, or whose second is where to read, on the host: a copy."""
        pinned: list[tuple[int, int]] = []
        allocate, launch = driver.pagelocked_empty, driver.Function.prepared_async_call

        def counting_allocate(*arguments: Any, **options: Any) -> Any:
            buffer = allocate(*arguments, **options)
            pinned.append((buffer.ctypes.data, buffer.nbytes))
            return buffer

        def counting_launch(function: Any, grid: Any, block: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
            packed = arguments[0] if arguments and isinstance(arguments[0], bytes) else b""
            places = struct.unpack("<QQ", packed[:16]) if len(packed) >= 16 else (0, 0)
            host = [any(start <= place < start + nbytes for start, nbytes in pinned) for place in places]
            field = "copies_out" if host[0] else "copies_in" if host[1] else "launches"
            setattr(self.counted, field, getattr(self.counted, field) + 1)
            return launch(function, grid, block, stream, *arguments, **options)

        patch.setattr(driver, "pagelocked_empty", counting_allocate)
        patch.setattr(driver.Function, "prepared_async_call", counting_launch)

    def watch_graphs(self, patch: pytest.MonkeyPatch) -> None:
        """A graph does what was recorded into it whenever it is launched. Recording itself does nothing."""
        try:
            from cuda.bindings import driver as bindings  # type: ignore[import-not-found]
        except ImportError:
            return
        begin, end, instantiate = (
            getattr(bindings, name) for name in ("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate")
        )
        launch = bindings.cuGraphLaunch
        before, recorded, held = [Counters()], [Counters()], {}

        def begin_capture(*arguments: Any) -> Any:
            before[0] = Counters(**vars(self.counted))
            return begin(*arguments)

        def end_capture(*arguments: Any) -> Any:
            recorded[0], self.counted = self.counted.since(before[0]), before[0]
            return end(*arguments)

        def make_executable(*arguments: Any) -> Any:
            error, *results = instantiate(*arguments)
            held[int(results[0])] = recorded[0]
            return error, *results

        def launch_graph(graph: Any, stream: Any) -> Any:
            for field, number in vars(held[int(graph)]).items():
                setattr(self.counted, field, getattr(self.counted, field) + number)
            return launch(graph, stream)

        patch.setattr(bindings, "cuStreamBeginCapture", begin_capture)
        patch.setattr(bindings, "cuStreamEndCapture", end_capture)
        patch.setattr(bindings, "cuGraphInstantiate", make_executable)
        patch.setattr(bindings, "cuGraphLaunch", launch_graph)


def lies_in(heap: Any, address: int, nbytes: int) -> bool:
    try:
        heap.require(address, nbytes)
    except DeviceError:
        return False
    return True


@pytest.mark.parametrize("element_type", ["float32", "uint8"])
def test_counters_against_the_calls_that_reach_the_driver(
    device: Device, model: Path, element_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = DriverCalls()
    calls.watch_cpu(monkeypatch) if device.facts.kind == "cpu" else calls.watch_cuda(monkeypatch)
    x = images(2) if element_type == "float32" else pixels(2)
    with Engine(model, device=device.facts.kind) as engine:
        built = Counters(**vars(calls.counted))
        assert built.allocations >= 3
        assert built.copies_in > 30  # the weights
        engine.run(x)
        expected = runs(2, 1 + len(engine.program.steps))
        assert calls.counted.since(built) == expected
        assert engine.counters == expected


# ---- Beyond the range of float16


def fp16(model: Path, device: Device, **options: Any) -> Engine:
    """An engine whose values are float16 on every device."""
    return Engine(model, device=device.facts.kind, precision="fp16", kernels="mma", **options)


def overflowing(x: Array, *which: int) -> Array:
    """The same with values that fit float16 in the input, but not behind a convolution, in some of the images."""
    x = x.copy()
    x[list(which)] *= np.float32(3e4)
    return x


def test_images_beyond_float16_are_refused_by_number(device: Device, model: Path) -> None:
    x = overflowing(images(5), 1, 4)
    with fp16(model, device, batch=2) as engine:
        with pytest.raises(
            InputError, match=r"^input 1, 4 of 5 \(counted from 0\): values leave .* precision bf16 or fp32"
        ):
            engine.run(x)
        assert np.isfinite(run(engine, images(5))).all()
        assert engine.second_passes == 0


def test_nan_is_not_taken_for_an_image_beyond_float16(device: Device, model: Path) -> None:
    x = images(3)
    x[1, 0, 5, 5] = np.nan
    with fp16(model, device, batch=4) as engine, pytest.raises(InputError, match=r"input 1 of 3 .* holds NaN or Inf"):
        engine.run(x)
    with fp16(model, device, batch=4, allow_nonfinite=True) as engine:
        assert_same_bits(run(engine, x)[[0, 2]], run(engine, images(3))[[0, 2]])
        with pytest.raises(InputError, match=r"input 2 of 3 .* leave the range of float16"):
            engine.run(overflowing(x, 2))


@pytest.mark.usefixtures("second_passes")
@pytest.mark.parametrize("first", [None, 0, 1], ids=["ordinary memory", "pinned input", "not at its start"])
@pytest.mark.parametrize("element_type", ["float32", "uint8"])
def test_images_out_of_range_are_run_again(device: Device, model: Path, element_type: str, first: int | None) -> None:
    x = images(4) if element_type == "float32" else pixels(4)
    with fp16(model, device, batch=(1, 4)) as engine:
        expected = [run(engine, image[None])[0] for image in x]
        assert engine.second_passes == 4
        before = engine.counters
        count = 4
        if first is not None:
            memory = engine.input(element_type)
            memory[:] = x
            x, expected = memory[first:], expected[first:]
            count -= first
        assert_same_bits(run(engine, x), np.stack(expected))
        assert engine.second_passes == 4 + count
        launches = [len(program.all_steps(element_type)) for program in engine.plan.programs]
        total = launches[1] + count * launches[0]
        assert engine.counters.since(before) == Counters(1 + count, 1 + count, total, 1 + count, 0)


# ---- The surface


def test_several_outputs_and_inputs_by_name(device: Device, model: Path) -> None:
    x = images(3)
    names = [node.output[0] for node in onnx.load(model).graph.node]
    hidden = names[-2]
    with Engine(model, device=device.facts.kind, batch=2, outputs=["output", hidden]) as engine:
        scores, features = engine.run({"input": x})
        exact = evaluate(engine.graph, x)
    assert (scores.shape, features.shape) == ((3, SCORES), (3, 64))
    assert (score_error(scores, exact["output"]) <= SCORE_TOLERANCE).all()
    assert (score_error(features, exact[hidden]) <= SCORE_TOLERANCE).all()


def test_it_says_what_it_does(device: Device, model: Path) -> None:
    with Engine(model, device=device.facts.kind, batch=[1, 3]) as engine:
        assert engine.program.batch == 3
        assert "conv 3x3 3->8 + relu" in str(engine.program)
        assert device.facts.kind in engine.device_choice
        assert engine.device.facts.kind == device.facts.kind
        assert all(seconds > 0 for seconds in vars(engine.timings).values())
        memory = [program.activations_nbytes for program in engine.plan.programs]
        assert engine.plan.device_nbytes == engine.plan.weights.weights_nbytes + max(memory)


def test_closing_twice(device: Device, model: Path) -> None:
    engine = Engine(model, device=device.facts.kind)
    engine.close()
    engine.close()


@pytest.fixture(scope="module")
def engine(models: dict[str, Path]) -> Iterator[Engine]:
    with closing(Engine(models["vgg16-48"], device="cpu", batch=2)) as opened:
        yield opened


ACCEPTED = r"this model takes float32 \(N, 3, 48, 48\) or uint8 \(N, 48, 48, 3\), N >= 1"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((1, 3, 48, 47), np.float32), rf"input 'input' is float32 \(1, 3, 48, 47\); {ACCEPTED}"),
        (np.zeros((3, 48, 48), np.float32), ACCEPTED),
        (np.zeros((1, 48, 48, 3), np.float32), ACCEPTED),
        (np.zeros((1, 3, 48, 48), np.uint8), ACCEPTED),
        (np.zeros((1, 3, 48, 48)), rf"is float64 .*; {ACCEPTED}"),
        (np.zeros((0, 3, 48, 48), np.float32), ACCEPTED),
        (np.float32(1), ACCEPTED),
        ({"data": np.zeros((1, 3, 48, 48), np.float32)}, r"inputs \['data'\]: this model has one input, 'input'"),
        ({}, r"inputs \[\]: this model has one input, 'input'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(engine: Engine, x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine.run(x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_by_number(device: Device, model: Path, bad: float) -> None:
    x = images(5)
    x[2, 0, 0, 0] = x[4, 2, 47, 47] = bad
    with Engine(model, device=device.facts.kind, batch=2) as engine:
        with pytest.raises(InputError, match=r"input 2, 4 of 5 \(counted from 0\) holds NaN or Inf; .*allow"):
            engine.run(x)
        assert np.isfinite(run(engine, images(5))).all()


def test_values_are_there_only_if_kept(engine: Engine) -> None:
    with pytest.raises(InputError, match="keep_values=True"):
        next(iter(engine.read_values()))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "fp64"}, ModelError, "precision 'fp64' is not supported; accepted: fp32"),
        ({"batch": 0}, InputError, "batch 0: give one size, or several, each between 1 and 65535"),
        ({"batch": []}, InputError, "batch"),
        ({"batch": [1, 65536]}, InputError, "batch"),
        ({"size": 64}, ModelError, "image size is fixed to 48x48"),
        ({"outputs": ["nonesuch"]}, ModelError, "nonesuch"),
        ({"mean": (0.5,)}, InputError, "give one finite number for each of 3 channels"),
        ({"std": (1, 1, 0)}, InputError, "std above zero"),
        ({"device": "tpu"}, DeviceError, "unknown device 'tpu'; accepted: auto, cpu, cuda"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(
    model: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine(model, **{"device": "cpu", **options})


# ---- What an array may be


def test_byte_order_does_not_matter(model: Path) -> None:
    x = images(2)
    with Engine(model, device="cpu", batch=2) as engine:
        assert_same_bits(run(engine, x.astype(">f4")), run(engine, x))


def test_half_precision_is_widened(model: Path) -> None:
    x = images(2).astype(np.float16)
    with Engine(model, device="cpu", batch=2) as engine:
        expected = run(engine, x.astype(np.float32))
        assert_same_bits(run(engine, x), expected)
        assert_same_bits(run(engine, x.astype(">f2")), expected)
        assert_same_bits(next(engine.stream([x])), expected)
        x[1, 0, 0, 0] = np.inf
        with pytest.raises(InputError, match="input 1 of 2"):
            engine.run(x)


def test_what_is_no_plain_array_is_refused(model: Path) -> None:
    with Engine(model, device="cpu") as engine:
        with pytest.raises(InputError, match=r"masked array.*x\.filled"):
            engine.run(np.ma.masked_invalid(images(1)))
        with pytest.raises(InputError, match="is not an array"):
            engine.run([[1, 2], [3]])
        with pytest.raises(InputError, match=r"float64.*convert it with x\.astype\(np\.float32\)"):
            engine.run(images(1).astype(np.float64))
        with pytest.raises(InputError, match="this model has one input, 'input'"):
            engine.run({"foo": images(1), 1: images(1)})


def test_values_are_of_the_batch_that_ran_last(model: Path) -> None:
    x = images(3)
    with Engine(model, device="cpu", batch=(1, 2), keep_values=True) as engine:
        with pytest.raises(InputError, match="before the first run"):
            next(engine.read_values())
        engine.run(x[:2])
        engine.run(x[2:])
        last = {names[-1]: array for names, array in engine.read_values()}
        assert_same_bits(last["output"], run(engine, x[2:]))
        assert_same_bits(last["input"], x[2:])


def test_the_device_is_closed_even_if_freeing_fails(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model, device="cpu")
    closed = []
    monkeypatch.setattr(engine.device, "free", lambda _: (_ for _ in ()).throw(DeviceError("no such memory")))
    monkeypatch.setattr(engine.device, "close", lambda: closed.append(True))
    with pytest.raises(DeviceError, match="no such memory"):
        engine.close()
    assert closed == [True]
    engine.close()


def test_an_unknown_kind_of_device_is_refused(model: Path) -> None:
    for device in (None, 0):
        with pytest.raises(DeviceError, match=f"unknown device {device}; accepted: auto"):
            Engine(model, device=device)
