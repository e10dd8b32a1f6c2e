"""kernels/general/feature_loss.cu against float64 numpy: partial sums and their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.general.test_masked_gradient import decoded
from tests.kernels.layout.test_convert import encoded, powers
from tests.support.general_harness import NO_PLACES, compute_all, real_part
from tests.support.graph_reference import compute as reference
from tests.support.kernel_harness import Bench, assert_same_bits, normal, seeded, stored
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.loss import CHUNK, FeatureLoss, target_shape
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.compiler.op_kernels.general import feature_loss
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import Arena, DType, Layout, TensorDesc

# A part of a block, blocks that end in the middle, channels that are no multiple of 4 or of 32, one pixel, many images.
SHAPES = [(1, 4, 3, 3), (2, 64, 17, 9), (3, 5, 13, 11), (1, 3, 61, 47), (2, 36, 1, 1), (1, 1, 96, 90), (2, 8, 16, 64)]
DISTANCES = ("squared", "absolute", "unit")
BOUND = 2e-6


def loss_op(distance: Any = "squared", weight: float = 0.25) -> FeatureLoss:
    others = ("t", "w") if distance == "unit" else ("t",)
    return FeatureLoss("x", "y", ("y",), others, distance, weight, "c")


def operands(op: FeatureLoss, shape: Shape, case: str = "loss") -> list[Array]:
    random = seeded(f"{case} {shape}")
    found = [normal(random, *shape), normal(random, *target_shape(shape))]
    return [*found, abs(normal(random, shape[1]))] if op.distance == "unit" else found


def exact(op: Any, given: list[Array]) -> list[Any]:
    inputs = [GraphInput(name, array.shape) for name, array in zip(op.operands, given, strict=True)]
    values = reference(
        Graph(inputs[0], (op,), op.results, tuple(inputs[1:])), dict(zip(op.operands, given, strict=True))
    )
    return [values[name] for name in op.results]


def check(device: Device, op: FeatureLoss, given: list[Array]) -> list[Array]:
    found = compute_all(device, op, given)
    for ours, right in zip(found, exact(op, given), strict=True):
        assert ours.shape == right.shape
        assert np.linalg.norm(ours - right) <= BOUND * np.linalg.norm(right)
    return found


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("distance", DISTANCES)
def test_partial_sums_and_gradients(device: Device, distance: str, shape: Shape) -> None:
    op = loss_op(distance)
    given = operands(op, shape)
    parts, _ = check(device, op, given)
    assert_same_bits(compute_all(device, replace(op, cotangent=None), given)[0], parts)


@pytest.mark.parametrize("shape", [(2, 64, 17, 9), (3, 5, 13, 11), (2, 36, 4, 3), (1, 3, 61, 47)], ids=str)
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("element", [DType.F16_PAIR, DType.BF16, DType.F16], ids=lambda e: e.name)
@pytest.mark.first_case(reason="runtime/on_device/test_loss.py has features in each precision")
def test_features_as_they_are_stored_give_the_bits_of_the_same_numbers(
    device: Device, element: DType, distance: str, shape: Shape
) -> None:
    op = loss_op(distance)
    x, *others = operands(op, shape)
    scale = powers(shape) if element is DType.F16_PAIR else np.ones(shape[1], np.float32)
    per_channel = scale[: shape[1], None, None]
    rounded = decoded(encoded(x * per_channel, element), element) / per_channel
    found = compute_all(device, op, [x, *others], element, scale=scale if element is DType.F16_PAIR else None)
    right = compute_all(device, op, [rounded, *others])
    assert not np.array_equal(rounded, x)
    for ours, wanted in zip(found, right, strict=True):
        assert_same_bits(ours, wanted)


@pytest.mark.parametrize("shape", [(2, 64, 17, 9), (3, 5, 13, 11), (1, 3, 61, 47)], ids=str)
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("feature", ["float32", "stored"])
@pytest.mark.parametrize("element", [DType.BF16, DType.F16], ids=lambda e: e.name)
@pytest.mark.first_case(reason="each element is another compilation of the same lines")
def test_targets_of_two_bytes_give_the_bits_of_the_same_numbers(
    device: Device, element: DType, feature: str, distance: str, shape: Shape
) -> None:
    op = loss_op(distance)
    x, t, *others = operands(op, shape)
    rounded = decoded(encoded(t, element), element)
    first = element if feature == "stored" else DType.F32
    found = compute_all(device, op, [x, t, *others], first, element)
    for ours, wanted in zip(found, compute_all(device, op, [x, rounded, *others], first), strict=True):
        assert_same_bits(ours, wanted)


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(2, 36, 4, 3), (3, 64, 5, 7), (1, 1040, 2, 2)], ids=str)
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("element", [DType.F16_PAIR, DType.BF16, DType.F32], ids=lambda e: e.name)
@pytest.mark.first_case(reason="each element is another compilation of the same lines")
def test_targets_as_they_are_stored_give_the_bits_of_the_same_numbers(
    device: Device, element: DType, distance: str, shape: Shape
) -> None:
    """Feature and target both maps of one element; the largest magnitudes of slopes are those of the slopes."""
    op = loss_op(distance)
    x, t, *others = operands(op, shape)
    goal = np.ascontiguousarray(np.moveaxis(t.reshape(shape[0], *shape[2:], shape[1]), -1, 1))
    scales = [powers(shape) if element is DType.F16_PAIR else np.ones(shape[1], np.float32) for _ in range(2)]
    scales[1] = scales[1] * np.float32(4)
    bench = Bench(device, Arena.ACTIVATIONS)
    values, numbers = [], []
    for array, scale in zip((x, goal), scales, strict=True):
        per_channel = scale[: shape[1], None, None] if element is DType.F16_PAIR else np.float32(1)
        pair = element is DType.F16_PAIR
        placed = bench.put(encoded(stored(array, element), element, scale if pair else None))
        values.append(TensorDesc("m", shape, Layout.NHWC, placed, element, bench.put(scale) if pair else None))
        numbers.append(decoded(encoded(array * per_channel, element), element) / per_channel)
    rounded = np.ascontiguousarray(np.moveaxis(numbers[1], 1, -1)).reshape(target_shape(shape))
    right = compute_all(device, op, [numbers[0], rounded, *others])
    values += [TensorDesc("w", array.shape, Layout.PLAIN, bench.put(array)) for array in others]
    results = [TensorDesc("y", right[0].shape, Layout.PLAIN, bench.room(right[0].nbytes))]
    room = TensorDesc("c", shape, Layout.NHWC, results[0].pointer)
    results.append(replace(room, pointer=bench.room(room.nbytes)))
    bound = bench.put(np.zeros(shape[0], np.float32))
    layer = OpContext(op, shape, device.facts, other_shapes=tuple(value.shape for value in values[1:]))
    places = replace(NO_PLACES, further=(results[1],), bound=bound)
    steps = feature_loss.steps(layer, tuple(values), results[0], (), places)
    for step in steps:
        arguments(step)
    bench.run(*steps)
    found = [real_part(bench.get(value.pointer, value.stored_shape), value) for value in results]
    for ours, wanted in zip(found, right, strict=True):
        assert_same_bits(ours, wanted)
    assert_same_bits(bench.get(bound, (shape[0],)), np.abs(right[1]).reshape(shape[0], -1).max(1))


@pytest.mark.parametrize("distance", DISTANCES)
def test_each_image_by_itself(device: Device, distance: str) -> None:
    op = loss_op(distance)
    x, t, *weights = operands(op, (3, 6, 41, 40))
    whole = compute_all(device, op, [x, t, *weights])
    for n in range(3):
        alone = compute_all(device, op, [x[n : n + 1], t[n : n + 1], *weights])
        for one, all_of_them in zip(alone, whole, strict=True):
            assert_same_bits(one, all_of_them[n : n + 1])


@pytest.mark.parametrize("distance", DISTANCES)
def test_no_difference_has_no_loss_and_no_slope(device: Device, distance: str) -> None:
    x = normal(seeded("equal"), 1, 4, 5, 5)
    t = np.ascontiguousarray(np.moveaxis(x, 1, -1)).reshape(1, 25, 4)
    for array in compute_all(device, loss_op(distance), [x, t, *[np.ones(4, np.float32)] * (distance == "unit")]):
        assert not array.any()


@pytest.mark.parametrize("channels", [4, 3])
def test_pixels_of_zeros_have_a_unit_vector_of_zeros(device: Device, channels: int) -> None:
    """And a gradient that is large, but finite: 1e-8 stands under the root."""
    op = loss_op("unit")
    x, t, w = operands(op, (1, channels, 6, 7))
    x[:, :, 2, 3] = 0
    t[:, 9] = 0
    parts, cotangent = check(device, op, [x, t, w])
    assert np.isfinite(parts).all()
    assert abs(cotangent[0, :, 2, 3]).max() > 100


@pytest.mark.parametrize("distance", DISTANCES)
def test_nan_stays_where_it_is(device: Device, distance: str) -> None:
    op = loss_op(distance)
    given = operands(op, (2, 8, 4, 4))
    given[0][1, 2, 1, 1] = np.nan
    parts, cotangent = compute_all(device, op, given)
    assert np.isnan(parts[1]).any()
    assert np.isfinite(parts[0]).all()
    assert np.isnan(cotangent[1, 2, 1, 1])
    assert np.isfinite(cotangent[1, :, 0]).all()


def test_the_end_of_a_block(device: Device) -> None:
    """The difference of the last element of a block, and of the first of the next one, alone."""
    x = np.zeros((1, 4, 1, CHUNK // 2), np.float32)  # two blocks
    t = np.zeros((1, CHUNK // 2, 4), np.float32)
    for element, block in ((CHUNK - 1, 0), (CHUNK, 1)):
        goal = t.copy()
        goal.reshape(-1)[element] = 2
        parts, cotangent = compute_all(device, loss_op(weight=1.0), [x, goal])
        assert parts[0, :, 0].tolist() == [4.0 * (block == 0), 4.0 * (block == 1)]
        assert np.moveaxis(cotangent, 1, -1).reshape(-1)[element] == -4
        assert np.count_nonzero(cotangent) == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match=r"FeatureLoss 'y': a target of shape \(1, 9, 5\)"):
        loss_op().shape_of_y((1, 4, 3, 3), (1, 9, 5))
    with pytest.raises(ModelError, match="FeatureLoss 'y'"):
        loss_op("unit").shape_of_y((1, 4, 3, 3), (1, 9, 4), (5,))
