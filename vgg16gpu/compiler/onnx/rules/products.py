"""Rules of matrix products."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Gemm, MatMul, Op
from vgg16gpu.compiler.onnx.node import EXPORT_AGAIN, Node, RefusalError

_LEAST: Final = 1e-6
_MOST: Final = 1e6


def gemm(node: Node) -> Op:
    """Gemm: with constant B and one bias per output a fully connected layer; else a product of two matrices."""
    has_rows = node.x in node.scope.rows if not node.is_constant(0) else False
    if node.rank is not None and node.shape[:1] == (None,):
        node.only("transA", 0, 0, "only (N, F) inputs are supported while the batch is open")
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    transposed = node.flag("transB")
    has_bias = node.operand(2) is not None and beta != 0
    if node.is_constant(1):
        weight = node.weight(1, "weight")
        if weight.ndim != 2:
            raise RefusalError(f"its weight has shape {weight.shape}", "only matrices are supported")
        features = weight.shape[0 if transposed else 1]
        bias = _bias(node, features) if has_bias and node.is_constant(2) else None
        turned = node.flag("transA") or node.is_constant(0) or has_rows
        # Factors beyond these could take weights out of float32's range where they leave the sum inside.
        folds = all(_LEAST <= abs(factor) <= _MOST for factor in (alpha, beta if has_bias else 1.0))
        if (
            not turned
            and folds
            and (bias is not None) == has_bias
            and (bias is None or math.prod(bias.shape[:-1]) == 1)
        ):
            if bias is not None:
                node.scope.memory.take((features,), bias.dtype)
                bias = np.ascontiguousarray(np.broadcast_to(_scaled(node, bias, beta).reshape(-1), (features,)))
            steps = node.weight_steps(1, transposed=not transposed) if alpha == 1 else None
            weight = _scaled(node, weight if transposed else _turned(node, weight), alpha)
            return Gemm(node.x, node.y, (node.y,), weight, bias, weight_steps=steps)
    if len(node.shape) != 2 + has_rows or len(node.shape_of(1)) != 2:
        raise RefusalError(f"its operands have {len(node.shape)} and {len(node.shape_of(1))} dimensions", EXPORT_AGAIN)
    others = (node.value(1, "weight"), node.value(2, "bias")) if has_bias else (node.value(1, "weight"),)
    turned = node.flag("transA")
    return MatMul(node.x, node.y, (node.y,), others, turned, transposed, alpha, beta)


def matmul(node: Node) -> Op:
    """MatMul: of a matrix and a constant one a fully connected layer; else of any rank."""
    if node.is_constant(1) and not node.is_constant(0) and len(node.shape) == 2:
        weight = node.weight(1, "weight")
        if weight.ndim == 2:
            steps = node.weight_steps(1, transposed=True)
            return Gemm(node.x, node.y, (node.y,), _turned(node, weight), None, weight_steps=steps)
    if not node.is_constant(0) and node.x in node.scope.rows and len(node.shape_of(1)) != 2:
        raise RefusalError(f"it multiplies rows of images with {node.shape_of(1)}", "use a matrix, or fix the batch")
    return MatMul(node.x, node.y, (node.y,), (node.value(1, "weight"),))


def _turned(node: Node, weight: Array) -> Array:
    node.scope.memory.take(weight.shape, weight.dtype)
    return np.ascontiguousarray(weight.T)


def _scaled(node: Node, array: Array, factor: float) -> Array:
    if factor == 1:
        return array
    node.scope.memory.take(array.shape, array.dtype)
    with np.errstate(all="ignore"):  # weights that are not finite show in the scores, as in any other engine
        return array * np.float32(factor)


def _bias(node: Node, features: int) -> Array:
    """Constant C, which must be broadcast to the product whatever the batch is."""
    bias = node.weight(2, "bias")
    rows = node.shape[1 if node.flag("transA") else 0] if node.rank == 2 else None
    shape = (1, 1, *bias.shape)[-2:]
    if bias.ndim > 2 or shape[0] not in (1, rows) or shape[1] not in (1, features):
        raise RefusalError(
            f"its bias has shape {bias.shape} for {features} outputs", "only one bias per output is supported"
        )
    return bias
