"""The right answer to a problem in float64, as a whole or, of a large one, in some of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu_lab.problem import Array, Array64, Problem

Rows: TypeAlias = npt.NDArray[np.intp]

_EDGE: Final = 8  # rows at top and bottom that are always compared
_LEAST_ROWS: Final = 32


@dataclass(frozen=True, eq=False)
class Reference:
    """Numbers for a problem and what must come out; `most_products` bounds the work of saying so."""

    problem: Problem
    most_products: int
    seed: int = 0

    @cached_property
    def inputs(self) -> tuple[Array, Array]:
        """(x, weight)."""
        return self.problem.random(self.seed)

    @cached_property
    def bias(self) -> Array | None:
        """(outputs,), if the problem has one."""
        return self.problem.random_bias(self.seed)

    @cached_property
    def rows(self) -> Rows:
        """The rows of the output that are compared: all, or both edges and others drawn by lot."""
        height = self.problem.out_height
        count = max(_LEAST_ROWS, self.most_products * height // (self.problem.flop // 2))
        if count >= height:
            return np.arange(height)
        drawn = np.random.default_rng(self.seed).choice(
            np.arange(_EDGE, height - _EDGE), count - 2 * _EDGE, replace=False
        )
        return np.concatenate([np.arange(_EDGE), np.sort(drawn), np.arange(height - _EDGE, height)])

    @cached_property
    def expected(self) -> Array64:
        """Compared rows of y in float64."""
        if self.is_whole:
            return self.problem.expected(*self.inputs, self.bias)
        return expected_rows(self.problem, *self.inputs, self.rows, self.bias)

    @property
    def is_whole(self) -> bool:
        """Return whether every output is compared."""
        return len(self.rows) == self.problem.out_height

    @property
    def extent(self) -> str:
        """Extent of the comparison in `error`, in words."""
        if self.is_whole:
            return "all outputs"
        return f"{len(self.rows)} of {self.problem.out_height} rows, and that all outputs are finite"

    def error(self, y: Array) -> float:
        """Return the norm-wise error of y, (N, outputs, rows, columns), in compared rows; NaN unless y is finite."""
        if not np.isfinite(y).all():
            return float("nan")
        part = y if self.is_whole else y[:, :, self.rows]
        return layer_error(part, self.expected)


def expected_rows(
    problem: Problem,
    x: npt.NDArray[Any],
    weight: npt.NDArray[Any],
    rows: Rows,
    bias: npt.NDArray[Any] | None = None,
) -> Array64:
    """Compute some rows of the answer in float64: (N, outputs, len(rows), columns)."""
    batch, outputs, _, out_width = problem.y_shape
    y = np.zeros((batch, outputs, len(rows), out_width))
    columns = problem.stride * (out_width - 1) + 1
    for p in range(problem.kernel):
        source = rows * problem.stride + p - problem.padding
        inside = (source >= 0) & (source < problem.height)
        band = np.zeros((batch, problem.channels, len(rows), problem.width + 2 * problem.padding))
        band[:, :, inside, problem.padding : problem.padding + problem.width] = x[:, :, source[inside]]
        for q in range(problem.kernel):
            window = band[..., q : q + columns : problem.stride]
            y += np.einsum("nchw,oc->nohw", window, weight[:, :, p, q].astype(np.float64), optimize=True)
    return y if bias is None else y + bias.astype(np.float64)[:, np.newaxis, np.newaxis]
