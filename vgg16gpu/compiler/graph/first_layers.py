"""What the first layers of a network tell of the pixels that it takes: what is assumed where its file says nothing.

A network that begins with Sub, Div, Mul, Add of constants, or with a BatchNormalization, normalises by itself. The
numbers tell in which range its pixels are: who subtracts 123.68 is given 0 to 255, who subtracts 0.485 is given 0 to 1.
So pixels of that range are given, without further mean and deviation. The rules are the tables below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import Graph, infer_shapes, readers_of_values
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    BatchNorm,
    Clip,
    FakeQuantize,
    Gather,
    Identity,
    Op,
    Pad,
    Shape,
    Slice,
)
from vgg16gpu.io.labels import IMAGENET_MEAN
from vgg16gpu.io.preprocessing import Origin, Preprocess, default_preprocess

Numbers: TypeAlias = npt.NDArray[np.float64]

IMAGENET_CLASSES: Final = 1000
_ANY: Final = (0.0, np.inf)
_SAME: Final = 1e-3  # relative: numbers in files are float32
_MEANS_ALIKE: Final = 0.01  # of pixels in 0..1: the published means of ImageNet differ by less


class Rule(NamedTuple):
    """Which preset suits pixels that have this mean and standard deviation; both are averages over the channels."""

    preset: str
    mean: tuple[float, float]  # from, to
    std: tuple[float, float]


# What a BatchNormalization has seen in training. Pixels that were normalised before have mean 0 and deviation 1.
BATCH_NORM_RULES: Final = (
    Rule("raw", (20.0, 235.0), (8.0, 130.0)),
    Rule("unit", (0.08, 0.92), (0.03, 0.42)),
    Rule("symmetric", (-0.85, 0.85), (0.3, 0.8)),
    Rule("keras", (-35.0, 35.0), (30.0, 110.0)),
)
# (x - mean) / std by constants. "unit" also holds who multiplies by 255 first. Keras' files have a BatchNormalization
# as a product and a sum.
CONSTANT_RULES: Final = (
    Rule("raw", (20.0, 235.0), _ANY),
    Rule("raw", (0.0, 0.0), (20.0, 260.0)),
    Rule("unit", (0.08, 0.92), _ANY),
    Rule("unit", (0.0, 0.0), (0.003, 0.6)),
    Rule("symmetric", (-1.01, -0.99), _ANY),
    *BATCH_NORM_RULES,
)


@dataclass(frozen=True)
class Clue:
    """A preset, "rgb" or "bgr", and what in the file speaks for them."""

    preset: str
    channel_order: str
    reason: str


def assumed(graph: Graph, shape: Shape) -> Preprocess:
    """Return the preprocessing to assume, and why, for a simplified `graph` with inputs of `shape` (N, C, H, W)."""
    channels, keras = shape[1], graph.input.channels_last
    clue = first_layers(graph, channels)
    if clue is None and keras:
        outputs = infer_shapes(graph, shape)[graph.outputs[0]]
        is_imagenet = channels == 3 and len(outputs) == 2 and outputs[1] == IMAGENET_CLASSES
        reason = "the file has its channels last, as Keras has them"
        clue = (
            Clue("keras", "bgr", f"{reason}, and {IMAGENET_CLASSES} classes, as in keras.applications")
            if is_imagenet
            else Clue("unit", "rgb", reason)
        )
    if clue is None:
        return default_preprocess(channels).with_origin(Origin("assumed", "the file says nothing"))
    found = Preprocess.named(clue.preset, channels).in_order(clue.channel_order)
    usual = found if keras else default_preprocess(channels)
    found = replace(found, fit=usual.fit, interpolation=usual.interpolation)
    return found.with_origin(Origin("assumed", clue.reason))


def first_layers(graph: Graph, channels: int) -> Clue | None:
    """Return the preprocessing that the ops before the first layer suggest; None if they suggest none."""
    seen = _Seen(np.ones(channels), np.zeros(channels), np.arange(channels))
    value = graph.input.name
    readers = readers_of_values(graph)
    while True:
        if len(readers.get(value, ())) != 1 or value in graph.outputs:
            return seen.clue()
        (op,) = readers[value]
        if isinstance(op, BatchNorm):
            return seen.clue() or seen.clue_of(op)
        if not seen.take(op, graph):
            return seen.clue()
        value = op.y


@dataclass
class _Seen:
    """What has become of channel order[i] of the input: scale[i] * x + shift[i], now channel i."""

    scale: Numbers
    shift: Numbers
    order: npt.NDArray[np.int64]

    def take(self, op: Op, graph: Graph) -> bool:
        """Follow one op; whether that can be done."""
        channels = len(self.scale)
        match op:
            case Identity():
                return True
            case Pad():  # of rows and columns; another number of channels is no longer the picture's
                return not (op.before[1] or op.after[1])
            case FakeQuantize(relu=False) | Clip(others=()):
                return True
            case Arithmetic(relu=False):
                return self._compute(op, graph)
            case Gather(axis=1) if sorted(op.indices.ravel().tolist()) == list(range(channels)):
                self._permute(op.indices.ravel())
                return True
            case Slice() if _turns_channels(op, channels):
                self._permute(np.arange(channels)[::-1])
                return True
            case _:
                return False

    def clue(self) -> Clue | None:
        """Return what the constants suggest; None if they change nothing."""
        if np.allclose(self.scale, 1, rtol=_SAME) and not self.shift.any():
            return None
        mean, std = self._before(np.zeros(len(self.scale)), np.ones(len(self.scale)))
        what = [f"subtract {_listed(mean)}"] if mean.any() else []
        what += [f"divide by {_listed(std)}"] if not np.allclose(std, 1, rtol=_SAME) else []
        return self._judged(CONSTANT_RULES, mean, std, f"the file's first layers {' and '.join(what)}")

    def clue_of(self, norm: BatchNorm) -> Clue | None:
        """Return what the statistics of a BatchNormalization suggest; None if nothing."""
        mean, std = self._before(norm.mean.astype(np.float64), np.sqrt(norm.variance.astype(np.float64) + norm.epsilon))
        text = f"the file begins with a BatchNormalization of mean {_listed(mean)} and deviation {_listed(std)}"
        return self._judged(BATCH_NORM_RULES, mean, std, text)

    def _before(self, mean: Numbers, std: Numbers) -> tuple[Numbers, Numbers]:
        """Convert mean and deviation of values at this point to those of the input, by its channels."""
        means, stds = np.empty_like(mean), np.empty_like(std)
        means[self.order] = (mean - self.shift) / self.scale
        stds[self.order] = std / np.abs(self.scale)
        return means, stds

    def _judged(self, rules: Sequence[Rule], mean: Numbers, std: Numbers, reason: str) -> Clue | None:
        for rule in rules:
            if rule.preset == "keras" and len(mean) != 3:
                continue
            if _within(mean.mean(), rule.mean) and _within(std.mean(), rule.std):
                order = "bgr" if rule.preset == "keras" or _is_bgr(mean) else "rgb"
                return Clue(rule.preset, order, reason)
        return None

    def _compute(self, op: Arithmetic, graph: Graph) -> bool:
        numbers = [_by_channel(graph, name, len(self.scale)) for name in op.operands if name in graph.constants]
        is_first = op.x not in graph.constants
        known = [number for number in numbers if number is not None]
        if len(known) != len(op.operands) - 1 or (op.function in ("sub", "div") and not is_first):
            return False
        for number in known:
            if op.function in ("mul", "div"):
                if not np.isfinite(number).all() or not number.all():
                    return False
                factor = number if op.function == "mul" else 1 / number
                self.scale, self.shift = self.scale * factor, self.shift * factor
            else:
                self.shift = self.shift + (number if op.function == "add" else -number)
        return True

    def _permute(self, indices: npt.NDArray[np.int64]) -> None:
        self.scale, self.shift, self.order = self.scale[indices], self.shift[indices], self.order[indices]


def _by_channel(graph: Graph, name: str, channels: int) -> Numbers | None:
    """Return a constant as one float64 for each channel; None if its shape is another."""
    array = graph.constants[name].astype(np.float64)
    if array.size == 1:
        return np.full(channels, array.reshape(-1)[0])
    shape = (1,) * (4 - array.ndim) + array.shape
    return array.reshape(-1) if shape == (1, channels, 1, 1) else None


def _turns_channels(op: Slice, channels: int) -> bool:
    """Return whether it takes the channels from the last to the first, and all else as it is."""
    rest = [axis for axis in range(len(op.starts)) if axis != 1]
    return (
        (op.starts[1], op.steps[1]) == (channels - 1, -1)
        and op.sizes[1] in (None, channels)
        and all(op.starts[axis] == 0 and op.steps[axis] == 1 and op.sizes[axis] is None for axis in rest)
    )


def _is_bgr(mean: Numbers) -> bool:
    """Return whether these are ImageNet's means from blue to red."""
    unit = mean / 255 if mean.mean() > 1 else mean
    return len(mean) == 3 and bool(np.allclose(unit, IMAGENET_MEAN[::-1], rtol=0, atol=_MEANS_ALIKE))


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] - _SAME * abs(limits[0]) <= value <= limits[1] + _SAME * abs(limits[1])


def _listed(values: Numbers) -> str:
    shown = [f"{value:.6g}" for value in values]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)
