"""Gradients as graphs: the rule of each op, and the graph of the ops that a gradient needs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from vgg16gpu.compiler.graph.gradient_ops import (
    MaskedGradient,
    PoolGradient,
    PowerOfTwo,
    dgrad_conv_weight,
    dgrad_matrix_weight,
)
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    Array,
    BatchNorm,
    Clip,
    ClipGradient,
    Conv,
    Flatten,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    Identity,
    Limits,
    MatMul,
    Op,
    Pad,
    Pool,
    Relu,
    ReluGradient,
    Reshape,
    Shape,
    Softmax,
    Transpose,
)
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window, same_window
from vgg16gpu.errors import ModelError

_MOST_GRADIENTS: Final = 4  # that one ReluGradient or MaskedGradient takes
_MAP_RANK: Final = 4
_MOST_OPERANDS: Final = 5  # that one Arithmetic takes
_FLOAT16: Final = 15  # 2^15 and a rounding are below its largest number


@dataclass
class Backward:
    """The ops of a gradient so far, in order. `shapes`, `constants`: of the forward graph, and of what came since.

    rescales: whether matrix products are of float16, so that each image's gradient is brought to its range before them.
    """

    shapes: dict[str, Shape]
    constants: dict[str, Array]
    rescales: bool = False
    ops: list[Op] = field(default_factory=list)
    _turned: dict[int, Array] = field(default_factory=dict)  # weights of convolutions, by the identity of theirs

    def turned(self, weight: Array) -> Array:
        """Return the weights of a convolution's gradient; one array for all convolutions that share weights."""
        if id(weight) not in self._turned:
            self._turned[id(weight)] = dgrad_conv_weight(weight)
        return self._turned[id(weight)]

    def fresh(self, name: str) -> str:
        """Return a name like `name` that no value has."""
        number = 1
        while (found := name if number == 1 else f"{name} {number}") in self.shapes:
            number += 1
        return found

    def add(self, op_type: Callable[..., Op], x: str, of: str, /, *rest: Any, **options: Any) -> str:
        """Append an op that reads x and the options' `others`; return its result, a gradient of the value `of`."""
        y = self.fresh(f"{of}/gradient")
        op = op_type(x, y, (y,), *rest, **options)
        self.shapes[y] = op.shape_of_y(*(self.shapes[name] for name in op.operands))
        self.ops.append(op)
        return y

    def constant(self, array: Array, of: str) -> str:
        """Store a float32 constant beside those of the model; return its name."""
        name = self.fresh(f"{of}/factor")
        self.constants[name] = np.ascontiguousarray(array, np.float32)
        self.shapes[name] = array.shape
        return name

    def product(self, op_type: Callable[..., Op], x: str, of: str, weight: Array, /, *rest: Any) -> str:
        """Append an op that multiplies x by `weight`, whose first dimension is that of its outputs; return its result.

        For fp16, unless the op is a Conv, each image of x gets a power of two as a factor, which comes out again
        exactly: no sum leaves float16's range.
        """
        if not self.rescales or op_type is Conv:  # the planner knows which convolutions are of float16
            return self.add(op_type, x, of, weight, *rest)
        largest = max(float(np.abs(row).sum(dtype=np.float64)) for row in weight)  # row by row: they may be large
        exponent = min(_FLOAT16, math.floor(_FLOAT16 - math.log2(largest))) if largest else 0
        factor = self.add(PowerOfTwo, x, of, exponent)
        scaled = self.add(Arithmetic, x, of, others=(factor,), function="mul")
        found = self.add(op_type, scaled, of, weight, *rest)
        return self.add(Arithmetic, found, of, others=(factor,), function="div")

    def summed(self, gradients: list[str], of: str) -> str:
        """Return the sum of the gradients of a value, one from each of its readers."""
        while len(gradients) > 1:
            first, *others = gradients[:_MOST_OPERANDS]
            gradients = [self.add(Arithmetic, first, of, others=tuple(others)), *gradients[_MOST_OPERANDS:]]
        return gradients[0]

    def through_relu(self, gradients: list[str], y: str, limits: Limits | None = None) -> str:
        """Return the summed gradients where the ReLU's result y is above zero, or the Clip's between its limits."""
        if len(self.shapes[y]) != _MAP_RANK:
            gradients = gradients if len(gradients) <= _MOST_GRADIENTS else [self.summed(gradients, y)]
            if limits is None:
                return self.add(ReluGradient, y, y, others=tuple(gradients))
            return self.add(ClipGradient, y, y, others=tuple(gradients), low=limits[0], high=limits[1])
        pool = self._pool_gradient(gradients, y)
        if pool:
            self.ops.remove(pool)  # nobody else reads it: it is done in the same pass
            gradients = [name for name in gradients if name != pool.y]
        most = _MOST_GRADIENTS - bool(pool)
        gradients = gradients if len(gradients) <= most else [self.summed(gradients, y)]
        others = (pool.x, *gradients) if pool else tuple(gradients)
        return self.add(MaskedGradient, y, y, others=others, pools=bool(pool), range=limits)

    def _pool_gradient(self, gradients: list[str], y: str) -> PoolGradient | None:
        """Return the gradient among these that comes from a 2x2 max pool of y, if any."""
        pools = (op for op in self.ops if isinstance(op, PoolGradient) and op.y in gradients and op.others == (y,))
        return next((op for op in pools if op.kind == "max" and same_window(op.window, MAX_POOL_2X2)), None)


