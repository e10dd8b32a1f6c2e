"""Numbers for a task: inputs and weights as they are stored, and in float64 what has to come out.

Images repeat: the even ones are alike, and the odd ones. So batches of any size need two images and two answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.bench.tune.tasks import TuneTask
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.compiler.op_kernels.conv import conv_first, conv_first_two, conv_wgmma
from vgg16gpu.compiler.op_kernels.gemm import fc_wgmma
from vgg16gpu.compiler.op_kernels.wgmma import block_nbytes, x_element
from vgg16gpu.program.types import DType, Pointer, TensorDesc

Doubles: TypeAlias = npt.NDArray[np.float64]
Weights: TypeAlias = Any  # of a kernel: a named tuple of arrays, or of such tuples
Stored: TypeAlias = npt.NDArray[Any]  # planes first, in the element's own type

IMAGES: Final = 2
PERIOD: Final = 1_000_003  # of the random numbers: prime, so that no tile meets the same ones
BYTES: Final = (DType.U8, DType.S8)
TAPS: Final = 9
ROW_SCALE: Final = 1024.0  # of float32 weights, brings them into float16's range

# Largest difference / largest magnitude that a kernel may show, by what it multiplies.
BOUNDS: Final = {
    DType.F32: 4e-6,
    DType.F16_PAIR: 4e-6,
    DType.F16: 1e-3,
    DType.BF16: 6e-3,
    DType.U8: 0.0,
    DType.S8: 0.0,
}


@dataclass(frozen=True, eq=False)
class Case:
    """What a task is run on.

    x: (planes, images, ...) as stored. constants: as the op module has them, with arrays in place of pointers.
    expected: (images, OH, OW, stored channels) or (images, stored features); a kernel may be wrong by `bound` of its
    largest magnitude.
    """

    x: Stored
    constants: Weights
    expected: Array
    bound: float

    @property
    def arrays(self) -> tuple[Stored, ...]:
        """The constants one behind the other, the weights first."""
        return tuple(_leaves(self.constants))

    def placed(self, places: Iterable[Pointer]) -> Weights:
        """Return the constants with a place for each of `arrays`."""
        return _filled(self.constants, iter(places))


def _leaves(constants: Weights) -> Iterator[Stored]:
    for item in constants:
        yield from _leaves(item) if isinstance(item, tuple) else (item,)


def _filled(constants: Weights, places: Iterator[Pointer]) -> Weights:
    """Return the same named tuple, and those in it, with the next place for each array."""
    kind: Any = type(constants)
    return kind._make(_filled(item, places) if isinstance(item, tuple) else next(places) for item in constants)


def case(task: TuneTask) -> Case:
    """Return the numbers of a task; the last ones again if nothing but the batch differs."""
    kinds: dict[Any, Callable[[TuneTask], Case]] = {
        conv_first_two: _chain,
        conv_wgmma: _conv,
        conv_first: _first,
        fc_wgmma: _gemm,
    }
    elements = getattr(task.x, "element", None), task.y.element
    name = replace(task.problem, batch=0), *elements
    if name not in _last:
        _last.clear()
        _last[name] = kinds[task.kernels](task)
    return _last[name]


_last: dict[object, Case] = {}  # holds one at most


@dataclass(frozen=True, eq=False)
class _Numbers:
    stored: Stored
    exact: npt.NDArray[Any]  # what `stored` stands for, planes added: float64, or what float32 and bytes are


def _noise(shape: tuple[int, ...], deviation: float = 1.0, seed: int = 0) -> npt.NDArray[np.float32]:
    period = np.random.default_rng(seed).standard_normal(PERIOD, np.float32) * np.float32(deviation)
    return np.resize(period, math.prod(shape)).reshape(shape)


def _store(element: DType, numbers: npt.NDArray[np.float32]) -> _Numbers:
    """Convert numbers to an element."""
    match element:
        case DType.F16:
            halves = numbers.astype(np.float16)
            return _Numbers(halves[None], halves)
        case DType.F16_PAIR:
            high = numbers.astype(np.float16)
            low = (numbers - high).astype(np.float16)
            return _Numbers(np.stack([high, low]), high.astype(np.float64) + low)
        case DType.BF16:
            bits = numbers.view(np.uint32)
            rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return _Numbers(rounded.astype(np.uint16)[None], (rounded << 16).view(np.float32))
        case DType.U8:
            bytes_ = np.rint(numbers).clip(0, 255).astype(np.uint8)
            return _Numbers(bytes_[None], bytes_)
        case DType.S8:
            signed = np.rint(numbers).clip(-127, 127).astype(np.int8)
            return _Numbers(signed[None], signed)
    return _Numbers(numbers[None], numbers)


def _inputs(element: DType, shape: tuple[int, ...]) -> _Numbers:
    """Return activations as a ReLU leaves them; signed bytes and pixels have both signs."""
    noise = _noise(shape, {DType.U8: 64.0, DType.S8: 40.0}.get(element, 1.0))
    return _store(element, noise if element is DType.S8 else np.maximum(noise, 0))


def _weights(element: DType, shape: tuple[int, ...]) -> _Numbers:
    """Return (OC, ...) weights, scaled as by He et al.; signed bytes for 8-bit elements."""
    element = DType.S8 if element is DType.U8 else element
    return _store(element, _noise(shape, 40.0 if element is DType.S8 else math.sqrt(2 / math.prod(shape[1:])), 1))


def _conv(task: TuneTask) -> Case:
    problem = task.problem
    x = _inputs(problem.element, (IMAGES, problem.height, problem.width, problem.channels))
    constants, expected = _convolution(task.layer, x.exact, task.y.element)
    return Case(x.stored, constants, expected.astype(np.float32), BOUNDS[problem.element])


def _convolution(
    layer: OpContext[Any], x: npt.NDArray[Any], stored: DType
) -> tuple[conv_wgmma.ConvWeights[Stored], Doubles]:
    """Return the constants of conv_wgmma, and its results for `x`, of the layer's element, before they are stored."""
    element, channels = x_element(layer), x.shape[-1]
    outputs = element.padded(layer.op.weight.shape[0])
    weight = _weights(element, (outputs, channels, TAPS))
    block = block_nbytes(element, channels) // element.nbytes
    planes = [
        _permuted(plane, element).reshape(outputs, channels // block, block, TAPS).transpose(1, 3, 0, 2)
        for plane in weight.stored
    ]
    finish, values = _finished(layer, stored, _convolved(x, weight.exact.reshape(outputs, channels, 3, 3)))
    return conv_wgmma.ConvWeights(np.ascontiguousarray(np.stack(planes, axis=2)), *finish), values


_FACTORS = {DType.U8: DType.S8, DType.F16_PAIR: DType.F32}
"""What the first convolution takes in, by what it gives, where the two differ."""


def _first(task: TuneTask) -> Case:
    source, constants, expected = _first_convolution(task.layer, task.problem.element)
    return Case(source, constants, expected.astype(np.float32), BOUNDS[task.problem.element])


def _chain(task: TuneTask) -> Case:
    first, second = task.layer.parts
    element = task.problem.element
    source, constants, between = _first_convolution(first, element)
    if element not in BYTES:  # those are whole numbers already
        between = _store(element, between.astype(np.float32)).exact.astype(np.float64)
    constants2, expected = _convolution(second, between, element)
    both = conv_first_two.ConvPairWeights(constants, constants2)
    return Case(source, both, expected.astype(np.float32), BOUNDS[element])


def _first_convolution(
    layer: OpContext[Any], stored: DType
) -> tuple[Stored, conv_first.FirstConvWeights[Stored], Doubles]:
    """Return a source, the constants of conv_first, and its results, before they are stored as `stored`."""
    _, channels, height, width = layer.x_shape
    outputs = stored.padded(layer.op.weight.shape[0])
    element = _FACTORS.get(stored, stored)
    x = _store(element, _noise((IMAGES, height, width, channels), 40.0 if element is DType.S8 else 1.0))
    weight = _weights(element, (outputs, channels, TAPS))
    length = TAPS * channels
    rows = np.zeros((outputs, conv_first.row_length(length, element.nbytes)), weight.stored.dtype)
    rows[:, :length] = weight.stored[0].transpose(0, 2, 1).reshape(outputs, length)
    sums = _convolved(x.exact, weight.exact.reshape(outputs, channels, 3, 3))
    (bias, dequant, out_scale), values = _finished(layer, stored, sums)
    row_scale = np.ones_like(dequant)
    if element is DType.F32:
        row_scale *= np.float32(ROW_SCALE)
    source = x.exact.astype(np.float32).transpose(0, 3, 1, 2)
    constants = conv_first.FirstConvWeights(
        weight=_permuted(rows, element),
        weight_scale=row_scale,
        bias=bias,
        dequant=dequant / row_scale,
        out_scale=out_scale,
        in_scale=np.ones(1, np.float32),
    )
    return np.ascontiguousarray(source)[None], constants, values


def _gemm(task: TuneTask) -> Case:
    problem, element = task.problem, x_element(task.layer)
    assert isinstance(task.x, TensorDesc)  # conv_first alone reads a Source
    x = _inputs(task.x.element, (IMAGES, problem.length))
    weight = _weights(problem.stored, (problem.outputs, problem.length))
    parts = range(0, problem.outputs, 512)
    exact = x.exact.astype(np.float64)
    sums = np.concatenate([exact @ weight.exact[i : i + 512].astype(np.float64).T for i in parts], axis=1)
    padding = element.padded(problem.outputs) - problem.outputs
    (bias, dequant, out_scale), expected = _finished(task.layer, task.y.element, np.pad(sums, ((0, 0), (0, padding))))
    expected[:, problem.outputs :] = 0
    ones, row_scale = np.ones_like(dequant), np.ones_like(dequant)
    if element is DType.F16_PAIR:
        row_scale *= np.float32(ROW_SCALE)
    constants = fc_wgmma.FcWeights(
        weight=weight.stored,
        bias=bias,
        dequant=dequant / row_scale,
        pairs_dequant=ones,
        plain_dequant=dequant,
        out_scale=out_scale,
        row_scale=row_scale,
    )
    return Case(x.stored, constants, expected[:, : task.y.pitch].astype(np.float32), BOUNDS[element])


def _permuted(rows: Stored, element: DType) -> Stored:
    """Return rows of bytes in the order of wgmma_tile.cuh: rows r, r + 8 of every 16 are channels 2r, 2r + 1."""
    if element not in BYTES:
        return rows
    return rows.reshape(-1, 8, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _convolved(x: npt.NDArray[Any], weight: npt.NDArray[Any]) -> Doubles:
    """Return the sums of a 3x3 convolution with padding 1: (N, H, W, C) and (OC, C, 3, 3) to (N, H, W, OC)."""
    images, height, width, channels = x.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    sums = np.zeros((images * height * width, len(weight)))
    for row in range(3):
        for column in range(3):
            taps = padded[:, row : row + height, column : column + width].reshape(-1, channels)
            sums += taps @ weight[:, :, row, column].astype(np.float64).T
    return sums.reshape(images, height, width, -1)


def _finished(layer: OpContext[Any], stored: DType, sums: Doubles) -> tuple[tuple[Stored, Stored, Stored], Doubles]:
    """Return (bias, dequant, out_scale), and a kernel's results of exact sums with them, before rounding.

    Bytes: sums become bytes by a power of two and whole numbers, so that float32 is exact.
    """
    op, element, channels = layer.op, x_element(layer), sums.shape[-1]
    exact = element in BYTES
    scale = 2.0 ** -round(math.log2(sums.std() / 40)) if exact else 1.0
    bias = np.rint(_noise((channels,), 8.0, 2)) if exact else _noise((channels,), 0.1, 2)
    values = sums * scale + bias
    if op.relu:
        values = np.maximum(values, 0)
    if getattr(op, "pool", False):
        images, height, width, _ = values.shape
        even = values[:, : height // 2 * 2, : width // 2 * 2]
        values = even.reshape(images, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
    if stored in BYTES:
        values = np.rint(values).clip(0 if stored is DType.U8 else -128, 255 if op.relu else 127)
    ones = np.ones(channels, np.float32)
    return (bias, ones * np.float32(scale), ones), values
