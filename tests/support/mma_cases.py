"""Cases for the mma.sync kernels alone: numbers as they are stored, exact results, and what may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.cpu_kernels import Array, launch
from tests.support.kernel_harness import seeded
from tests.support.reference import apply
from vgg16gpu.checks.accuracy import FLOAT32_EPSILON
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.lowering import mma_geometry
from vgg16gpu.compiler.lowering.mma_geometry import MmaTile
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.program.values import Element

POISON = 0xA5
GUARD = 256  # outputs
Float: TypeAlias = npt.NDArray[np.float64]


def bf16_bits(x: Array) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded)


def stored(x: Array, element: Element) -> Array:
    """Real numbers as the kernels store them (quantised elements: with a step of 1)."""
    with np.errstate(over="ignore", invalid="ignore"):
        match element:
            case Element.F32:
                return x.astype(np.float32)
            case Element.F16:
                return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))
            case Element.BF16:
                return bf16_bits(x.astype(np.float32))
            case Element.U8:
                return np.clip(np.where(np.isnan(x), 0, np.rint(x)), 0, 255).astype(np.uint8)
            case _:
                return np.clip(np.where(np.isnan(x), 0, np.rint(x)), -128, 127).astype(np.int8)


def values(bits: Array, element: Element) -> Float:
    """What stored elements stand for."""
    match element:
        case Element.F16:
            return bits.view(np.float16).astype(np.float64)
        case Element.BF16:
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case _:
            return bits.astype(np.float64)


def weight_element(element: Element) -> Element:
    return Element.S8 if element.nbytes == 1 else element


def random_values(random: np.random.Generator, element: Element, *shape: int, weights: bool = False) -> Array:
    """Stored numbers of unit scale, or of the whole range of a byte."""
    x = random.standard_normal(shape)
    kind = weight_element(element) if weights else element
    return stored(x * (50 if kind.nbytes == 1 else 1), kind)


# ---- Convolution


@dataclass(frozen=True)
class Case:
    """A convolution whose data are random."""

    shape: tuple[int, int, int, int]  # N, C, H, W
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    relu: bool = True
    pool: bool = False
    element: Element = Element.F16
    out_element: Element | None = None  # as `element`
    image: bool = False  # channels are padded to 16 bytes only

    def __str__(self) -> str:
        n, c, h, w = self.shape
        geometry = f"k{self.kernel[0]}x{self.kernel[1]}-s{self.strides[0]}x{self.strides[1]}"
        flags = "-relu" * self.relu + "-pool" * self.pool + "-image" * self.image
        return f"{self.element.name}-{self.output.name}-n{n}-c{c}-{h}x{w}-oc{self.filters}-{geometry}{flags}"

    @property
    def output(self) -> Element:
        return self.out_element or self.element

    @property
    def stored_channels(self) -> int:
        if self.image:
            per_piece = mma_geometry.PIECE_NBYTES // self.element.nbytes  # an image's map need not have 64 channels
            return -(-self.shape[1] // per_piece) * per_piece
        return self.element.padded(self.shape[1])


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of a case, as they are stored, and what is to come out."""

    case: Case
    x: Array  # (N,H,W,CP)
    weight: Array  # (OC,KH,KW,CP)
    dequant: Array
    bias: Array
    out_scale: Array
    exact: Float  # (N,OH,OW,OC) before it is rounded, in steps of the output


def padded(array: Array, channels: int) -> Array:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, channels - array.shape[-1])])


def make(case: Case) -> Problem:
    """Random inputs and weights; exact results in float64."""
    random = seeded(str(case))
    n, c, h, w = case.shape
    x = random_values(random, case.element, n, h, w, c)
    weight = random_values(random, case.element, case.filters, *case.kernel, c, weights=True)
    channels = math.ceil(case.filters / 64) * 64
    bias = padded(random.standard_normal(case.filters).astype(np.float32), channels)
    length = case.kernel[0] * case.kernel[1] * c
    spread = 50.0 * 50.0 * math.sqrt(length) if case.element.nbytes == 1 else 1.0
    dequant = padded((random.uniform(0.5, 2, case.filters) / spread).astype(np.float32), channels)
    out_scale = padded(random.uniform(20, 60, case.filters).astype(np.float32), channels)
    return Problem(case, x, weight, dequant, bias, out_scale, reference(case, x, weight, dequant, bias, out_scale))


