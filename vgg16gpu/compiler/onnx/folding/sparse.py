"""Sparse tensors of a file, as the dense arrays that they mean: zeros but for the values that are given places.

SparseTensorProto: `values` (NNZ,), `indices` (NNZ,) into the row-major order of `dims`, or (NNZ, rank).
"""

from __future__ import annotations

import math

import numpy as np
from onnx import SparseTensorProto

from vgg16gpu.compiler.onnx.file import MAX_RANK, Constant, OnnxFile
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.initializers import Stored


def array_of(file: OnnxFile, stored: Stored, memory: FoldingBudget) -> Constant:
    """Return the array of a dense tensor, or what a sparse one means. Raises as `OnnxFile.array` and `dense` do."""
    return dense(file, stored, memory) if isinstance(stored, SparseTensorProto) else file.array(stored)


def dense(file: OnnxFile, tensor: SparseTensorProto, memory: FoldingBudget) -> Constant:
    """Return the array that a sparse tensor means, of the element type of its values.

    Raises FoldError for places outside of it or given twice, and where it takes too much memory; ModelError as
    `OnnxFile.array` does.
    """
    shape = tuple(tensor.dims)
    if len(shape) > MAX_RANK or any(dim < 0 for dim in shape):
        raise FoldError(f"its sparse tensor '{tensor.values.name}' has the dimensions {shape}")
    values, indices = file.array(tensor.values), file.array(tensor.indices)
    count = values.size
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise FoldError(
            f"its sparse tensor '{tensor.values.name}' has values of shape {values.shape} and {indices.dtype} indices "
            f"of shape {indices.shape} for the dimensions {shape}"
        )
    memory.allow(values)
    memory.repeat(shape, values.dtype)  # nearly all of it is one number
    places = _places(indices, shape, tensor.values.name)
    array = np.zeros(math.prod(shape), values.dtype)
    array[places] = values
    return array.reshape(shape)


def _places(indices: Constant, shape: tuple[int, ...], name: str) -> Constant:
    """Return indices into the flattened array. Raises FoldError for one outside, and for one that comes twice."""
    if indices.ndim == 1:
        is_inside = bool(((indices >= 0) & (indices < math.prod(shape))).all())
        places = indices
    else:
        is_inside = bool(((indices >= 0) & (indices < np.array(shape, np.int64))).all())
        places = np.ravel_multi_index(tuple(indices.T), shape) if is_inside and indices.size else indices[:, :0].sum(1)
    if not is_inside:
        raise FoldError(f"its sparse tensor '{name}' has indices outside of its dimensions {shape}")
    is_given = np.zeros(math.prod(shape), bool)  # np.unique takes 2 us a place
    is_given[places] = True
    if np.count_nonzero(is_given) < places.size:
        raise FoldError(f"its sparse tensor '{name}' gives two values one place")
    return places
