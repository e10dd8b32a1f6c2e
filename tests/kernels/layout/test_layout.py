"""kernels/layout/layout.cu: conversions to the last bit, and status words that accuse the right images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_harness import Result, assert_same_bits, normal, one_op, run_graph, run_op, seeded, stored
from vgg16gpu.compiler.graph.ops import Array, Flatten, Identity, Shape
from vgg16gpu.compiler.op_kernels.layout.layout import input_blocks
from vgg16gpu.devices.base import Device

COPY = Identity("x", "y", ("y",))
SHAPES: tuple[Shape, ...] = (
    (1, 1, 1, 1),
    (2, 3, 1, 1),
    (1, 3, 16, 16),
    (3, 3, 17, 15),
    (2, 4, 5, 52),
    (5, 5, 16, 17),
    (1, 130, 3, 2),
    (2, 1, 128, 128),
    (2, 3, 130, 129),  # more pixels than 64 blocks have threads
    (1, 1),
    (3, 10),
    (2, 1000),
)


def image(shape: Shape) -> Array:
    return normal(seeded(str(shape)), *shape)


def take_in(device: Device, x: Array) -> Result:
    return run_graph(device, one_op(COPY, x.shape), x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_input_lies_channels_last_with_zeros_behind(device: Device, shape: Shape) -> None:
    """And comes out with the bits that it had; no image is accused, however large its numbers are."""
    x = image(shape)
    x.flat[0], x.flat[-1] = -0.0, np.finfo(np.float32).max
    result = take_in(device, x)
    value = result.program.values[0]
    assert_same_bits(result.at(value.pointer, value.stored_shape), stored(x))
    assert_same_bits(result.outputs[0], x)
    assert not result.status.any()
    assert not result.nonfinite.any()


@pytest.mark.parametrize("inner", [False, True], ids=["output", "inner"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) == 4], ids=str)
def test_flatten(device: Device, shape: Shape, inner: bool) -> None:
    x = image(shape)
    assert_same_bits(run_op(device, Flatten("x", "y", ("y",)), x, inner=inner), x.reshape(len(x), -1))


# ---- Status


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(5, 3, 17, 15), (4, 1, 1, 1), (3, 3, 130, 129), (5, 10)], ids=str)
def test_only_images_with_a_nonfinite_value_are_accused(device: Device, shape: Shape, bad: float) -> None:
    x = image(shape)
    flat = x.reshape(len(x), -1)
    guilty = [1, len(x) - 1]
    flat[guilty[0], 0] = bad
    flat[guilty[1], -1] = bad
    assert np.flatnonzero(take_in(device, x).nonfinite).tolist() == guilty


@pytest.mark.parametrize("place", [0, 31, 32, 255, 256, 16383, 16384, 16769])
def test_a_nan_is_found_wherever_it_is(device: Device, place: int) -> None:
    x = image((2, 2, 130, 129))
    x.reshape(2, 2, -1)[1, 1, place] = np.nan
    assert take_in(device, x).status.tolist() == [0, 1]


def test_input_blocks() -> None:
    sizes = {"cuda": (1, 256, 257, 16384, 16385), "cpu": (1, 4096, 4097, 262_144, 300_000)}
    for kind, of_kind in sizes.items():
        assert [input_blocks((1, 3, 1, pixels), kind) for pixels in of_kind] == [1, 1, 2, 64, 64]
    assert input_blocks((7, 1000), "cuda") == 1


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(2, 3, 17, 16), (2, 5)], ids=str)
def test_small_shapes(device: Device, shape: Shape) -> None:
    x = image(shape)
    assert_same_bits(take_in(device, x).outputs[0], x)
