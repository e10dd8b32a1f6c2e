"""pack_blocks.cu: weights as the copy engine loads them, against numpy's transposition to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.layout.test_convert import encoded
from tests.support.kernel_harness import POISON, Bench, normal, seeded
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.op_kernels.base import ActivationScale, WeightPacker
from vgg16gpu.compiler.op_kernels.layout import pack
from vgg16gpu.compiler.op_kernels.wgmma import RawWeights, block_nbytes, pack_pairs, pack_raw, whole_tiles
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, DType, Pointer

FLOATS = (DType.F16, DType.BF16)
SHAPES = [(1, 1), (5, 3), (64, 64), (65, 64), (16, 70), (130, 128), (70, 200)]  # OC, C
TAPS = 9

Weights = npt.NDArray[Any]


def in_file(outputs: int, channels: int) -> RawWeights:
    """(OC, C, 3, 3) as an ONNX file holds it."""
    return RawWeights(outputs, channels, TAPS, (channels * TAPS, TAPS, 1))


def random_weights(element: DType, *shape: int) -> Weights:
    random = seeded(f"{element} {shape}")
    if element is DType.S8:
        return random.integers(-127, 128, shape, dtype=np.int8)
    return normal(random, *shape)


def in_blocks(weight: Weights, element: DType, block: int) -> Weights:
    """(block, tap, plane, OCP, channels of a block) from (OC, C, 9)."""
    outputs, channels, taps = weight.shape
    blocks = -(-channels // block)
    padded = np.zeros((whole_tiles(element.padded(outputs)), blocks * block, taps), weight.dtype)
    padded[:outputs, :channels] = weight
    lying = padded.reshape(-1, blocks, block, taps).transpose(1, 3, 0, 2)
    planes = encoded(lying, element) if element is not DType.S8 else lying
    if element is DType.F16_PAIR:
        return np.moveaxis(planes, 0, 2)
    if element is DType.S8:
        planes = planes.reshape(blocks, taps, -1, 8, 2, block).swapaxes(3, 4).reshape(lying.shape)
    return planes[:, :, None]


def raw_step(weight: Weights, rows: RawWeights, element: DType, block: int) -> tuple[KernelLaunch, int]:
    """The step that packs `weight`, and the bytes that it fills."""
    arena = WeightPacker()
    pack_raw(weight, rows, element, block, arena)
    (upload,) = arena.uploads
    assert upload.array is weight
    assert upload.pack is not None
    return upload.pack, arena.nbytes


def moved(step: KernelLaunch, places: dict[tuple[Arena, int], Pointer]) -> KernelLaunch:
    """The step with its pointers where a bench has put the arrays."""
    arguments = tuple(
        places[argument.arena, argument.offset] if isinstance(argument, Pointer) else argument
        for argument in step.arguments
    )
    return KernelLaunch(step.kernel, step.grid, step.block, arguments)


def packed_raw(device: Device, weight: Weights, element: DType, block: int) -> Weights:
    """All of the packed weights as they lie on the device, in one row."""
    outputs, channels = weight.shape[:2]
    step, nbytes = raw_step(weight, in_file(outputs, channels), element, block)
    bench = Bench(device)
    target = bench.room(nbytes)
    bench.run(moved(step, {(Arena.WEIGHTS, 0): target, (Arena.STAGING, 0): bench.put(weight)}))
    return bench.get(target, (nbytes,), np.uint8)


def check(found: Weights, expected: Weights) -> None:
    """Equal bytes, and nothing written behind them."""
    raw = np.ascontiguousarray(expected).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(found[: raw.size], raw)
    assert (found[raw.size :] == POISON).all()


@pytest.mark.first_case(reason="test_small_shapes has each element")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("element", [*FLOATS, DType.S8], ids=lambda e: e.name)
def test_weights_in_channel_blocks(device: Device, element: DType, shape: tuple[int, int]) -> None:
    weight = random_weights(element, *shape, 3, 3)
    block = block_nbytes(element, shape[1]) // element.nbytes
    found = packed_raw(device, weight, element, block)
    check(found, in_blocks(weight.reshape(*shape, TAPS), element, block))


def test_neighbouring_outputs_of_bytes_lie_eight_rows_apart(device: Device) -> None:
    """As a thread of wgmma holds them."""
    weight = np.zeros((32, 1, 3, 3), np.int8)
    weight[:, 0, 0, 0] = np.arange(32)
    found = packed_raw(device, weight, DType.S8, 64).view(np.int8)[: 64 * 64].reshape(64, 64)[:, 0]
    first = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    assert found.tolist() == first + [output + 16 for output in first] + [0] * 32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_are_scaled(device: Device, shape: tuple[int, int]) -> None:
    """From the float32 copy that the portable kernels use, which lies (tap, C, OC)."""
    outputs, channels = shape
    random = seeded(f"pairs {shape}")
    weight: Array = normal(random, TAPS, channels, outputs)
    arena = WeightPacker()
    row_scale, inp_scale = (np.exp2(random.integers(-5, 9, n)).astype(np.float32) for n in (outputs, channels))
    places = {name: Pointer(Arena.STAGING, i) for i, name in enumerate(("weight", "rows", "inp"))}
    x = ActivationScale(places["inp"], places["inp"], places["inp"], channels, False)
    rows = RawWeights(outputs, channels, TAPS, (1, outputs, outputs * channels))
    target = pack_pairs(places["weight"], rows, 64, places["rows"], x, arena)
    (step,) = arena.finish
    bench = Bench(device)
    room = bench.room(arena.nbytes)
    arrays = {"weight": weight, "rows": row_scale, "inp": inp_scale}
    where = {(places[name].arena, places[name].offset): bench.put(array) for name, array in arrays.items()}
    bench.run(moved(step, {**where, (target.arena, target.offset): room}))
    scaled = weight.transpose(2, 1, 0) * (row_scale[:, None] / inp_scale)[..., None]
    check(bench.get(room, (arena.nbytes,), np.uint8), in_blocks(scaled, DType.F16_PAIR, 64))


@pytest.mark.first_case(reason="test_small_shapes has each element")
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 3, 49), (5, 64, 4), (10, 130, 1)], ids=str)  # OUT, C, HW
@pytest.mark.parametrize("element", [*FLOATS, DType.S8], ids=lambda e: e.name)
def test_fully_connected(
    device: Device, element: DType, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(OUT, C * HW) in the file, (OUT, HW, padded C) on the device, some rows at a time."""
    outputs, channels, pixels = shape
    weight = random_weights(element, outputs, channels * pixels)
    monkeypatch.setattr(pack, "SLAB_NBYTES", 2 * weight[0].nbytes)
    arena = WeightPacker()
    target = pack.pack_gemm(weight, channels, pixels, arena, element, element.padded(channels))
    assert len(arena.uploads) == -(-outputs // 2)
    bench = Bench(device)
    room = bench.room(arena.nbytes)
    steps = []
    for upload in arena.uploads:
        assert upload.pack is not None
        goal, source = upload.pack.arguments[:2]
        assert isinstance(goal, Pointer)
        assert source == upload.target
        there = Pointer(room.arena, room.offset + goal.offset - target.offset)
        slab = bench.put(upload.array)
        steps.append(moved(upload.pack, {(goal.arena, goal.offset): there, (Arena.STAGING, 0): slab}))
    bench.run(*steps)
    padded = np.zeros((outputs, pixels, element.padded(channels)), weight.dtype)
    padded[..., :channels] = weight.reshape(outputs, channels, pixels).swapaxes(1, 2)
    check(bench.get(room, (arena.nbytes,), np.uint8), padded if element is DType.S8 else encoded(padded, element))


@pytest.mark.sanitize
@pytest.mark.parametrize("element", [*FLOATS, DType.S8], ids=lambda e: e.name)
def test_small_shapes(device: Device, element: DType) -> None:
    test_weights_in_channel_blocks(device, element, (5, 3))
