"""kernels/general/rearrange.cu against numpy, bit by bit."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from tests.support.general_harness import check_all_layouts, compute, layouts_of
from tests.support.kernel_harness import normal, seeded
from vgg16gpu.compiler.graph.ops import Array, Concat, Gather, Op, Pad, Reshape, Shape, Slice, Transpose
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import Layout

OPERANDS = tuple(f"x{number}" for number in range(1, 9))


def array(*shape: int) -> Array:
    return normal(seeded(str(shape)), *shape)


def transpose(*permutation: int) -> Op:
    return Transpose("x", "y", ("y",), permutation)


def reshape(*target: int) -> Op:
    return Reshape("x", "y", ("y",), target)


def concat(axis: int, count: int) -> Op:
    return Concat("x", "y", ("y",), OPERANDS[: count - 1], axis)


def gather(axis: int, indices: object) -> Gather:
    return Gather("x", "y", ("y",), axis, np.array(indices, np.int64))


# ---- Transpose


@pytest.mark.sanitize
@pytest.mark.parametrize("permutation", [*permutations(range(4))], ids=str)
def test_maps_transposed(device: Device, permutation: tuple[int, ...]) -> None:
    x = array(2, 5, 3, 4)
    check_all_layouts(device, transpose(*permutation), [x], x.transpose(permutation))


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ((), ()),
        ((3, 5), (1, 0)),
        ((2, 3, 4), (2, 0, 1)),
        ((2, 1, 3, 2, 5), (4, 1, 3, 0, 2)),
        ((2, 1, 3, 2, 1, 2), (5, 2, 1, 4, 0, 3)),
        ((1, 2, 1, 3, 1, 2, 2, 3), (7, 1, 6, 3, 4, 0, 2, 5)),
        ((2, 0, 3), (2, 1, 0)),
    ],
    ids=str,
)
def test_transposed(device: Device, shape: Shape, permutation: tuple[int, ...]) -> None:
    x = array(*shape)
    check_all_layouts(device, transpose(*permutation), [x], x.transpose(permutation))


def test_any_bits_are_brought_over(device: Device) -> None:
    x = np.array([[0x7F800001, 0xFFFFFFFF, 0x80000000], [0x007FFFFF, 0x7F800000, 1]], np.uint32).view(np.float32)
    check_all_layouts(device, transpose(1, 0), [x], x.T)


# ---- Slice

SLICES: tuple[tuple[Shape, tuple[slice, ...]], ...] = (
    ((), ()),
    ((9,), (slice(None, None, -1),)),
    ((9,), (slice(7, 0, -3),)),
    ((5, 7), (slice(1, 4), slice(6, None, -2))),
    ((2, 9, 5, 6), (slice(None), slice(1, 8, 3), slice(3, None, -1), slice(None, None, 2))),
    ((3, 8, 4, 4), (slice(2, 0, -1), slice(4, 8), slice(None), slice(1, 2))),
    ((2, 3, 4, 5, 6), (slice(None), slice(1, 2), slice(None, None, -2), slice(0, 3), slice(5, 1, -1))),
    ((2, 3, 2, 3, 2, 3), (slice(None, None, -1),) * 6),
    ((4, 5), (slice(0, 0), slice(None))),
)


@pytest.mark.parametrize(("shape", "slices"), SLICES, ids=str)
def test_slices(device: Device, shape: Shape, slices: tuple[slice, ...]) -> None:
    x = array(*shape)
    ranges = [range(dim)[cut] for dim, cut in zip(shape, slices, strict=True)]
    op = Slice(
        "x",
        "y",
        ("y",),
        tuple(found.start for found in ranges),
        tuple(found.step for found in ranges),
        tuple(None if cut == slice(None) else len(found) for found, cut in zip(ranges, slices, strict=True)),
    )
    check_all_layouts(device, op, [x], x[slices])


def test_a_step_beyond_any_index(device: Device) -> None:
    """One element needs no step, however wide the model writes it."""
    x = array(3, 5)
    check_all_layouts(device, Slice("x", "y", ("y",), (0, 4), (1 << 40, -(1 << 62)), (1, 1)), [x], x[:1, 4:])


# ---- Pad


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((), (), ()),
        ((5,), (2,), (3,)),
        ((3, 5), (-1, 2), (2, -4)),
        ((2, 5, 3, 4), (0, 0, 1, 2), (0, 0, 3, 1)),
        ((2, 5, 3, 4), (1, 3, -1, 0), (0, -2, 1, -2)),
        ((2, 1, 2, 3, 2), (0, 1, 0, -1, 2), (1, 1, 0, 2, -1)),
        ((2, 1, 2, 1, 2, 3), (0, 1, 0, 2, 0, 1), (1, 0, 1, 0, 2, -1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [0.0, -1.5, -np.inf])
def test_padding(device: Device, shape: Shape, before: Shape, after: Shape, value: float) -> None:
    x = array(*shape)
    around = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    taken = tuple(slice(max(-b, 0), dim - max(-a, 0)) for b, a, dim in zip(before, after, shape, strict=True))
    expected = np.pad(x[taken], around, constant_values=value) if shape else x
    check_all_layouts(device, Pad("x", "y", ("y",), before, after, value), [x], expected)


# ---- Concat


@pytest.mark.parametrize(
    ("axis", "shapes"),
    [
        (0, [(3,), (1,), (7,)]),
        (1, [(3, 2), (3, 1), (3, 6)]),
        (0, [(1, 5, 2, 3), (2, 5, 2, 3)]),
        (1, [(2, 5, 2, 3), (2, 3, 2, 3)]),
        (1, [(2, 4, 2, 3), (2, 5, 2, 3), (2, 1, 2, 3), (2, 3, 2, 3), (2, 2, 2, 3)]),
        (2, [(2, 5, 2, 3), (2, 5, 1, 3), (2, 5, 3, 3)]),
        (1, [(2, 5, 2, 3), (2, 0, 2, 3)]),
        (3, [(2, 1, 2, 1, 2), (2, 1, 2, 3, 2)]),
        (5, [(2, 1, 2, 1, 2, 2), (2, 1, 2, 1, 2, 1)]),
        (1, [(2, 3)]),
    ],
    ids=str,
)
def test_concatenation(device: Device, axis: int, shapes: list[Shape]) -> None:
    operands = [normal(seeded(f"{number} {shape}"), *shape) for number, shape in enumerate(shapes)]
    check_all_layouts(device, concat(axis, len(shapes)), operands, np.concatenate(operands, axis))


# ---- Reshape


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((), (1, 1)),
        ((60,), (3, 4, 5)),
        ((2, 5, 3, 4), (2, 60)),
        ((2, 5, 3, 4), (0, -1)),
        ((2, 5, 3, 4), (4, 3, 5, 2)),
        ((2, 5, 3, 4), (1, 2, 3, 5, 4)),
        ((7, 6), (2, 7, 3, 1)),
        ((1, 3, 1, 4, 2), (2, 2, 3, 2)),
        ((2, 1, 3, 1, 2, 2), (2, 1, 1, 3, 2, 1, 2, 1)),
        ((2, 300), (0, 3, 10, 10)),
        ((0, 3, 4), (0, 12)),
    ],
    ids=str,
)
def test_reshaped(device: Device, shape: Shape, target: Shape) -> None:
    x = array(*shape)
    expected = x.reshape([shape[index] if dim == 0 else dim for index, dim in enumerate(target)])
    check_all_layouts(device, reshape(*target), [x], expected)


# ---- Gather


@pytest.mark.parametrize(
    ("shape", "axis", "indices"),
    [
        ((9,), 0, 4),
        ((9,), 0, [[1, 2], [0, 7], [8, 8]]),
        ((3, 5), 1, 4),
        ((3, 5), 1, [[0, 4, 2]]),
        ((2, 5, 3, 4), 0, [1, 1, 0]),
        ((2, 5, 3, 4), 1, [4, 0, 2, 1, 3, 4, 0]),
        ((2, 5, 3, 4), 3, [[3, 0], [1, 2]]),
        ((2, 1, 3, 2, 1, 4), 2, [2, 2, 0, 1]),
        ((2, 3, 2, 2, 1, 2), 1, [[[1, 0]], [[2, 2]]]),
        ((3, 5), 1, np.zeros((0,))),
    ],
    ids=str,
)
def test_gathered(device: Device, shape: Shape, axis: int, indices: object) -> None:
    x, op = array(*shape), gather(axis, indices)
    check_all_layouts(device, op, [x], np.asarray(x.take(op.indices, axis)))


def test_an_index_beyond_the_input_is_refused(device: Device) -> None:
    with pytest.raises(ModelError, match=r"Gather 'y': index 5 along dimension 1 of \(3, 5\); the input has the wrong"):
        compute(device, gather(1, [0, 5]), [array(3, 5)], (Layout.PLAIN,) * 2)


@pytest.mark.sanitize
@pytest.mark.parametrize("layouts", [*layouts_of((2, 5), (2, 5))], ids=str)
def test_small_shapes(device: Device, layouts: tuple[Layout, Layout]) -> None:
    x = array(2, 5)
    np.testing.assert_array_equal(compute(device, gather(1, [4, 0, 2]), [x], layouts), x[:, [4, 0, 2]])
    np.testing.assert_array_equal(compute(device, reshape(5, 2), [x], layouts), x.reshape(5, 2))
    np.testing.assert_array_equal(compute(device, concat(1, 2), [x, x], (layouts[0], *layouts)), np.hstack([x, x]))