def vjp_rule(back: Backward, op: Op, gradients: list[str]) -> Iterable[tuple[str, str]]:
    """Return (value, its gradient) for each run-time operand of an op, whose result has these gradients.

    Raises ModelError for an op whose gradient is not known.
    """
    rule = _RULES.get(type(op))
    if rule is None:
        known = ", ".join(sorted(kind.__name__ for kind in _RULES))
        raise ModelError(
            f"{type(op).__name__} '{op.y}': its gradient is not supported; supported are those of {known}; "
            "name outputs before it"
        )
    if isinstance(op, Clip):
        gradient = back.through_relu(gradients, op.y, _constant_limits(op))
    else:
        masked = isinstance(op, Relu) or getattr(op, "relu", False)
        gradient = back.through_relu(gradients, op.y) if masked else back.summed(gradients, op.y)
    return rule(back, op, gradient)


_Found = Iterable[tuple[str, str]]


def _same(back: Backward, op: Op, gradient: str) -> _Found:
    del back
    return [(op.x, gradient)]


def _reshaped(back: Backward, op: Op, gradient: str) -> _Found:
    return [(op.x, back.add(Reshape, gradient, op.x, back.shapes[op.x]))]


def _transposed(back: Backward, op: Transpose, gradient: str) -> _Found:
    inverse = tuple(np.argsort(op.permutation).tolist())
    return [(op.x, back.add(Transpose, gradient, op.x, inverse))]


def _conv(back: Backward, op: Conv, gradient: str) -> _Found:
    spread, window = _turned_window(back, op, op.window, gradient)
    return [(op.x, back.product(Conv, spread, op.x, back.turned(op.weight), None, window))]


