"""Bytes that are normalised by numbers that neither the file nor the user has given: a warning says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from vgg16gpu.compiler.graph.ops import Graph, Shape
from vgg16gpu.compiler.model import Model

_log = logging.getLogger(__name__)


class AssumedPixels:
    """What an engine that was built with this mean and std assumes of bytes; told with the first of them, once."""

    def __init__(
        self, model: Model, graph: Graph, shape: Shape, mean: Sequence[float] | None, std: Sequence[float] | None
    ) -> None:
        """shape: of the input of a run, (N, C, H, W) where it takes pictures."""
        self._model, self._graph, self._shape = model, graph, shape
        self._may_assume = len(shape) == 4 and (mean is None or std is None)

    def warn(self, dtype: np.dtype[Any]) -> None:
        """Log a warning if inputs of this type are the first bytes, and what is done to them is assumed."""
        if self._may_assume and dtype == np.uint8:
            self._may_assume = False
            preprocess = self._model.preprocess(self._graph, self._shape)
            if told := preprocess.assumption(*self._shape[2:], pictures=False):
                _log.warning("%s: %s; mean= and std= say how", self._model.name, told)
