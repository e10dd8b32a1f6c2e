"""Rules of matrix products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Gemm, MatMul, Op
from vgg16gpu.compiler.onnx.node import EXPORT_AGAIN, NodeView, Rule, UnsupportedNodeError

_LEAST: Final = 1e-6
_MOST: Final = 1e6


@dataclass(frozen=True)
class _Terms:
    """What a Gemm computes: alpha * a @ b + beta * c, a and b transposed or not."""

    transpose_a: bool
    transpose_b: bool
    alpha: float
    beta: float
    has_bias: bool  # c is there, and beta is not zero

    @property
    def folds(self) -> bool:
        """Return whether weights can be multiplied by alpha and beta: others could take them out of float32's range."""
        return all(_LEAST <= abs(factor) <= _MOST for factor in (self.alpha, self.beta if self.has_bias else 1.0))


def gemm(node: NodeView) -> Op:
    """Import Gemm: with constant B and one bias per output a fully connected layer; else a product of two matrices."""
    if node.rank is not None and node.shape[:1] == (None,):
        node.only("transA", 0, 0, "only (N, F) inputs are supported while the batch is open")
    beta = float(node.attributes.get("beta", 1.0))
    terms = _Terms(
        node.flag("transA"),
        node.flag("transB"),
        float(node.attributes.get("alpha", 1.0)),
        beta,
        node.operand(2) is not None and beta != 0,
    )
    return _layer(node, terms) or _product(node, terms)


def _layer(node: NodeView, terms: _Terms) -> Gemm | None:
    """Return the fully connected layer that equals a Gemm; None if none does.

    Raises UnsupportedNodeError for broken weights.
    """
    if not node.is_constant(1):
        return None
    weight = node.weight(1, "weight")
    if weight.ndim != 2:
        raise UnsupportedNodeError(f"its weight has shape {weight.shape}", "only matrices are supported")
    outputs = weight.shape[0 if terms.transpose_b else 1]
    bias = _bias(node, outputs, terms) if terms.has_bias and node.is_constant(2) else None
    if terms.has_bias and (bias is None or math.prod(bias.shape[:-1]) != 1):
        return None  # computed at run time, or another one for each row
    if terms.transpose_a or node.is_constant(0) or _has_rows(node) or not terms.folds:
        return None
    if bias is not None:
        node.scope.memory.take((outputs,), bias.dtype)
        bias = np.ascontiguousarray(np.broadcast_to(_scaled(node, bias, terms.beta).reshape(-1), (outputs,)))
    steps = node.weight_steps(1, transposed=not terms.transpose_b) if terms.alpha == 1 else None
    weight = _scaled(node, weight if terms.transpose_b else _turned(node, weight), terms.alpha)
    return Gemm(node.x, node.y, (node.y,), weight, bias, weight_steps=steps)


def _product(node: NodeView, terms: _Terms) -> MatMul:
    """Return a Gemm as a product of two matrices. Raises UnsupportedNodeError for other ranks."""
    if len(node.shape) != 2 + _has_rows(node) or len(node.shape_of(1)) != 2:
        raise UnsupportedNodeError(
            f"its operands have {len(node.shape)} and {len(node.shape_of(1))} dimensions", EXPORT_AGAIN
        )
    others = (node.value(1, "weight"), *((node.value(2, "bias"),) if terms.has_bias else ()))
    return MatMul(node.x, node.y, (node.y,), others, terms.transpose_a, terms.transpose_b, terms.alpha, terms.beta)


def _has_rows(node: NodeView) -> bool:
    """Return whether x has several rows for each image, which are a dimension of their own in the graph."""
    return not node.is_constant(0) and node.first.rows is not None


def matmul(node: NodeView) -> Op:
    """Import MatMul: of a matrix and a constant one as a fully connected layer; else of any rank."""
    if node.is_constant(1) and not node.is_constant(0) and len(node.shape) == 2:
        weight = node.weight(1, "weight")
        if weight.ndim == 2:
            steps = node.weight_steps(1, transposed=True)
            return Gemm(node.x, node.y, (node.y,), _turned(node, weight), None, weight_steps=steps)
    if _has_rows(node) and len(node.shape_of(1)) != 2:
        raise UnsupportedNodeError(
            f"it multiplies rows of images with {node.shape_of(1)}", "use a matrix, or fix the batch"
        )
    return MatMul(node.x, node.y, (node.y,), (node.value(1, "weight"),))


def _turned(node: NodeView, weight: Array) -> Array:
    node.scope.memory.take(weight.shape, weight.dtype)
    return np.ascontiguousarray(weight.T)


def _scaled(node: NodeView, array: Array, factor: float) -> Array:
    if factor == 1:
        return array
    node.scope.memory.take(array.shape, array.dtype)
    with np.errstate(all="ignore"):  # weights that are not finite show in the scores, as in any other engine
        return array * np.float32(factor)


def _bias(node: NodeView, features: int, terms: _Terms) -> Array:
    """Return constant C, which must broadcast to the product at any batch. Raises UnsupportedNodeError."""
    bias = node.weight(2, "bias")
    rows = node.shape[1 if terms.transpose_a else 0] if node.rank == 2 else None
    shape = (1, 1, *bias.shape)[-2:]
    if bias.ndim > 2 or shape[0] not in (1, rows) or shape[1] not in (1, features):
        raise UnsupportedNodeError(
            f"its bias has shape {bias.shape} for {features} outputs", "only one bias per output is supported"
        )
    return bias


RULES: Final[Mapping[str, Rule]] = {
    "Gemm": gemm,
    "MatMul": matmul,
}