def _general_conv(back: Backward, op: GeneralConv, gradient: str) -> _Found:
    weight = _constant(back, op, op.others[0])
    outputs, channels, *kernel = weight.shape
    parts = weight.reshape(op.group, outputs // op.group, channels, *kernel).swapaxes(1, 2)[..., ::-1, ::-1]
    turned = back.constant(parts.reshape(op.group * channels, outputs // op.group, *kernel), op.y)
    spread, window = _turned_window(back, op, op.window, gradient)
    return [(op.x, back.add(GeneralConv, spread, op.x, (turned,), window, op.group))]


def _turned_window(back: Backward, op: Op, window: Window, gradient: str) -> tuple[str, Window]:
    """Return the gradient with zeros between its pixels for strides, and the window that maps it to the shape of x."""
    height, width = back.shapes[op.x][2:]
    spread = _with_zeros_between(back, op, gradient, window.strides)
    pads, extent = window.padding(height, width), window.extent
    rows, columns = back.shapes[spread][2:]
    top, left = extent[0] - 1 - pads.top, extent[1] - 1 - pads.left
    bottom, right = height - rows - top + extent[0] - 1, width - columns - left + extent[1] - 1
    around = Pads(top, left, bottom, right)
    if min(around) < 0:  # the outermost pixels were computed from padding alone
        before, after = (0, 0, min(top, 0), min(left, 0)), (0, 0, min(bottom, 0), min(right, 0))
        spread = back.add(Pad, spread, op.x, before, after, 0.0)
        around = Pads(*(max(pad, 0) for pad in around))
    return spread, Window(window.kernel, (1, 1), around, window.dilations)


def _with_zeros_between(back: Backward, op: Op, gradient: str, strides: tuple[int, int]) -> str:
    if strides == (1, 1):
        return gradient
    batch, channels, rows, columns = back.shapes[gradient]
    down, across = strides
    apart = back.add(Reshape, gradient, op.x, (batch, channels, rows, 1, columns, 1))
    padded = back.add(Pad, apart, op.x, (0,) * 6, (0, 0, 0, down - 1, 0, across - 1), 0.0)
    joined = back.add(Reshape, padded, op.x, (batch, channels, rows * down, columns * across))
    return back.add(Pad, joined, op.x, (0,) * 4, (0, 0, 1 - down, 1 - across), 0.0)


def _gemm(back: Backward, op: Gemm, gradient: str) -> _Found:
    found = back.product(Gemm, gradient, op.x, dgrad_matrix_weight(op.weight), None)
    return [(op.x, back.add(Reshape, found, op.x, back.shapes[op.x]) if op.flattens else found)]


def _pool(back: Backward, op: Pool, gradient: str) -> _Found:
    options = {"kind": op.kind, "window": op.window, "count_include_pad": op.count_include_pad}
    return [(op.x, back.add(PoolGradient, gradient, op.x, (op.x,), **options))]


def _global_pool(back: Backward, op: GlobalPool, gradient: str) -> _Found:
    height, width = back.shapes[op.x][2:]
    return [(op.x, back.add(PoolGradient, gradient, op.x, (op.x,), kind=op.kind, window=Window((height, width))))]


def _batch_norm(back: Backward, op: BatchNorm, gradient: str) -> _Found:
    factor = op.scale / np.sqrt(op.variance.astype(np.float64) + op.epsilon)
    return [(op.x, _times(back, op, gradient, factor.astype(np.float32)))]


def _general_batch_norm(back: Backward, op: GeneralBatchNorm, gradient: str) -> _Found:
    scale, _, _, variance = (_constant(back, op, name) for name in op.others)
    factor = scale / np.sqrt(variance.astype(np.float64) + op.epsilon)
    return [(op.x, _times(back, op, gradient, factor.astype(np.float32)))]


def _times(back: Backward, op: Op, gradient: str, per_channel: Array) -> str:
    inner = (1,) * (len(back.shapes[op.x]) - 2)
    factor = back.constant(per_channel.reshape(-1, *inner), op.y)
    return back.add(Arithmetic, gradient, op.x, others=(factor,), function="mul")


def _softmax(back: Backward, op: Softmax, gradient: str) -> _Found:
    """Return y * (gradient - the sum of gradient * y) as the gradient of a softmax of (N, F)."""
    weighted = back.add(Arithmetic, gradient, op.x, others=(op.y,), function="mul")
    ones = back.constant(np.ones((back.shapes[op.y][1], 1), np.float32), op.y)
    total = back.add(MatMul, weighted, op.x, others=(ones,))
    centred = back.add(Arithmetic, gradient, op.x, others=(total,), function="sub")
    return [(op.x, back.add(Arithmetic, centred, op.x, others=(op.y,), function="mul"))]


def _arithmetic(back: Backward, op: Arithmetic, gradient: str) -> _Found:
    """Yield gradients of operands as large as the result. Raises ModelError for smaller ones, which need sums."""
    for place, name in enumerate(op.operands):
        if name in back.constants:
            continue
        if back.shapes[name] != back.shapes[op.y] or (op.function == "div" and place):
            raise ModelError(
                f"{op.function} '{op.y}': the gradient of '{name}', {back.shapes[name]}, which becomes "
                f"{back.shapes[op.y]}, is not supported; name outputs before it"
            )
        others = (*op.operands[:place], *op.operands[place + 1 :])
        match op.function:
            case "mul" | "div":
                yield name, back.add(Arithmetic, gradient, name, others=others, function=op.function)
            case "sub" if place:
                minus = back.constant(np.array([-1.0], np.float32), op.y)
                yield name, back.add(Arithmetic, gradient, name, others=(minus,), function="mul")
            case _:
                yield name, gradient


def _constant_limits(op: Clip) -> Limits:
    if op.others:
        raise ModelError(
            f"Clip '{op.y}': its gradient is supported with constant limits, and these are computed; name outputs "
            "before it"
        )
    return op.range


def _constant(back: Backward, op: Op, name: str) -> Array:
    if name not in back.constants:
        raise ModelError(
            f"{type(op).__name__} '{op.y}': its gradient is supported with constant weights, and '{name}' is computed"
        )
    return back.constants[name]


_RULES: Final[Mapping[type[Op], Callable[[Backward, Any, str], _Found]]] = {
    Arithmetic: _arithmetic,
    BatchNorm: _batch_norm,
    Clip: _same,
    Conv: _conv,
    Flatten: _reshaped,
    Gemm: _gemm,
    GeneralBatchNorm: _general_batch_norm,
    GeneralConv: _general_conv,
    GlobalPool: _global_pool,
    Identity: _same,
    Pool: _pool,
    Relu: _same,
    Reshape: _reshaped,
    Softmax: _softmax,
    Transpose: _transposed,
}


@dataclass(frozen=True, eq=False)
class GradientGraph:
    """A graph whose only output is the gradient of `input` of another graph.

    cotangents: the shape of a gradient for each output of the other graph, by its name here, in their order; those that
    matter are further inputs.
    """

    graph: Graph
    cotangents: Mapping[str, Shape]


def gradient_graph(graph: Graph, shape: Shape, precision: str = "fp32") -> GradientGraph:
    """Return the gradient of a simplified graph with one input, of this shape; precision: of its products.

    Raises ModelError for an op whose gradient is not known, and where no output depends on the input.
    """
    back = Backward(dict(infer_shapes(graph, shape)), dict(graph.constants), rescales=precision == "fp16")
    forward = unpooled(graph, back)
    given: list[tuple[str, str]] = []
    cotangents: dict[str, Shape] = {}
    for output in graph.outputs:
        name = back.fresh(f"{output}/cotangent")
        cotangents[name] = back.shapes[name] = back.shapes[output]
        given.append((output, name))
    found = back_to_input(graph.input, forward, back, given)
    ops, names = needed((*forward, *back.ops), (found,))
    constants = {name: array for name, array in back.constants.items() if name in names}
    others = tuple(GraphInput(name, dims) for name, dims in cotangents.items() if name in names)
    return GradientGraph(Graph(graph.input, ops, (found,), others, constants), cotangents)


def back_to_input(source: GraphInput, forward: tuple[Op, ...], back: Backward, given: Iterable[tuple[str, str]]) -> str:
    """Append the ops from gradients of some values to that of the input; return its name. given: (value, gradient).

    Raises ModelError as `gradient_graph` does.
    """
    gradients: defaultdict[str, list[str]] = defaultdict(list)
    for value, gradient in given:
        gradients[value].append(gradient)
    for op in reversed(forward):
        if op.y in gradients:
            for value, gradient in vjp_rule(back, op, gradients.pop(op.y)):
                gradients[value].append(gradient)
    if not gradients[source.name]:
        raise ModelError(f"no output of the model depends on its input '{source.name}': there is no gradient")
    found = back.summed(gradients[source.name], source.name)
    if not back.ops or back.ops[-1].y != found:  # the input itself is an output
        found = back.add(Reshape, found, source.name, back.shapes[found])
    return found


def unpooled(graph: Graph, back: Backward) -> tuple[Op, ...]:
    """Return the ops with pools split from convolutions: gradients need the map between, whose shape `back` gets."""
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Conv) and op.pool:
            between = back.fresh(f"{op.y}/before its pool")
            conv = replace(op, y=between, names=(between,), pool=False)
            back.shapes[between] = conv.shape_of_y(back.shapes[op.x])
            ops += [conv, Pool(between, op.y, op.names, "max", MAX_POOL_2X2)]
        else:
            ops.append(op)
    return tuple(ops)


def needed(ops: tuple[Op, ...], outputs: tuple[str, ...]) -> tuple[tuple[Op, ...], set[str]]:
    """Return the ops that some values are computed from, in order, and the names of all values they read."""
    names, kept = {*outputs}, []
    for op in reversed(ops):
        if not names.isdisjoint(op.results):
            names.update(op.operands)
            kept.append(op)
    return tuple(reversed(kept)), names
