"""Choose int8 steps: of activations by their histogram, of weights by channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import (
    Array,
    Conv,
    Elementwise,
    Flatten,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    Identity,
    Op,
    Pool,
    Relu,
    Softmax,
)
from vgg16gpu.errors import InputError, ModelError

Doubles: TypeAlias = npt.NDArray[np.float64]

METHOD: Final = "least mean squared error"  # of all elements, rounding and clipping together

_DROPPED_BITS: Final = 13  # of a float32's 23: a bin is 1/1024 of an octave wide, a quarter of the step at 255 steps
BINS: Final = 0x7F800000 >> _DROPPED_BITS  # all finite magnitudes
_STEPS_PER_OCTAVE: Final = 16
_OCTAVES: Final = 6  # below the largest magnitude; what clips more than that is noise


def check_finite(largest: float, name: str) -> None:
    """Raise InputError where the largest magnitude of the value called `name` is NaN or infinite."""
    if not np.isfinite(largest):
        raise InputError(f"value '{name}' becomes NaN or infinite on these images: int8 needs others, or use fp32")


class Histogram:
    """Counts of |x| in bins of equal relative width: the leading bits of a float are its bin.

    No range has to be known before, and the order in which images come does not matter.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(BINS, np.int64)
        self.largest = 0.0

    def add(self, x: Array, name: str) -> None:
        """Count the elements of `x`, a value called `name`. Raises InputError when one is NaN or infinite."""
        magnitudes = np.abs(x, dtype=np.float32).ravel()
        largest = float(magnitudes.max(initial=0.0))
        check_finite(largest, name)
        self.add_counts(np.bincount(magnitudes.view(np.uint32) >> _DROPPED_BITS, minlength=BINS), largest)

    def add_counts(self, counts: npt.NDArray[np.int64], largest: float) -> None:
        """Add what was counted elsewhere: (BINS,) counts by a magnitude's leading bits, and the largest magnitude."""
        self._counts += counts
        self.largest = max(self.largest, largest)

    def add_all(self, other: Histogram) -> None:
        """Add what another one has counted."""
        self.add_counts(other._counts, other.largest)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was ever added."""
        return not self._counts.any()

    def best_scale(self, *, signed: bool) -> Scale:
        """Return the scale of least mean squared error; of equally good steps the largest.

        Tried are steps that put the largest integer at the largest magnitude, and at 1/16 of an octave less each time.
        A value that was always zero gets the integers' range for -1..1.
        """
        limit = Scale(1.0, signed).limits[1]
        ends = (self.largest or 1.0) * 2.0 ** (-np.arange(_OCTAVES * _STEPS_PER_OCTAVE + 1) / _STEPS_PER_OCTAVE)
        steps = np.maximum((ends / limit).astype(np.float32), np.float32(SMALLEST_STEP))
        magnitudes, counts = self._bins()
        errors = [_squared_error(magnitudes, counts, float(step), limit) for step in steps]
        return Scale(float(steps[np.argmin(errors)]), signed)

    def clipped_share(self, scale: Scale) -> float:
        """Return the share of elements that are beyond the largest magnitude that `scale` rounds to."""
        magnitudes, counts = self._bins()
        beyond = int(counts[magnitudes > scale.step * (scale.limits[1] + 0.5)].sum())
        return beyond / max(int(counts.sum()), 1)

    def _bins(self) -> tuple[Doubles, npt.NDArray[np.int64]]:
        """Return (centres, counts) of the bins that are not empty, by rising magnitude."""
        used = np.flatnonzero(self._counts)
        edges = np.stack([used, used + 1]).astype(np.uint32) << _DROPPED_BITS
        return edges.view(np.float32).astype(np.float64).mean(axis=0), self._counts[used]


def _squared_error(magnitudes: Doubles, counts: npt.NDArray[np.int64], step: float, limit: int) -> float:
    rounded = np.minimum(np.rint(magnitudes / step), limit) * step
    return float(np.square(magnitudes - rounded) @ counts)


Integers8: TypeAlias = npt.NDArray[np.int8]
Run: TypeAlias = Callable[[Callable[[slice], None], Iterable[slice]], Iterable[None]]

WEIGHT_LIMIT: Final = 127  # the largest weight of an output channel; only files with integers of their own use -128
SMALLEST_STEP: Final = float(np.finfo(np.float32).tiny)  # below it a quotient by the step would lose bits or overflow
_BLOCK: Final = 1 << 19  # weights turned into integers at a time: temporaries that stay in the cache
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True)
class Scale:
    """How a value is held in a byte: q * step with q in 0..255, or in -128..127 when `signed`.

    `step` is a float32 number above zero.
    """

    step: float
    signed: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest q."""
        return (-128, 127) if self.signed else (0, 255)

    @property
    def inverse(self) -> np.float32:
        """1 / step in float32, the factor of a value before it is rounded."""
        return np.float32(1) / np.float32(self.step)

    @property
    def element(self) -> str:
        """The name of the type: u8 or s8."""
        return "s8" if self.signed else "u8"


Scales: TypeAlias = Mapping[str, Scale]


@dataclass(frozen=True, eq=False)
class QuantisedOp:
    """The integers of a Conv or Gemm: y = finish(sum of x * weight), with x and y as their scales say.

    finish, for output channel oc, in float32: v = fmaf(float(sum), dequant[oc], bias[oc]); ReLU and pooling as the op
    says; stored is v itself where `y` is None, else rint(v * y.inverse), saturated.
    """

    weight: Integers8  # (OC, C, KH, KW) or (OUT, IN)
    weight_steps: Array  # (OC,)
    x: Scale
    y: Scale | None

    @property
    def dequant(self) -> Array:
        """(OC,): what one unit of the sum is worth."""
        return np.float32(self.x.step) * self.weight_steps


