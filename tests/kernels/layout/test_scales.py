"""kernels/layout/scales.cu against numpy: what fixes the scales of float32 on tensor cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.kernel_harness import Bench, assert_same_bits, normal, seeded
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.op_kernels.base import ActivationScale, WeightPacker
from vgg16gpu.compiler.op_kernels.layout.scales import WeightRows, choose, observe, scale_rows
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Arena, Layout, Pointer, TensorDesc

TARGET, WEIGHT = 2.0**10, 2.0**14  # where stored values and scaled weights begin


def power_below(x: Array) -> Array:
    """The largest power of two that is no larger."""
    return np.exp2(np.floor(np.log2(x.astype(np.float64)))).astype(np.float32)


def scaling(bench: Bench, scale: Array, observed: Array, level: Array, *, uniform: bool = False) -> ActivationScale:
    return ActivationScale(bench.put(scale), bench.put(observed), bench.put(level), scale.size, uniform)


# ---- Largest magnitudes


@pytest.mark.parametrize(
    "shape", [(1, 3, 1, 1), (1, 4, 7, 9), (1, 70, 30, 31), (1, 64, 224, 3), (1, 10), (1, 1000)], ids=str
)
def test_the_largest_magnitude_of_each_channel_stays(device: Device, shape: Shape) -> None:
    bench = Bench(device)
    value = TensorDesc("x", shape, Layout.NHWC, Pointer(Arena.WEIGHTS, 0))
    images = [normal(seeded(f"{shape} {i}"), *value.stored_shape) for i in range(3)]
    observed = bench.put(np.zeros(value.pitch, np.float32))
    made = ActivationScale(observed, observed, observed, value.pitch, False)
    bench.run(*(observe(TensorDesc("x", shape, Layout.NHWC, bench.put(image)), made) for image in images))
    expected = np.abs(np.stack(images)).reshape(-1, value.pitch).max(axis=0)
    assert_same_bits(bench.get(observed, (value.pitch,)), expected)


# ---- Scales of values


def chosen(device: Device, observed: Array, level: Array, *, uniform: bool = False) -> Array:
    bench = Bench(device)
    made = scaling(bench, np.zeros_like(observed), observed, level, uniform=uniform)
    bench.run(choose(made))
    return bench.get(made.scale, observed.shape)


@pytest.mark.parametrize("channels", [64, 320])
def test_a_channel_comes_to_the_target(device: Device, channels: int) -> None:
    random = seeded("channels")
    observed, level = (np.exp2(random.uniform(-20, 20, channels)).astype(np.float32) for _ in range(2))
    scale = chosen(device, observed, level)
    size = np.maximum(observed, level) * scale
    assert ((size >= TARGET) & (size < 2 * TARGET)).all()
    assert_same_bits(scale, power_below(scale))
    uniform = chosen(device, observed, level, uniform=True)
    assert_same_bits(uniform, np.full(channels, scale.min()))


def test_silent_channels_and_extremes(device: Device) -> None:
    """A dead channel is as the largest one; exponents end at 60."""
    observed = np.zeros(64, np.float32)
    observed[:4] = 3, 2.0**100, 2.0**-100, 1e-45
    scale = chosen(device, observed, np.zeros(64, np.float32))
    assert scale[:5].tolist() == [2.0**9, 2.0**-50, 2.0**70, 2.0**70, 2.0**-50]
    assert (chosen(device, np.zeros(64, np.float32), np.zeros(64, np.float32)) == 1).all()


# ---- Scales of weights


@pytest.mark.parametrize("correction", [1.0, 1 + 2.0**-22])
@pytest.mark.parametrize("folds", [True, False], ids=["folded", "whole"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 9), (64, 130, 9), (7, 1000, 1)], ids=str)  # OUT, C, taps
def test_rows(device: Device, shape: tuple[int, int, int], folds: bool, correction: float) -> None:
    outputs, channels, taps = shape
    random = seeded(str(shape))
    weight = normal(random, taps, channels, outputs) * np.exp2(random.integers(-9, 9, outputs)).astype(np.float32)
    exponents = random.integers(-6, 12, channels)
    inp_scale = np.exp2(exponents if folds else np.full(channels, exponents[0])).astype(np.float32)
    bench = Bench(device)
    x = scaling(bench, inp_scale, inp_scale, inp_scale)
    level = bench.put(np.zeros(outputs, np.float32))
    rows = WeightRows(bench.put(weight), outputs, channels, taps, 1, outputs, outputs * channels)
    arena = WeightPacker()
    made = scale_rows(rows, outputs, x, level, arena, folds=folds, correction=correction)
    (step,) = arena.finish
    vectors = [bench.put(np.zeros(outputs, np.float32)) for _ in range(3)]
    bench.run(replace(step, arguments=(*vectors, *step.arguments[3:])))
    scale, dequant, plain = (bench.get(vector, (outputs,)) for vector in vectors)
    assert [made.scale, made.dequant, made.plain] == list(step.arguments[:3])

    divided = weight.transpose(2, 1, 0) / inp_scale[:, None]
    factor = scale if folds else scale * inp_scale[0]  # of the weight over its input's scale
    largest = np.abs(divided).reshape(outputs, -1).max(axis=1) * factor
    assert ((largest >= WEIGHT) & (largest < 2 * WEIGHT)).all()
    assert_same_bits(scale, power_below(scale))
    # A product is (w / inp_scale * factor) * (x * inp_scale); without a scale of its own w * (x * inp_scale).
    assert_same_bits(dequant, (correction / factor).astype(np.float32))
    if not folds:
        assert_same_bits(plain, np.full(outputs, 1 / inp_scale[0], np.float32))
    length = np.sqrt((divided.astype(np.float64) ** 2).sum(axis=(1, 2)))
    np.testing.assert_allclose(bench.get(level, (outputs,)), TARGET * length, rtol=1e-5)


def test_a_row_of_zeros(device: Device) -> None:
    bench = Bench(device)
    one = np.ones(4, np.float32)
    x = scaling(bench, one, one, one)
    level = bench.put(one)
    rows = WeightRows(bench.put(np.zeros((1, 4), np.float32)), 1, 4, 1, 4, 1, 0)
    arena = WeightPacker()
    scale_rows(rows, 1, x, level, arena, folds=True)
    vectors = [bench.put(np.zeros(1, np.float32)) for _ in range(3)]
    (step,) = arena.finish
    bench.run(replace(step, arguments=(*vectors, *step.arguments[3:])))
    assert [bench.get(vector, (1,))[0] for vector in vectors] == [1, 1, 1]
    assert bench.get(level, (1,))[0] == 0


@pytest.mark.sanitize
def test_small_shapes(device: Device) -> None:
    test_the_largest_magnitude_of_each_channel_stays(device, (1, 4, 7, 9))
    test_rows(device, (5, 3, 9), True, 1.0)
    test_silent_channels_and_extremes(device)
