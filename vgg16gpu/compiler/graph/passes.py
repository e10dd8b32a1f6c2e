"""Passes from Graph to Graph, with the one that removes transposes before the first layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph, readers_of_values, value_ranks
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    Array,
    BatchNorm,
    Clip,
    Concat,
    Conv,
    Elementwise,
    Flatten,
    Gather,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    Identity,
    Limits,
    Op,
    Pool,
    Relu,
    Reshape,
    Slice,
    Transpose,
    with_operands,
)
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window, same_window

CHANNELS_FIRST: Final = (0, 3, 1, 2)


def gather_slices(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """A Concat of Slices of one element each is a Gather: channels in another order (Keras' RGB to BGR)."""
    fixed = {*graph.outputs, *keep}
    slices = {op.y: op for op in graph.ops if isinstance(op, Slice)}
    readers = readers_of_values(graph)
    made: dict[str, Gather] = {}
    swallowed: set[str] = set()
    for op in graph.ops:
        if not isinstance(op, Concat) or any(name in fixed or len(readers[name]) > 1 for name in op.operands):
            continue
        if made_op := _gathered(op, [slices[name] for name in op.operands if name in slices]):
            made[op.y] = made_op
            swallowed.update(op.operands)
    if not made:
        return graph
    return replace(graph, ops=tuple(made.get(op.y, op) for op in graph.ops if op.y not in swallowed))


def _gathered(op: Concat, parts: Sequence[Slice]) -> Gather | None:
    """Return the Gather that equals a Concat of these Slices; None if none does."""
    picked = [index for part in parts if (index := _picked(part, op.axis)) is not None]
    sources = {part.x for part in parts}
    if len(picked) != len(op.operands) or len(sources) != 1:
        return None
    names = dict.fromkeys(name for part in parts for name in part.names)
    return Gather(sources.pop(), op.y, (*names, *op.names), op.axis, np.array(picked, np.int64))


def _picked(op: Slice, axis: int) -> int | None:
    """Return the one element of `axis` that a Slice takes, with all of the other axes; None for any other Slice."""
    others = [i for i in range(len(op.starts)) if i != axis]
    whole = all((op.starts[i], op.steps[i], op.sizes[i]) == (0, 1, None) for i in others)
    return op.starts[axis] if whole and op.sizes[axis] == 1 else None


def transpose_first(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Elementwise ops and new orders of channels between an input (N, H, W, C) and its Transpose come after it."""
    chain = _chain(graph, {*graph.outputs, *keep})
    if len(chain) < 2:
        return graph
    *computing, transpose = chain
    constants = dict(graph.constants)
    taken = {name for op in graph.ops for name in (op.y, *op.names)} | {*constants, graph.input.name}
    old = graph.input.name
    new = _fresh(old, taken)
    moved: list[Op] = [Transpose(old, new, (new,), CHANNELS_FIRST)]
    turned_constants: dict[str, str] = {}
    for op in computing:
        for name in graph.constants.keys() & set(op.operands) - turned_constants.keys():
            if constants[name].size > 1:
                turned_constants[name] = _fresh(name, taken)
                constants[turned_constants[name]] = _turned_array(constants[name])
        renamed = {**{name: turned_constants.get(name, name) for name in op.operands}, old: new}
        # A value in another order is not the file's: it gets a name of its own, the last one that of the Transpose.
        is_last = op is computing[-1]
        old, new = op.y, transpose.y if is_last else _fresh(op.y, taken)
        names = (*op.names, *transpose.names) if is_last else (new,)
        turned = with_operands(_turned(op), [renamed[name] for name in op.operands])
        moved.append(replace(turned, y=new, names=names))
    placed = {op.y for op in chain}
    rest = [op for op in graph.ops if op.y not in placed]  # nothing else reads the input, so these come after
    return replace(graph, ops=(*moved, *rest), constants=constants)


def _chain(graph: Graph, fixed: Collection[str]) -> list[Op]:
    """Return the ops from the input to the Transpose that brings channels first, inclusive; empty if there is none."""
    found: list[Op] = []
    value = graph.input.name
    if len(graph.input.shape) != 4 or graph.others:
        return []
    readers = readers_of_values(graph)
    while value not in fixed:
        if len(readers.get(value, ())) != 1:
            return []
        (op,) = readers[value]
        found.append(op)
        if isinstance(op, Transpose):
            return found if op.permutation == CHANNELS_FIRST else []
        if not _can_wait(op, value, graph):
            return []
        value = op.y
    return []


def _can_wait(op: Op, value: str, graph: Graph) -> bool:
    """Return whether it computes the same, element by element or along the channels, after the Transpose."""
    match op:
        case Elementwise():
            others = [name for name in op.operands if name != value]
            known = all(name in graph.constants and graph.constants[name].ndim <= 4 for name in others)
            return known and op.operands.count(value) == 1
        case Gather():
            return op.axis == 3 and op.indices.ndim == 1
        case Slice():
            return True
        case _:
            return False


def _turned(op: Op) -> Op:
    """Return the same op for values with their channels first."""
    match op:
        case Gather():
            return replace(op, axis=1)
        case Slice():
            starts, steps = (tuple(values[axis] for axis in CHANNELS_FIRST) for values in (op.starts, op.steps))
            return replace(op, starts=starts, steps=steps, sizes=tuple(op.sizes[axis] for axis in CHANNELS_FIRST))
        case _:
            return op


def _turned_array(array: Array) -> Array:
    """Return a constant that is broadcast to (N, H, W, C) in the order of (N, C, H, W)."""
    return np.ascontiguousarray(array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(CHANNELS_FIRST))


def _fresh(name: str, taken: set[str]) -> str:
    """Return a name that no value has, and add it to `taken`."""
    name += ".channels_first"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


Pass: TypeAlias = Callable[[Graph, Collection[str]], Graph]
Fusion: TypeAlias = Callable[[Op, Op], Op | None]


def simplify(graph: Graph, keep: Collection[str] = frozenset(), passes: Sequence[Pass] | None = None) -> Graph:
    """Apply every pass, of `PASSES` unless told, in order. Values in `keep` stay values, as the outputs do."""
    for step in PASSES if passes is None else passes:
        graph = step(graph, keep)
    return graph


def channels_first_input(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """An input (N, H, W, C) that is transposed at once (Keras) becomes (N, C, H, W).

    The Transpose goes: the host turns each input as it copies it (`GraphInput.from_file`).
    """
    given = graph.input
    readers = [op for op in graph.ops if given.name in op.operands]
    if not readers or not all(map(_brings_channels_first, readers)):
        return graph
    batch, height, width, channels = given.shape
    ops = tuple(_as_identity(op) if op.x == given.name else op for op in graph.ops)
    changed = replace(given, shape=(batch, channels, height, width), channels_last=True)
    return drop_identity(replace(graph, input=changed, ops=ops), keep)


def _brings_channels_first(op: Op) -> bool:
    return isinstance(op, Transpose) and op.permutation == CHANNELS_FIRST


def neutral_ops_to_identity(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Pools of one element and Flatten of (N, F) change nothing: make them Identity."""
    del keep
    ranks = value_ranks(graph)
    return replace(graph, ops=tuple(_as_identity(op) if _is_neutral(op, ranks[op.x]) else op for op in graph.ops))


def flatten_to_reshape(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Flatten of what is no feature map: it has no layout of its own."""
    del keep
    ranks = value_ranks(graph)

    def reshaped(op: Op) -> Op:
        odd = isinstance(op, Flatten) and ranks[op.x] not in (2, 4)
        return Reshape(op.x, op.y, op.names, (0, -1)) if odd else op

    return replace(graph, ops=tuple(map(reshaped, graph.ops)))


def drop_identity(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Remove Identity: the two values become one, under the name that must stay. If both must, the op stays."""
    fixed = {*graph.outputs, *keep, *graph.constants, *(item.name for item in graph.inputs)}
    source: dict[str, str] = {}  # of a value that goes: the value that is no copy
    stays: dict[str, str] = {}  # the name under which that one stays, if not its own
    copies: dict[str, list[str]] = {}
    ops: list[Op] = []
    for op in graph.ops:
        origin = source.get(op.x, op.x)
        is_fixed = stays.get(origin, origin) in fixed
        if not isinstance(op, Identity) or (is_fixed and op.y in fixed):
            ops.append(op)
            continue
        source[op.y] = origin
        copies.setdefault(origin, []).extend(op.names)
        if not is_fixed:
            stays[origin] = op.y

    if not source:
        return graph

    def name_of(value: str) -> str:
        origin = source.get(value, value)
        return stays.get(origin, origin)

    def renamed(op: Op) -> Op:
        y = name_of(op.y)
        others = [name for name in (*op.names, *copies.get(op.y, ())) if name != y]
        return replace(with_operands(op, [name_of(name) for name in op.operands]), y=y, names=(*others, y))

    return replace(graph, ops=tuple(map(renamed, ops)))


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
        return replace(conv, weight=weight, bias=(bias * factor + norm.shift).astype(np.float32), weight_steps=None)


def fuse_relu(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Conv, Gemm, Elementwise or GeneralBatchNorm + Relu -> one op."""

    def fuse(first: Op, relu: Op) -> Op | None:
        if isinstance(relu, Relu):
            if isinstance(first, Gemm | GeneralConv | GeneralBatchNorm | Elementwise):
                return replace(first, relu=True)
            if isinstance(first, Conv) and not first.pool:
                return replace(first, relu=True)
        return None

    return _fuse(graph, keep, fuse)


def fuse_clip(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Fuse Conv, Gemm, Elementwise or GeneralBatchNorm + Clip -> one op with limits; Relu + Clip -> Clip.

    0 lies between the limits, as padded channels are 0.
    """

    def fuse(first: Op, clip: Op) -> Op | None:
        if not isinstance(clip, Clip) or clip.others or not clip.range[0] <= 0 <= clip.range[1]:
            return None
        if isinstance(first, Relu) or (isinstance(first, Clip) and not first.others):
            low, high = _composed((0.0, math.inf) if isinstance(first, Relu) else first.range, clip.range)
            return Clip(first.x, clip.y, clip.names, low=low, high=high)
        if isinstance(first, Conv | Gemm | GeneralConv | GeneralBatchNorm | Elementwise):
            limits = first.limits or (0.0 if first.relu else -math.inf, math.inf)
            return replace(first, relu=False, limits=_composed(limits, clip.range))
        return None

    return _fuse(graph, keep, fuse)


def _composed(first: Limits, second: Limits) -> Limits:
    """Return the limits that equal clipping to the first, then to the second limits."""
    low, high = (min(max(limit, second[0]), second[1]) for limit in first)
    return low, high


def fuse_bias(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Conv or Gemm without bias + a constant for each output channel -> one op."""

    def fuse(first: Op, add: Op) -> Op | None:
        if not isinstance(add, Arithmetic) or add.function != "add" or len(add.others) != 1:
            return None
        constant = graph.constants.get(add.others[0])
        if constant is None or not isinstance(first, Conv | Gemm) or first.bias is not None or first.relu:
            return None
        channels = first.weight.shape[0]
        shape = (channels, 1, 1) if isinstance(first, Conv) else (channels,)
        if constant.shape not in (shape, (1, *shape)) or (isinstance(first, Conv) and first.pool):
            return None
        return replace(first, bias=np.ascontiguousarray(constant.reshape(-1)), relu=add.relu)

    return _fuse(_constants_last(graph), keep, fuse)


def _constants_last(graph: Graph) -> Graph:
    """Rewrite every C + x to x + C."""

    def turned(op: Op) -> Op:
        if isinstance(op, Arithmetic) and op.function == "add" and len(op.others) == 1 and op.x in graph.constants:
            return replace(op, x=op.others[0], others=(op.x,))
        return op

    return replace(graph, ops=tuple(map(turned, graph.ops)))


def drop_unread_constants(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Forget constants that went into an op."""
    del keep
    read = {name for op in graph.ops for name in op.operands}
    return replace(graph, constants={name: array for name, array in graph.constants.items() if name in read})


def fuse_max_pool(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Conv + MaxPool 2x2, stride 2, no padding -> one op."""

    def fuse(conv: Op, pool: Op) -> Op | None:
        fits = isinstance(pool, Pool) and pool.kind == "max" and same_window(pool.window, MAX_POOL_2X2)
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


IMAGE_PASSES: Final[tuple[Pass, ...]] = (  # for who brings the input in
    neutral_ops_to_identity,
    flatten_to_reshape,
    drop_identity,
    gather_slices,
    transpose_first,
    channels_first_input,
    fuse_bias,
    fold_batch_norm,
    fuse_relu,
    fuse_max_pool,
    fold_flatten,
    drop_unread_constants,
)
CLIP_PASSES: Final[tuple[Pass, ...]] = (fuse_clip, fuse_max_pool)  # of the planner
PASSES: Final = tuple(step for step in IMAGE_PASSES if step not in (transpose_first, channels_first_input))


def _fuse(graph: Graph, keep: Collection[str], fusion: Fusion) -> Graph:
    """Replace each pair of a producer and its only consumer by `fusion(producer, consumer)` where that is an op."""
    consumers = Counter(name for op in graph.ops for name in op.operands)
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


def _is_neutral(op: Op, rank: int) -> bool:
    one = isinstance(op, Pool) and same_window(op.window, Window(kernel=(1, 1)))
    return one or (isinstance(op, Flatten) and rank == 2)


def _as_identity(op: Op) -> Op:
    return Identity(op.x, op.y, op.names)
