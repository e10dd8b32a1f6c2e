"""Ops of losses in float64 numpy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.loss import CHUNK, FeatureLoss, Gram, GramGradient, RowSum, pixels_of_block
from vgg16gpu.compiler.graph.ops import Op

Array64: TypeAlias = npt.NDArray[np.float64]

EPSILON = 1e-8


def feature_loss(op: FeatureLoss, x: Array64, target: Array64, channels: Any = None) -> tuple[Array64, Array64]:
    """The partial sums, and the gradient to x."""
    feature = np.moveaxis(x, 1, -1) if x.ndim == 4 else x
    goal = target.reshape(feature.shape)
    if op.distance == "unit":
        u, length = unit(feature)
        difference = channels * (u - unit(goal)[0])
        each = (difference * (u - unit(goal)[0])).sum(-1).reshape(len(x), -1)
        slope = 2 * (difference - u * (difference * u).sum(-1, keepdims=True)) / length
    else:
        difference = feature - goal
        each = abs(difference) if op.distance == "absolute" else difference**2
        slope = np.sign(difference) if op.distance == "absolute" else 2 * difference
    parts = _pieces(each.reshape(len(x), -1), pixels_of_block(x.shape[1]) if op.distance == "unit" else CHUNK)
    return op.weight * parts[..., None], op.weight * (np.moveaxis(slope, -1, 1) if x.ndim == 4 else slope)


def unit(feature: Array64) -> tuple[Array64, Array64]:
    """Unit vectors of channels, the last dimension, and what they were divided by."""
    length = np.sqrt(EPSILON + (feature**2).sum(-1, keepdims=True))
    return feature / length, length


def gram(x: Array64) -> Array64:
    flat = x.reshape(*x.shape[:2], -1)
    return np.asarray(flat @ flat.swapaxes(1, 2) / flat[0].size)


def apply(op: Op, x: Array64, *others: Array64) -> Array64:
    match op:
        case Gram():
            return gram(x)
        case GramGradient():
            flat = others[0].reshape(*others[0].shape[:2], -1)
            return np.asarray((x + x.swapaxes(1, 2)) @ flat / flat[0].size).reshape(others[0].shape)
        case RowSum():
            return np.asarray(sum(operand.reshape(len(operand), -1).sum(1) for operand in (x, *others)))
    raise NotImplementedError(type(op).__name__)


def _pieces(each: Array64, length: int) -> Array64:
    """Sums over so many neighbours."""
    padded = np.pad(each, ((0, 0), (0, -each.shape[1] % length)))
    return np.asarray(padded.reshape(len(each), -1, length).sum(-1))
