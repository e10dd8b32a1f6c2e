"""The mma.sync kernels and the CPU's emulation of what they are made of, against numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.support.cpu_kernels import Array, fixture_kernel, launch
from tests.support.kernel_harness import seeded
from tests.support.mma_cases import (
    Case,
    Problem,
    bf16_bits,
    check_conv,
    check_output,
    guarded,
    make,
    padded,
    random_values,
    reference,
    run_conv,
    stored,
    unguarded,
    values,
    weight_element,
)
from vgg16gpu.compiler.lowering import mma_geometry
from vgg16gpu.compiler.lowering.mma_geometry import CONV_TILES, GEMM_TILES, LARGE_48K, OPERANDS, MmaTile
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import KernelError
from vgg16gpu.program.values import Element


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


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
    np.testing.assert_array_equal(half, stored(x, Element.F16))
    np.testing.assert_array_equal(brain, bf16_bits(x))
    np.testing.assert_array_equal(u8, stored(x, Element.U8))
    np.testing.assert_array_equal(s8, stored(x, Element.S8))
    np.testing.assert_array_equal(rounded, values(stored(x, Element.F16), Element.F16).astype(np.float32))


# ---- Instructions: the fragments are written down here a second time, from the PTX ISA


def words(matrix: Array, row: int, k: int) -> int:
    """The register that holds consecutive k of a row, from k on."""
    per_word = 4 // matrix.itemsize
    return int.from_bytes(matrix[row, k : k + per_word].tobytes(), "little")


@pytest.mark.sanitize
@pytest.mark.parametrize("element", OPERANDS, ids=lambda e: e.name)
def test_a_product_of_16_by_8(device: CpuDevice, element: Element) -> None:
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


def tile_id(tile: MmaTile) -> str:
    return f"{tile.out}x{tile.px}x{tile.k_nbytes}"


def ids(cases: Sequence[Case]) -> list[object]:
    return [pytest.param(case, id=str(case)) for case in cases]


SHAPES = (
    Case((1, 64, 8, 8), 64),
    Case((1, 64, 8, 8), 64, pool=True),
    Case((2, 100, 7, 7), 70),
    Case((2, 100, 7, 7), 70, pool=True),
    Case((3, 3, 15, 13), 64, image=True),
    Case((1, 3, 4, 4), 5, relu=False, image=True),
    Case((1, 1, 1, 1), 1, (1, 1), pads=(0, 0, 0, 0)),
    Case((9, 64, 1, 1), 65, (1, 1), pads=(0, 0, 0, 0)),
    Case((40, 8, 2, 2), 4, pool=True),
    Case((1, 5, 9, 8), 6, (5, 5), pads=(2, 2, 2, 2)),
    Case((1, 3, 17, 17), 6, (7, 7), (2, 2), (3, 3, 3, 3), image=True),
    Case((2, 65, 10, 11), 130, (3, 3), (3, 2)),
    Case((1, 20, 11, 11), 6, (5, 5), (2, 2), (2, 1, 0, 2), pool=True),
    Case((1, 3, 9, 8), 6, (2, 3), (2, 1), (0, 1, 1, 0), relu=False),
    Case((1, 1, 1, 300), 3),
)
ELEMENTS = tuple(
    replace(case, element=element, out_element=out_element)
    for case in (SHAPES[2], SHAPES[3])
    for element, out_element in [
        *((e, e) for e in OPERANDS[1:]),
        *((e, Element.F32) for e in OPERANDS),
        *((Element.U8, Element.F16), (Element.S8, Element.U8), (Element.BF16, Element.S8)),
    ]
    if not case.pool or element is out_element
)
SANITIZED = (SHAPES[3], SHAPES[5], SHAPES[13], replace(SHAPES[3], element=Element.U8))


@pytest.mark.parametrize("case", ids(SHAPES))
def test_convolutions(device: CpuDevice, case: Case) -> None:
    check_conv(device, case)


@pytest.mark.first_case(reason="test_conv_mma.py has elements")
@pytest.mark.parametrize("case", ids(ELEMENTS))
def test_elements_of_convolutions(device: CpuDevice, case: Case) -> None:
    check_conv(device, case)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", ids(SANITIZED))
def test_small_convolutions(device: CpuDevice, case: Case) -> None:
    check_conv(device, case)


@pytest.mark.first_case(reason="test_conv_mma.py has tiles")
@pytest.mark.parametrize("tile", CONV_TILES, ids=tile_id)
@pytest.mark.parametrize("case", ids([SHAPES[3], replace(SHAPES[11], element=Element.S8)]))
def test_every_tile_gives_the_same_bits(device: CpuDevice, case: Case, tile: MmaTile) -> None:
    np.testing.assert_array_equal(check_conv(device, case, tile), run_conv(device, make(case), mma_geometry.SMALL)[0])


@pytest.mark.first_case(reason="test_conv_mma.py and test_gemm_mma.py have shapes")
@pytest.mark.parametrize("pool", [False, True])
def test_an_image_has_the_same_bits_in_any_batch_and_position(device: CpuDevice, pool: bool) -> None:
    problem = make(Case((4, 64, 6, 6), 64, pool=pool))
    together, maxima = run_conv(device, problem, mma_geometry.LARGE)
    for i in range(4):
        alone = replace(problem, x=problem.x[[i]], case=replace(problem.case, shape=(1, 64, 6, 6)))
        out, maximum = run_conv(device, alone, mma_geometry.SMALL)
        np.testing.assert_array_equal(out[0], together[i])
        np.testing.assert_array_equal(maximum[0], maxima[i])


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("bad", "recorded"), [(np.nan, np.nan), (np.inf, np.nan), (6e4, np.inf)])
def test_what_is_not_finite_is_kept_and_recorded(device: CpuDevice, bad: float, recorded: float, pool: bool) -> None:
    """The image next to it and the padding channels keep their numbers."""
    problem = make(Case((3, 64, 6, 6), 70, relu=False, pool=pool))
    clean, clean_maxima = run_conv(device, problem, mma_geometry.MEDIUM)
    problem.x[1, 2, 3, :7] = stored(np.full(7, bad), Element.F16)
    out, maxima = run_conv(device, problem, mma_geometry.MEDIUM)
    np.testing.assert_array_equal(out[[0, 2]], clean[[0, 2]])
    np.testing.assert_array_equal(maxima[[0, 2]], clean_maxima[[0, 2]])
    assert not out[..., 70:].any()
    np.testing.assert_array_equal(maxima[1], np.float32(recorded))
    assert not np.isfinite(values(out[1], Element.F16)).all()


def test_nan_reaches_the_outputs_whose_window_holds_it(device: CpuDevice) -> None:
    """No others: what fills up the last stage of the reduction is zero, whatever the pixels hold."""
    problem = make(Case((1, 3, 9, 8), 64, image=True))
    problem.x[0, 4, 3] = stored(np.full(3, np.nan), Element.F16)
    out, _ = run_conv(device, problem, mma_geometry.SMALL)
    reached = np.zeros((9, 8), np.bool_)
    reached[3:6, 2:5] = True
    np.testing.assert_array_equal(np.isnan(values(out[0], Element.F16)), np.repeat(reached[..., None], 64, axis=2))


def test_int32_sums_are_exact(device: CpuDevice) -> None:
    """Weights and activations at the ends of their ranges: only the conversion to float rounds."""
    case = Case((1, 320, 5, 5), 64, element=Element.U8, out_element=Element.F32, relu=False)
    problem = make(case)
    problem.x[...] = 255 - (problem.x % 2)
    problem.weight[...] = np.where(problem.weight > 0, 127, -128)
    problem.dequant[:], problem.bias[:] = 1, 0
    out, _ = run_conv(device, problem, mma_geometry.MEDIUM)
    exact = reference(case, problem.x, problem.weight, problem.dequant, problem.bias, problem.out_scale)
    np.testing.assert_array_equal(out[..., :64], exact.astype(np.float32))


# ---- Fully connected layers


def run_gemm(device: CpuDevice, x: Array, weight: Array, problem: Problem, tile: MmaTile) -> tuple[Array, Array]:
    """(what is stored, recorded magnitudes) of x (N,KP) times weight (OUT,KP)."""
    case = problem.case
    batch, features = x.shape
    outputs = weight.shape[0]
    k_nbytes = features * case.element.nbytes
    parts, part_nbytes = mma_geometry.gemm_parts(k_nbytes)
    pitch = case.output.padded(outputs)
    out_stored = math.ceil(outputs / 64) * 64
    assert mma_geometry.gemm_workspace_nbytes(batch, outputs, k_nbytes) == 4 * parts * batch * out_stored
    partial = guarded(Element.F32, parts * batch, out_stored)
    out, maxima = guarded(case.output, batch, pitch), np.zeros(batch, np.float32)
    gemm, finish = tile.gemm_kernels(case.element, case.output)
    launch(
        device,
        gemm,
        [partial, x, weight, batch, outputs, features, part_nbytes],
        grid=mma_geometry.gemm_grid(tile, batch, outputs, k_nbytes),
        block=(tile.threads,),
        shared=tile.shared,
    )
    unguarded(partial)
    launch(
        device,
        finish,
        [
            *(out, maxima, partial, problem.dequant, problem.bias, problem.out_scale),
            *(batch, outputs, pitch, parts, int(case.relu), 1),
        ],
        grid=mma_geometry.finish_grid(batch, pitch),
        block=(mma_geometry.FINISH_THREADS,),
    )
    return unguarded(out), maxima


def gemm_case(batch: int, features: int, outputs: int, element: Element, out_element: Element) -> Case:
    """A fully connected layer is a 1x1 convolution of maps of one pixel."""
    shape = (batch, features, 1, 1)
    return Case(shape, outputs, (1, 1), pads=(0, 0, 0, 0), element=element, out_element=out_element)


def check_gemm(device: CpuDevice, case: Case, tile: MmaTile) -> Array:
    problem = make(case)
    x, weight = problem.x[:, 0, 0], problem.weight[:, 0, 0]
    out, maxima = run_gemm(device, padded(x, case.stored_channels), padded(weight, case.stored_channels), problem, tile)
    exact = problem.exact[:, 0, 0]
    check_output(out, exact, case.output, case.shape[1], exact_sums=case.element.nbytes == 1)
    if case.output is Element.F16:
        np.testing.assert_array_equal(maxima, np.abs(values(out, Element.F16)).max(axis=1))
    return out


@pytest.mark.first_case(reason="test_gemm_mma.py has tiles")
@pytest.mark.parametrize("tile", [*GEMM_TILES, LARGE_48K], ids=tile_id)
def test_every_gemm_tile_gives_the_same_bits(device: CpuDevice, tile: MmaTile) -> None:
    case = gemm_case(19, 1500, 130, Element.F16, Element.F16)
    out = check_gemm(device, case, tile)
    np.testing.assert_array_equal(out, check_gemm(device, case, mma_geometry.CPU_GEMM_TILE))


@pytest.mark.parametrize("element", OPERANDS[1:], ids=lambda e: e.name)
def test_elements_of_gemms(device: CpuDevice, element: Element) -> None:
    check_gemm(device, gemm_case(19, 1500, 130, element, element), mma_geometry.CPU_GEMM_TILE)


@pytest.mark.sanitize
@pytest.mark.parametrize("features", [1, 64, 500, 3000])
@pytest.mark.parametrize("element", [Element.F16, Element.U8], ids=lambda e: e.name)
def test_gemm_to_float32(device: CpuDevice, features: int, element: Element) -> None:
    check_gemm(device, gemm_case(3, features, 10, element, Element.F32), mma_geometry.CPU_GEMM_TILE)


# ---- Geometry


@pytest.mark.parametrize("k_nbytes", [16, 128, 1008, 1024, 2048, 5000, 8192, 16384, 50176])
def test_parts_cover_the_reduction(k_nbytes: int) -> None:
    parts, part_nbytes = mma_geometry.gemm_parts(k_nbytes)
    assert 1 <= parts <= mma_geometry.MAX_PARTS
    assert part_nbytes % mma_geometry.PART_ALIGNMENT == 0
    assert (parts - 1) * part_nbytes < k_nbytes <= parts * part_nbytes


@pytest.mark.parametrize("shared_nbytes", [48 << 10, 64 << 10, 99 << 10, 163 << 10, 227 << 10])
def test_chosen_tiles_fit_and_follow_the_work(shared_nbytes: int) -> None:
    large = mma_geometry.choose_conv_tile(32 * 56 * 56, 256, 100, shared_nbytes)
    narrow = mma_geometry.choose_conv_tile(32 * 224 * 224, 64, 100, shared_nbytes)
    small = mma_geometry.choose_conv_tile(196, 512, 100, shared_nbytes)
    assert (large.out, narrow.out, small) == (128, 64, mma_geometry.SMALL)
    for batch in (1, 9, 128, 500):
        assert mma_geometry.choose_gemm_tile(batch, shared_nbytes).shared <= shared_nbytes
    assert max(tile.shared for tile in (large, narrow, small)) <= shared_nbytes
