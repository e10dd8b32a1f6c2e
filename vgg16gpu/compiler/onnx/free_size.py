"""Whether a size that stands in a file matters to what is computed of it: a model cut off early takes images of any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import fits
from vgg16gpu.compiler.onnx.file import OnnxFile
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError


def with_free_size(graph: Graph, file: OnnxFile, loaded: Graph) -> Graph:
    """Return a simplified graph with its input marked as free in size if it is; else the graph itself.

    loaded: the graph as it was loaded, for the same outputs. The size is free if the file gives the same graph where
    height and width are left open, so that nothing was computed from them, and if this graph takes another size.
    """
    given = graph.input
    match given.shape:
        case (batch, int(channels), int(height), int(width)):
            left_open = (batch, None, None, channels) if given.channels_last else (batch, channels, None, None)
        case _:
            return graph
    try:
        opened = load(file, loaded.outputs, shapes={given.name: left_open})
    except ModelError:
        return graph
    is_same = _are_equal(opened.ops, loaded.ops) and _are_equal(opened.constants, loaded.constants)
    if is_same and fits(graph, (batch or 1, channels, 2 * height + 1, 3 * width + 2)):
        return replace(graph, input=replace(given, is_free=True))
    return graph


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two things consist of equal parts; arrays bit by bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        is_alike = (a.shape, a.dtype, a.strides) == (b.shape, b.dtype, b.strides)
        return is_alike and (a.ctypes.data == b.ctypes.data or a.tobytes() == b.tobytes())
    if is_dataclass(a):
        return all(_are_equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    return bool(a == b)
