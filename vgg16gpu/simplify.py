"""Graph -> Graph: fewer ops, the same values.

Each pass is a pure function. A value that the graph must hand out (an output, or one in `keep`) or that several ops
read is never swallowed, so a graph loaded with every value as an output comes through unfused. A fused op carries the
names of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.graph import (
    MAX_POOL_2X2,
    BatchNorm,
    Conv,
    Flatten,
    Gemm,
    Graph,
    Identity,
    Op,
    Pads,
    Pool,
    Relu,
    Softmax,
    Window,
)

Pass: TypeAlias = Callable[[Graph, Collection[str]], Graph]
Fusion: TypeAlias = Callable[[Op, Op], Op | None]


def simplify(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Apply every pass in order. Values in `keep` stay values of the result, as the outputs do."""
    for step in PASSES:
        graph = step(graph, keep)
    return graph


def neutral_ops_to_identity(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Pools of one element and Flatten of (N, F) change nothing: make them Identity."""
    del keep
    ranks = value_ranks(graph)
    return replace(graph, ops=tuple(_as_identity(op) if _is_neutral(op, ranks[op.x]) else op for op in graph.ops))


def drop_identity(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Remove Identity: the two values become one, under the name that must stay. If both must, the op stays."""
    fixed = {*graph.outputs, *keep, graph.input.name}
    for op in graph.ops:
        if isinstance(op, Identity) and not fixed.issuperset((op.x, op.y)):
            gone, kept = (op.y, op.x) if op.x in fixed else (op.x, op.y)
            return drop_identity(_merge_values(graph, op, gone, kept), keep)
    return graph


def fold_batch_norm(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Conv + BatchNormalization -> Conv, the new weights computed in float64."""

    def fold(conv: Op, norm: Op) -> Op | None:
        if isinstance(conv, Conv) and isinstance(norm, BatchNorm) and not (conv.relu or conv.pool):
            return _normalised(conv, norm)
        return None

    return _fuse(graph, keep, fold)


def _normalised(conv: Conv, norm: BatchNorm) -> Conv:
    with np.errstate(all="ignore"):  # weights that are not finite show in the scores, as in the unfused graph
        factor = norm.scale / np.sqrt(norm.variance.astype(np.float64) + norm.epsilon)
        bias = (0 if conv.bias is None else conv.bias) - norm.mean.astype(np.float64)
        weight = (conv.weight * factor[:, None, None, None]).astype(np.float32)
        return replace(conv, weight=weight, bias=(bias * factor + norm.shift).astype(np.float32))


def fuse_relu(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Conv or Gemm + Relu -> one op."""

    def fuse(first: Op, relu: Op) -> Op | None:
        if isinstance(relu, Relu) and (isinstance(first, Gemm) or (isinstance(first, Conv) and not first.pool)):
            return replace(first, relu=True)
        return None

    return _fuse(graph, keep, fuse)


def fuse_max_pool(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Conv + MaxPool 2x2, stride 2, no padding -> one op."""

    def fuse(conv: Op, pool: Op) -> Op | None:
        fits = isinstance(pool, Pool) and pool.kind == "max" and _same(pool.window, MAX_POOL_2X2)
        return replace(conv, pool=True) if fits and isinstance(conv, Conv) and not conv.pool else None

    return _fuse(graph, keep, fuse)


def fold_flatten(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Flatten + Gemm -> a Gemm that reads the feature map itself."""
    ranks = value_ranks(graph)

    def fold(flatten: Op, gemm: Op) -> Op | None:
        if isinstance(flatten, Flatten) and isinstance(gemm, Gemm) and ranks[flatten.x] == 4:
            return replace(gemm, x=flatten.x, flattens=True)
        return None

    return _fuse(graph, keep, fold)


PASSES: Final[tuple[Pass, ...]] = (
    neutral_ops_to_identity,
    drop_identity,
    fold_batch_norm,
    fuse_relu,
    fuse_max_pool,
    fold_flatten,
)


def value_ranks(graph: Graph) -> dict[str, int]:
    """How many dimensions each value has."""
    ranks = {graph.input.name: len(graph.input.shape)}
    for op in graph.ops:
        ranks[op.y] = 2 if isinstance(op, Gemm | Flatten | Softmax) else ranks[op.x]
    return ranks


def _fuse(graph: Graph, keep: Collection[str], fusion: Fusion) -> Graph:
    """Replace each pair of a producer and its only consumer by `fusion(producer, consumer)` where that is an op."""
    consumers = Counter(op.x for op in graph.ops)
    fixed = {*graph.outputs, *keep}
    made: dict[str, Op] = {}
    for op in graph.ops:
        producer = made.get(op.x)
        fused = fusion(producer, op) if producer and consumers[op.x] == 1 and op.x not in fixed else None
        if producer and fused:
            del made[op.x]
            op = replace(fused, y=op.y, names=producer.names + op.names)  # noqa: PLW2901
        made[op.y] = op
    return replace(graph, ops=tuple(made.values()))


def _merge_values(graph: Graph, identity: Op, gone: str, kept: str) -> Graph:
    """The graph without `identity`, its two values under the one name `kept`; their producer computes both."""

    def renamed(op: Op) -> Op:
        x = kept if op.x == gone else op.x
        if op.y != identity.x:
            return replace(op, x=x)
        others = tuple(name for name in op.names + identity.names if name != kept)
        return replace(op, x=x, y=kept, names=(*others, kept))

    return replace(graph, ops=tuple(renamed(op) for op in graph.ops if op is not identity))


def _is_neutral(op: Op, rank: int) -> bool:
    one = isinstance(op, Pool) and _same(op.window, Window(kernel=(1, 1)))
    return one or (isinstance(op, Flatten) and rank == 2)


def _as_identity(op: Op) -> Op:
    return Identity(op.x, op.y, op.names)


def _same(first: Window, second: Window) -> bool:
    return (first.kernel, first.strides, Pads(*first.pads)) == (second.kernel, second.strides, Pads(*second.pads))
