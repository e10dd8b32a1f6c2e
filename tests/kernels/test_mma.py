"""Compare what the mma.sync kernels are made of, as the CPU emulates it, with numpy; and their tiles.

conv/test_conv_mma.py and gemm/test_gemm_mma.py have the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.layout.test_convert import bf16_bits
from tests.support.cpu_kernels import Array, fixture_kernel, launch
from tests.support.kernel_harness import seeded
from vgg16gpu.compiler.op_kernels import mma
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import KernelError
from vgg16gpu.program.types import DType

Float: TypeAlias = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


def stored(x: Array, element: DType) -> Array:
    """Real numbers as the kernels store them (quantised elements: with a step of 1)."""
    with np.errstate(over="ignore", invalid="ignore"):
        match element:
            case DType.F16:
                return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))
            case DType.BF16:
                return bf16_bits(x.astype(np.float32))
            case DType.U8:
                return np.clip(np.where(np.isnan(x), 0, np.rint(x)), 0, 255).astype(np.uint8)
            case _:
                return np.clip(np.where(np.isnan(x), 0, np.rint(x)), -128, 127).astype(np.int8)


def values(bits: Array, element: DType) -> Float:
    """Return what stored elements stand for."""
    match element:
        case DType.F16:
            return bits.view(np.float16).astype(np.float64)
        case DType.BF16:
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case _:
            return bits.astype(np.float64)


def weight_element(element: DType) -> DType:
    return DType.S8 if element.nbytes == 1 else element


def random_values(random: np.random.Generator, element: DType, *shape: int, weights: bool = False) -> Array:
    """Stored numbers of unit scale, or of the whole range of a byte."""
    x = random.standard_normal(shape)
    kind = weight_element(element) if weights else element
    return stored(x * (50 if kind.nbytes == 1 else 1), kind)


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 65519.99, 65520.0, -65520.0, 2.0**-14, 2.0**-24, 2.0**-25]
SPECIAL += [2.0**-25 * 1.01, -(2.0**-15) * 1.0007, 0.5, 1.5, 2.5, -0.5, 126.5, 127.5, 128.5, 254.5, 255.5, -128.5]
SPECIAL += [-129.0, 1e-40, 3.4e38, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8]


@pytest.mark.sanitize
def test_values_are_rounded_to_the_nearest_element(device: CpuDevice) -> None:
    random = seeded("elements")
    wide = random.standard_normal(4000) * 2.0 ** random.integers(-30, 20, 4000)
    x = np.concatenate([np.array(SPECIAL), np.zeros(-len(SPECIAL) % 4), wide]).astype(np.float32)
    half, brain = np.zeros(x.size, np.uint16), np.zeros(x.size, np.uint16)
    u8, s8, rounded = np.zeros(x.size, np.uint8), np.zeros(x.size, np.int8), np.zeros(x.size, np.float32)
    launch(device, fixture_kernel("stored", "mma.cu"), [half, brain, u8, s8, rounded, x, x.size], block=(64,))
    np.testing.assert_array_equal(half, stored(x, DType.F16))
    np.testing.assert_array_equal(brain, bf16_bits(x))
    np.testing.assert_array_equal(u8, stored(x, DType.U8))
    np.testing.assert_array_equal(s8, stored(x, DType.S8))
    np.testing.assert_array_equal(rounded, values(stored(x, DType.F16), DType.F16).astype(np.float32))


# ---- Instructions: the fragments are written down here a second time, from the PTX ISA


def words(matrix: Array, row: int, k: int) -> int:
    """The register that holds consecutive k of a row, from k on."""
    per_word = 4 // matrix.itemsize
    return int.from_bytes(matrix[row, k : k + per_word].tobytes(), "little")


@pytest.mark.sanitize
@pytest.mark.parametrize("element", [DType.F16, DType.U8], ids=lambda e: e.name)
def test_a_product_of_16_by_8(device: CpuDevice, element: DType) -> None:
    random = seeded(element.name)
    k = 32 // element.nbytes
    a, b = random_values(random, element, 16, k, weights=True), random_values(random, element, 8, k)
    kind = np.int32 if element.nbytes == 1 else np.float32
    c = (100 * random.standard_normal((16, 8))).astype(kind)
    half_k = k // 2
    ra, rb, rc = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), kind)
    per_word = 4 // element.nbytes
    for lane in range(32):
        g, t = divmod(lane, 4)
        corners = ((g, 0), (g + 8, 0), (g, half_k), (g + 8, half_k))
        ra[lane] = [words(a, row, first + per_word * t) for row, first in corners]
        rb[lane] = [words(b, g, first + per_word * t) for first in (0, half_k)]
        rc[lane] = [c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1]]
    launch(device, fixture_kernel("registers", "mma.cu", ELEMENT=element.number), [rc, ra, rb])
    d = np.zeros((16, 8), kind)
    for lane in range(32):
        g, t = divmod(lane, 4)
        d[g, 2 * t : 2 * t + 2], d[g + 8, 2 * t : 2 * t + 2] = rc[lane, :2], rc[lane, 2:]
    exact = values(a, weight_element(element)) @ values(b, element).T + c
    if element.nbytes == 1:
        np.testing.assert_array_equal(d, exact)
    else:
        np.testing.assert_allclose(d, exact, rtol=0, atol=1e-4)


@pytest.mark.sanitize
def test_matrices_are_dealt_to_the_lanes(device: CpuDevice) -> None:
    x = np.arange(128, dtype=np.uint32).reshape(32, 4)
    y, y2 = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    launch(device, fixture_kernel("matrices", "mma.cu"), [y, y2, x])
    lane = np.arange(32)
    expected = np.stack([x[8 * m + lane // 4, lane % 4] for m in range(4)], axis=1)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(y2, expected[:, :2])


def test_misuse_is_reported(device: CpuDevice) -> None:
    with pytest.raises(KernelError, match="lane 7 names a row that does not lie on a multiple of 16"):
        launch(device, fixture_kernel("misaligned", "mma.cu"), [np.zeros(32, np.uint32)])
    with pytest.raises(KernelError, match="mma is called by the lanes 0000ffff"):
        launch(device, fixture_kernel("half_warp", "mma.cu"), [np.zeros(32, np.float32)])


# ---- Geometry


@pytest.mark.parametrize("shared_nbytes", [48 << 10, 64 << 10, 99 << 10, 163 << 10, 227 << 10])
def test_chosen_tiles_fit_and_follow_the_work(shared_nbytes: int) -> None:
    large = mma.choose_conv_tile(32 * 56 * 56, 256, 100, shared_nbytes)
    narrow = mma.choose_conv_tile(32 * 224 * 224, 64, 100, shared_nbytes)
    small = mma.choose_conv_tile(196, 512, 100, shared_nbytes)
    assert (large.out, narrow.out, small) == (128, 64, mma.SMALL)
    for batch in (1, 9, 128, 500):
        assert mma.choose_gemm_tile(batch, shared_nbytes).shared <= shared_nbytes
    assert max(tile.shared for tile in (large, narrow, small)) <= shared_nbytes
