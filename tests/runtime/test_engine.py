"""The engine: a narrow VGG step by step, the same bits under all circumstances, and images beyond float16."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.closeness import assert_close
from tests.support.foreign_arrays import SIZE, inputs
from tests.support.kernel_harness import assert_same_bits, bounds
from tests.support.narrow_vgg import SIZES, images, pixels, run
from tests.support.onnx_models import torch_vgg
from tests.support.reference import apply, evaluate
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, SCORE_TOLERANCES, layer_error, score_error
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import normalise

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


@pytest.mark.parametrize("name", ["vgg16_bn-48", "vgg11-61"])
def test_step_by_step(device: Device, models: dict[str, Path], name: str) -> None:
    with Engine(models[name], device=device.facts.kind, batch=2, keep_values=True) as engine:
        check_steps(engine, images(2, SIZES[name]))


@pytest.mark.parametrize("name", ["vgg11-61"])
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


@pytest.mark.first_case(reason="the kernels' tests have the place of an image")
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_same_bits_at_one_batch_size(device: Device, model: Path, precision: str) -> None:
    """On the kernels that the planner takes. Other sizes may round otherwise, each within the precision's tolerance."""
    x = images(5)
    answers = []
    most = 8 if device.facts.kind == "cpu" else 16
    for batch in (1, 2, most):
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
    for batch in ([1, 3], [4, 2]):
        with Engine(model, device=device.facts.kind, kernels="ffma", batch=batch) as engine:
            assert_same_bits(run(engine, x), expected, f"batch {batch}")
            assert_same_bits(run(engine, x[::-1]), expected[::-1], f"batch {batch}, reversed")


@pytest.mark.parametrize("name", ["vgg11-61"])
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


# ---- Beyond the range of float16


def fp16(device: Device, **options: Any) -> Engine:
    """An engine of a small net, whose values are float16 on every device."""
    proto = torch_vgg(size=SIZE).proto()
    return Engine(proto, device=device.facts.kind, precision="fp16", kernels="mma", **options)


def test_images_beyond_float16_are_refused_by_number(device: Device) -> None:
    x = inputs("float32", 5)
    x[[1, 4]] *= np.float32(3e4)  # in range in the input, but not behind a convolution
    with fp16(device, batch=2) as engine:
        with pytest.raises(
            InputError, match=r"^input 1, 4 of 5 \(counted from 0\): values leave .* precision bf16 or fp32"
        ):
            engine.run(x)
        assert np.isfinite(run(engine, inputs("float32", 5))).all()
        assert engine.second_passes == 0


@pytest.mark.usefixtures("second_passes")
@pytest.mark.parametrize("element_type", ["float32", "uint8"])
def test_images_out_of_range_are_run_again(device: Device, element_type: str) -> None:
    """From ordinary memory, from the pinned input, and from where that does not start."""
    given = inputs(element_type, 4)
    with fp16(device, batch=(1, 4)) as engine:
        exact = [run(engine, image[None])[0] for image in given]
        assert engine.second_passes == 4
        memory = engine.input(element_type)
        for x, first in ((given, 0), (memory, 0), (memory[1:], 1)):
            memory[:] = given  # runs use it
            before, again, count = engine.counters, engine.second_passes, len(x)
            assert_same_bits(run(engine, x), np.stack(exact[first:]))
            assert engine.second_passes == again + count
            launches = [len(program.all_steps(element_type)) for program in engine.plan.programs]
            total = launches[1] + count * launches[0]
            assert engine.counters.since(before) == Counters(1 + count, 1 + count, total, 1 + count, 0)
