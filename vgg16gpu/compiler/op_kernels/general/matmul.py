"""Products of matrices of any rank: the Python side of kernels/general/matmul.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vgg16gpu.compiler.graph.ops import MatMul, Shape
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    MultiOpKernel,
    NoWeights,
    OpContext,
    OpMemory,
    ceil_div,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.op_kernels.strided import View, view
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar, StridedIndexer
from vgg16gpu.program.types import Layout, TensorDesc

SOURCE = "matmul.cu"
TILE = 32  # rows and columns of a block, as in the source


@dataclass(frozen=True)
class Product:
    """Operands and output as the kernel sees them: each has the batch dimensions of the product, then two more."""

    a: View
    b: View
    c: View | None
    out: View
    extents: Shape  # of what is stored of out

    @property
    def batch(self) -> StridedIndexer:
        """The batch dimensions, in the rows that the kernel's header names."""
        strides = [() if operand is None else operand.strides for operand in (self.out, self.a, self.b, self.c)]
        rows = ((self.extents, 1), (self.out.shape, 1), *((row, 0) for row in strides))
        return StridedIndexer(tuple((fill,) * (StridedIndexer.RANK - len(row[:-2])) + row[:-2] for row, fill in rows))


def steps(
    layer: OpContext[MatMul], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    made = product(op, x, y)
    (m, k), n = made.a.shape[-2:], made.b.shape[-1]
    nbytes = sum(value.nbytes for value in x) + y.nbytes
    label = f"matmul {m}x{k}x{n}"
    return (product_step(made, alpha=op.alpha, beta=op.beta, names=op.names, nbytes=nbytes, label=label),)


def product_step(
    made: Product, *, alpha: float, names: tuple[str, ...], nbytes: int, label: str, beta: float = 0.0
) -> KernelLaunch:
    """Return one launch: out = alpha * (a @ b) + beta * c."""
    a, b, c, out = made.a, made.b, made.c, made.out
    (m, k), n = a.shape[-2:], b.shape[-1]
    *batch, rows, columns = made.extents
    return KernelLaunch(
        kernel=Kernel(SOURCE, "matmul_f32"),
        grid=Dim3(math.prod(batch) * ceil_div(rows, TILE) * ceil_div(columns, TILE)),
        block=Dim3(BLOCK),
        arguments=(
            *(out.pointer, a.pointer, b.pointer, a.pointer if c is None else c.pointer, made.batch),
            *scalars(m, n, k, rows, columns),
            *scalars(*out.strides[-2:], *a.strides[-2:], *b.strides[-2:], *((0, 0) if c is None else c.strides[-2:])),
            *(Scalar(alpha, "f"), Scalar(beta, "f"), Scalar(int(c is not None))),
        ),
        flop=2 * math.prod(out.shape) * k,
        nbytes=nbytes,
        names=names,
        label=label,
    )


def product(op: MatMul, x: Sequence[TensorDesc], y: TensorDesc) -> Product:
    """Return the product by the rules of numpy.matmul: vectors are matrices of one row (a) or column (b)."""
    left, right = view(x[0]), view(x[1])
    vectors = len(left.shape) == 1, len(right.shape) == 1
    a = _with_axis(left, 0) if vectors[0] else left
    b = _with_axis(right, 1) if vectors[1] else right
    a, b = _swapped(a) if op.transpose_a else a, _swapped(b) if op.transpose_b else b
    out = _as_matrices(view(y), *vectors)
    batch = out.shape[:-2]
    stored = (y.shape[0], y.pitch, *y.shape[2:]) if y.layout is Layout.NHWC else y.shape
    return Product(
        a=a.broadcast((*batch, *a.shape[-2:])),
        b=b.broadcast((*batch, *b.shape[-2:])),
        c=_as_matrices(view(x[2]).broadcast(y.shape), *vectors) if len(x) > 2 else None,
        out=out,
        extents=_as_matrices(replace(out, shape=stored, strides=view(y).strides), *vectors).shape,
    )


def _as_matrices(tensor: View, a_is_vector: bool, b_is_vector: bool) -> View:
    """View a tensor of the product's shape with an axis for each operand that is a vector."""
    if a_is_vector:
        tensor = _with_axis(tensor, len(tensor.shape) - (not b_is_vector))
    return _with_axis(tensor, len(tensor.shape)) if b_is_vector else tensor


def _with_axis(tensor: View, axis: int) -> View:
    shape, strides = tensor.shape, tensor.strides
    return replace(tensor, shape=(*shape[:axis], 1, *shape[axis:]), strides=(*strides[:axis], 0, *strides[axis:]))


def _swapped(matrix: View) -> View:
    rank = len(matrix.shape)
    return matrix.permuted((*range(rank - 2), rank - 1, rank - 2))


OP_KERNEL = MultiOpKernel(MatMul, steps, no_weights, any_layout=True)
