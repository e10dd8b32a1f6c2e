"""Constant folding: the little numpy that ONNX files use to compute the operands of other nodes, shapes above all.

`x.view(x.size(0), -1)` is exported as Shape, Gather, Unsqueeze, Concat and Reshape. The dimensions of x that are open
are carried through such nodes as marks. No operator here computes with numbers, so a mark stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from vgg16gpu.onnx_file import Constant

OpenShape: TypeAlias = tuple[int | None, ...]  # None: known only when a run size is chosen
Fold: TypeAlias = Callable[[Mapping[str, Any], Sequence[Constant]], Constant]

OPEN_BATCH: Final = -(1 << 62)  # the model's open batch; the first dimension of every run-time value
OPEN_SIZE: Final = OPEN_BATCH - 1  # any other open dimension


def shape_of(attributes: Mapping[str, Any], shape: OpenShape) -> Constant:
    """Shape: the dimensions of a run-time value, marks for the open ones."""
    marked = [dim if dim is not None else OPEN_BATCH if index == 0 else OPEN_SIZE for index, dim in enumerate(shape)]
    return np.array(marked[attributes.get("start", 0) : attributes.get("end", len(shape))], np.int64)


def _concat(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> Constant:
    return np.concatenate(operands, axis=attributes["axis"])


def _gather(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> Constant:
    data, indices = operands
    if data.ndim != 1:
        raise ValueError("only elements of a list are gathered")
    return np.asarray(np.take(data, indices, axis=attributes.get("axis", 0)))


def _identity(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> Constant:
    del attributes
    return operands[0]


def _reshape(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> Constant:
    data, target = operands
    copied = [] if attributes.get("allowzero", 0) else [index for index, dim in enumerate(target) if dim == 0]
    return np.reshape(data, [data.shape[index] if index in copied else dim for index, dim in enumerate(target)])


def _squeeze(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> Constant:
    return np.squeeze(operands[0], _axes(attributes, operands))


def _unsqueeze(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> Constant:
    return np.expand_dims(operands[0], _axes(attributes, operands) or ())


def _axes(attributes: Mapping[str, Any], operands: Sequence[Constant]) -> tuple[int, ...] | None:
    """An attribute before opset 13, an operand since."""
    axes = operands[1] if len(operands) > 1 else attributes.get("axes")
    return None if axes is None else tuple(int(axis) for axis in axes)


FOLDS: Final[Mapping[str, Fold]] = {
    "Concat": _concat,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