def quantise(graph: Graph, scales: Scales) -> Mapping[str, QuantisedOp]:
    """Return the integers of every Conv and Gemm whose input has a scale, by the op's result.

    Raises ModelError for weights that integers cannot hold.
    """
    stored = stored_scales(graph, scales)
    ops = [op for op in graph.ops if isinstance(op, Conv | Gemm) and op.x in scales]
    with ThreadPoolExecutor() as pool:
        return {op.y: quantise_op(op, scales[op.x], stored[op.y], pool.map) for op in ops}


def quantise_op(op: Conv | Gemm, x: Scale, y: Scale | None, run: Run = map) -> QuantisedOp:
    """Quantise one op that reads with scale `x` and stores with scale `y`, or float32 for None.

    `run` calls a function with many parts, as `map` does or the `map` of a thread pool: numpy releases the GIL. Raises
    ModelError for weights or biases that are not finite, and for sums that could leave int32.
    """
    name = f"{type(op).__name__} '{op.y}'"
    if op.bias is not None and not np.isfinite(op.bias).all():
        raise ModelError(f"{name}: its bias holds NaN or Inf, which int8 would hide; repair the model or use fp32")
    weight, steps = weight_integers(op.weight, run, op.weight_steps)
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.float32(x.step) * steps).all()
    if not finite:
        raise ModelError(f"{name}: its weights hold NaN, Inf or huge numbers; repair the model or use fp32")
    largest = max(map(abs, x.limits)) * _largest_sum(weight)
    if largest > _INT32_MAX:
        raise ModelError(
            f"{name}: a sum of {weight[0].size:,} products could reach {largest:,}, int32 ends at {_INT32_MAX:,}; "
            "use a smaller image or another precision"
        )
    return QuantisedOp(weight, steps, x, y)


def weight_integers(weight: Array, run: Run = map, known: Array | None = None) -> tuple[Integers8, Array]:
    """Return rint(weight / step of its output channel) as int8, in the weight's shape, and the float32 steps, (OC,).

    A step is the largest magnitude of the channel / 127, at least the smallest normal float32, unless the steps are
    known. A non-finite channel gets a non-finite step, and integers without a meaning.
    """
    rows = weight.reshape(len(weight), -1)
    integers, steps = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)

    def turn(part: slice) -> None:
        block = rows[part]
        scaled = np.abs(block)
        if known is None:
            steps[part] = np.maximum(scaled.max(axis=1) / WEIGHT_LIMIT, np.float32(SMALLEST_STEP))
        else:
            steps[part] = known[part]
        with np.errstate(invalid="ignore"):
            np.divide(block, steps[part, None], out=scaled)
            integers[part] = np.rint(scaled, out=scaled)

    count = max(_BLOCK // max(rows.shape[1], 1), 1)
    list(run(turn, [slice(first, first + count) for first in range(0, len(rows), count)]))
    return integers.reshape(weight.shape), steps


def held_scales(graph: Graph) -> Scales:
    """Return the scales in the model file itself."""
    return {name: Scale(float(np.float32(step)), signed) for name, (step, signed) in graph.integers.items()}


def quantised_inputs(graph: Graph) -> Mapping[str, bool]:
    """Return the values that some Conv or Gemm reads, in order of use: name to whether its integers are signed."""
    signed = dict.fromkeys([*(item.name for item in graph.inputs), *graph.constants], True)
    for op in graph.ops:
        signed[op.y] = _is_signed(op, signed[op.x])
    return {op.x: signed[op.x] for op in graph.ops if isinstance(op, Conv | Gemm)}


def stored_scales(graph: Graph, scales: Scales) -> Mapping[str, Scale | None]:
    """Return the scale with which every value is stored, the input included; None: some reader needs float32."""
    wanted: dict[str, set[Scale | None]] = {name: {None} for name in graph.outputs}
    for op in reversed(graph.ops):
        for name in op.operands:
            readers = wanted.setdefault(name, set())
            if isinstance(op, Conv | Gemm):
                readers.add(scales.get(name))
            else:
                readers |= wanted.get(op.y, {None}) if _carries_integers(op) else {None}
    stored = {item.name: _only(wanted.get(item.name)) for item in graph.inputs}
    for op in graph.ops:
        scale = _only(wanted.get(op.y))
        stored[op.y] = None if _carries_integers(op) and stored[op.x] is None else scale
    return stored


def _only(wanted: set[Scale | None] | None) -> Scale | None:
    return next(iter(wanted)) if wanted and len(wanted) == 1 else None


def _is_signed(op: Op, x_signed: bool) -> bool:
    match op:
        case Conv() | Gemm() | Elementwise() | GeneralConv() | GeneralBatchNorm():
            return not op.relu
        case Relu() | Softmax():
            return False
        case Pool() | Flatten() | Identity():
            return x_signed
    return True


def _carries_integers(op: Op) -> bool:
    return isinstance(op, Flatten | Identity) or (isinstance(op, Pool) and op.kind == "max")


def _largest_sum(weight: Integers8) -> int:
    """Return the largest sum of magnitudes of an output channel, or a cheap bound if that suffices."""
    length = math.prod(weight.shape[1:])
    if length * (WEIGHT_LIMIT + 1) * 255 <= _INT32_MAX:
        return length * (WEIGHT_LIMIT + 1)
    rows = weight.reshape(len(weight), -1)
    return max(int(np.abs(row.astype(np.int16)).sum(dtype=np.int64)) for row in rows)
