"""A convolution and the max-pool behind it where others want the map, too: one op, whose kernel stores both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vgg16gpu.compiler.graph.ops import Conv, Graph, Op, Pool, parts, readers_of_values
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, same_window


def pooled_maps(graph: Graph) -> dict[str, Pool]:
    """The pool of each convolution whose map others want, too, by the map's name.

    A map that nobody but the pool wants is none of them: `passes.fuse_max_pool` has been there.
    """
    readers, found = readers_of_values(graph), dict[str, Pool]()
    for op in graph.ops:
        pools = [reader for reader in readers.get(op.y, ()) if isinstance(reader, Pool) and _is_plain(reader)]
        if isinstance(op, Conv) and not op.pool and pools:
            found[op.y] = pools[0]
    return found


def with_kept_maps(graph: Graph, pools: Mapping[str, Pool]) -> Graph:
    """The graph with these pools as part of the convolutions whose maps they read."""
    gone = {pool.y for pool in pools.values()}
    return replace(graph, ops=tuple(_joined(op, pools) for op in graph.ops if op.y not in gone))


def keeps_map(op: Op) -> bool:
    """Whether a map before a pool is wanted of an op."""
    return any(isinstance(part, Conv) and part.kept for part in parts(op))


def _joined(op: Op, pools: Mapping[str, Pool]) -> Op:
    if not isinstance(op, Conv) or op.y not in pools:
        return op
    pool = pools[op.y]
    return replace(op, y=pool.y, names=(*op.names, *pool.names), pool=True, kept=op.y)


def _is_plain(op: Pool) -> bool:
    return op.kind == "max" and same_window(op.window, MAX_POOL_2X2)