def reference(case: Case, x: Array, weight: Array, dequant: Array, bias: Array, out_scale: Array) -> Float:
    """The convolution of tests/support/reference.py on the stored numbers, finished in float64."""
    channels = slice(case.filters)
    w64 = values(weight, weight_element(case.element)).transpose(0, 3, 1, 2)
    if case.element.nbytes == 1:
        w64 = w64 * dequant[channels, None, None, None].astype(np.float64)
    window = Window(case.kernel, case.strides, Pads(*case.pads))
    op = Conv("x", "y", ("y",), w64, bias[channels].astype(np.float64), window, case.relu, case.pool)  # type: ignore[arg-type]
    y = np.moveaxis(apply(op, values(x, case.element).transpose(0, 3, 1, 2)), 1, -1)
    return y * out_scale[channels].astype(np.float64) if case.output.nbytes == 1 else y


def guarded(element: Element, pixels: int, pitch: int) -> Array:
    """Room for `pixels` outputs, and for as many behind them as a careless tile could write."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.float32}[element.nbytes]
    array = np.empty((pixels + GUARD, pitch), np.int8 if element is Element.S8 else kind)
    array.view(np.uint8)[...] = POISON
    return array


def unguarded(array: Array) -> Array:
    """The outputs, once nothing has been found to be written behind them."""
    assert (array[-GUARD:].view(np.uint8) == POISON).all(), "written beyond the last output"
    return array[:-GUARD]


def run_conv(device: CpuDevice, problem: Problem, tile: MmaTile) -> tuple[Array, Array]:
    """(what is stored, the largest magnitude recorded for each image, NaN where none was)."""
    case = problem.case
    n, _, h, w = case.shape
    out_h, out_w = Window(case.kernel, case.strides, Pads(*case.pads)).output_size(h, w)
    if case.pool:
        out_h, out_w = out_h // 2 * 2, out_w // 2 * 2
    rows, pool = n * out_h * out_w, 2 if case.pool else 1
    pitch = case.output.padded(case.filters)
    out = guarded(case.output, rows // pool**2, pitch)
    maxima = np.zeros((n, 3), np.float32)
    launch(
        device,
        tile.conv_kernel(case.element, case.output, case.pool),
        [
            *(out, maxima, padded(problem.x, case.stored_channels), padded(problem.weight, case.stored_channels)),
            *(problem.dequant, problem.bias, problem.out_scale),
            *(rows, h, w, case.stored_channels, out_h, out_w, case.filters, pitch),
            *(*case.kernel, *case.strides, *case.pads[:2], int(case.relu), maxima.shape[1]),
        ],
        grid=mma_geometry.conv_grid(tile, rows, case.filters),
        block=(tile.threads,),
        shared=tile.shared,
    )
    assert not maxima[:, 1:].any()
    return unguarded(out).reshape(n, out_h // pool, out_w // pool, pitch), maxima[:, 0]


def check_output(out: Array, exact: Float, element: Element, length: int, exact_sums: bool) -> None:
    """Values within the rounding of the sums and of the element; padding zero."""
    channels = exact.shape[-1]
    assert not out[..., channels:].any(), "padding channels are not zero"
    y = values(out[..., :channels], element)
    if element.nbytes == 1:  # a sum near a half may be rounded either way
        lowest, highest = (0, 255) if element is Element.U8 else (-128, 127)
        np.testing.assert_allclose(y, np.clip(exact, lowest, highest), rtol=0, atol=0.5 + (1e-3 if exact_sums else 0.1))
        return
    unit = {Element.F32: 0.0, Element.F16: 2.0**-11, Element.BF16: 2.0**-8}[element]
    atol = 3e-5 if exact_sums else 4 * FLOAT32_EPSILON * length  # one chain of products of unit scale
    np.testing.assert_allclose(y, exact, rtol=unit * 1.001, atol=atol)


def check_conv(device: CpuDevice, case: Case, tile: MmaTile = mma_geometry.CPU_CONV_TILE) -> Array:
    """Run a case against float64."""
    problem = make(case)
    out, maxima = run_conv(device, problem, tile)
    length = case.shape[1] * case.kernel[0] * case.kernel[1]
    check_output(out, problem.exact, case.output, length, exact_sums=case.element.nbytes == 1)
    if case.output is Element.F16:
        np.testing.assert_array_equal(maxima, np.abs(values(out, Element.F16)).max(axis=(1, 2, 3)))
    else:
        assert not maxima.any()
    return out
