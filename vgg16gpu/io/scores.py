"""What scores say: probabilities and the best classes; numbers as text and as JSON."""

from __future__ import annotations

from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

Scores: TypeAlias = npt.NDArray[np.float32]


def softmax(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Softmax over the last axis in float64. A row with NaN or +Inf becomes NaN."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True).astype(np.float64))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def top_classes(scores: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest of each row of (N, K) scores, best first; the lower class first among equals."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :count]


def write_text(file: BinaryIO, rows: npt.NDArray[Any]) -> None:
    """One line of white-space separated numbers per row, nine digits each."""
    for row in rows.reshape(len(rows), -1):
        file.write(" ".join([f"{value:.9g}" for value in row.tolist()]).encode() + b"\n")


def finite_or_none(value: Any) -> Any:
    """A copy of nested lists, dicts and numbers with NaN and infinities as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
