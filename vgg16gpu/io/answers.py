"""What a network answers to its inputs, as it goes to whoever writes or sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.scores import Scores

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PredictionBatch:
    """What became of consecutive inputs, in their order."""

    names: Sequence[str]  # as given; bytes that are no UTF-8 as surrogateescape
    errors: Sequence[str]  # why an input has no answer; "" where it has one
    scores: Scores  # (n, *shape) float32 of the first output; NaN rows where there is an error
    best: npt.NDArray[
        np.intp
    ]  # (n, k) classes, best first, -1 without an answer; k = 0 where the output gives no classes
    probabilities: npt.NDArray[np.float64]  # (n, k); NaN without an answer
    others: tuple[Array, ...] = ()  # further outputs, (n, ...) each
    unread: frozenset[int] = frozenset()  # which of them could not be read, so that nothing was computed
