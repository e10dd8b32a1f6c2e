"""kernels/layout/pack.cu: weights in the weight arena, compared with numpy's transposition to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits, normal, one_op, run_graph, seeded, stored
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Shape
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.base import WeightPacker
from vgg16gpu.compiler.op_kernels.conv.common import GROUP_ALIGNMENT
from vgg16gpu.compiler.op_kernels.layout import pack
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DType, Pointer, padded_channels


def packed_conv(device: Device, weight: Array) -> Array:
    """(KH * KW * padded C and more, padded OC) as it lies on the device."""
    filters, channels, rows, columns = weight.shape
    op = Conv("x", "y", ("y",), weight, None, Window((rows, columns), pads=Pads(rows, columns, rows, columns)))
    x = np.zeros((1, channels, 2, 2), np.float32)
    result = run_graph(device, one_op(op, x.shape), x)
    target = result.plan.weights.uploads[0].pack.arguments[0]  # type: ignore[union-attr]
    reduction = rows * columns * padded_channels(channels)
    return result.at(target, (-(-reduction // GROUP_ALIGNMENT) * GROUP_ALIGNMENT, padded_channels(filters)))


def packed_gemm(device: Device, weight: Array, x_shape: Shape) -> tuple[Array, int]:
    """(OUT, padded features) as it lies on the device, and how many uploads it took."""
    op = Gemm("x", "y", ("y",), weight, None, flattens=len(x_shape) == 4)
    result = run_graph(device, one_op(op, x_shape), np.zeros(x_shape, np.float32))
    uploads = [upload for upload in result.plan.weights.uploads if np.shares_memory(upload.array, weight)]
    target = uploads[0].pack.arguments[0] if uploads[0].pack else uploads[0].target
    pixels = int(np.prod(x_shape[2:]))
    return result.at(target, (len(weight), pixels * padded_channels(x_shape[1]))), len(uploads)


CONVOLUTIONS = [(1, 1, 1, 1), (4, 3, 3, 3), (5, 6, 3, 3), (64, 8, 1, 1), (7, 5, 2, 3), (3, 9, 7, 7), (130, 3, 3, 3)]


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolution(device: Device, shape: Shape) -> None:
    weight = normal(seeded(str(shape)), *shape)
    filters, channels, rows, columns = shape
    expected = np.zeros((rows, columns, padded_channels(channels), padded_channels(filters)), np.float32)
    expected[:, :, :channels, :filters] = weight.transpose(2, 3, 1, 0)
    packed = packed_conv(device, weight)
    expected = expected.reshape(-1, padded_channels(filters))
    assert_same_bits(packed[: len(expected)], expected)
    assert not packed[len(expected) :].any()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 7, 7), (1, 8, 3, 5), (1, 5, 1, 1), (1, 4, 1, 1)], ids=str)
@pytest.mark.parametrize("outputs", [1, 6])
def test_fully_connected_on_a_map(device: Device, shape: Shape, outputs: int) -> None:
    weight = normal(seeded(str(shape)), outputs, int(np.prod(shape[1:])))
    expected = stored(weight.reshape(outputs, *shape[1:])).reshape(outputs, -1)
    assert_same_bits(packed_gemm(device, weight, shape)[0], expected)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_slabs(device: Device, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large weight goes through the staging buffer some rows at a time."""
    weight = normal(seeded("slabs"), 10, 5 * 9)
    monkeypatch.setattr(pack, "SLAB_NBYTES", rows * weight[0].nbytes + 4)
    packed, uploads = packed_gemm(device, weight, (1, 5, 3, 3))
    assert uploads == -(-10 // rows)
    assert_same_bits(packed, stored(weight.reshape(10, 5, 3, 3)).reshape(10, -1))


def test_weights_that_lie_there_are_not_packed_again() -> None:
    arena = WeightPacker()
    conv, gemm = normal(seeded("conv"), 4, 8, 3, 3), normal(seeded("gemm"), 5, 40)
    packings: list[Callable[[], Pointer]] = [
        lambda: pack.pack_conv(conv, GROUP_ALIGNMENT, arena),
        lambda: pack.pack_gemm(gemm, 8, 5, arena),
        lambda: pack.pack_gemm(gemm, 5, 8, arena),  # the same weights behind another map
        lambda: pack.pack_gemm(gemm, 40, 1, arena),
        lambda: pack.pack_gemm(gemm, 8, 5, arena, DType.F16, 64),
        lambda: pack.pack_gemm(gemm, 8, 5, arena, DType.F32, 64),
    ]
    places = [make() for make in packings]
    nbytes = arena.nbytes
    assert len({place.offset for place in places}) == len(places) == len(arena.uploads)
    assert [make() for make in packings] == places
    assert (arena.nbytes, len(arena.uploads)) == (nbytes, len(places))


@pytest.mark.sanitize
def test_small_shapes(device: Device) -> None:
    packed_conv(device, normal(seeded("small"), 5, 3, 3, 2))
    packed_gemm(device, normal(seeded("small"), 3, 45), (1, 5, 3, 3))
