"""Random graphs for property tests: any op after any other, small shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, BatchNorm, Conv, Flatten, Gemm, Identity, Op, Pool, Relu, Shape, Softmax
from vgg16gpu.compiler.graph.window import Pads, Window

Maker: TypeAlias = Callable[..., Array]  # of an array of the given shape

SAME = Window((3, 3), pads=Pads(1, 1, 1, 1))
HALF = Window((2, 2), (2, 2))


def zeros(*shape: int) -> Array:
    """Weights for plans, which do not look at them."""
    return np.zeros(shape, np.float32)


@st.composite
def graphs(draw: st.DrawFn, make: Maker = zeros) -> tuple[Graph, Shape]:
    """A graph and the shape of its input: values read more than once, several outputs, the input among them perhaps."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(2, 12)), draw(st.integers(2, 12)))
    shapes = {"x": shape}
    ops: list[Op] = []
    for number in range(draw(st.integers(1, 8))):
        back = draw(st.integers(0, 3)) == 0
        x = draw(st.sampled_from(sorted(shapes))) if back else list(shapes)[-1]
        ops.append(_op(draw, make, x, f"y{number}", shapes[x]))
        shapes = dict(infer_shapes(Graph(GraphInput("x", (None, *shape[1:])), tuple(ops), ()), shape))
    inner = draw(st.lists(st.sampled_from(sorted(shapes)), unique=True, max_size=3))
    outputs = tuple(dict.fromkeys((*inner, ops[-1].y)))
    return Graph(GraphInput("x", (None, *shape[1:])), tuple(ops), outputs), shape


def _op(draw: st.DrawFn, make: Maker, x: str, y: str, shape: Shape) -> Op:
    choices: list[Callable[[], Op]] = [lambda: Relu(x, y, (y,)), lambda: Identity(x, y, (y,))]
    choices += _on_matrices(draw, make, x, y, shape) if len(shape) == 2 else _on_maps(draw, make, x, y, shape)
    return draw(st.sampled_from(choices))()


def _on_matrices(draw: st.DrawFn, make: Maker, x: str, y: str, shape: Shape) -> list[Callable[[], Op]]:
    outputs, relu = draw(st.sampled_from([1, 3, 4, 10, 300])), draw(st.booleans())
    return [
        lambda: Gemm(x, y, (y,), make(outputs, shape[1]), make(outputs), relu=relu),
        lambda: Softmax(x, y, (y,)),
    ]


def _on_maps(draw: st.DrawFn, make: Maker, x: str, y: str, shape: Shape) -> list[Callable[[], Op]]:
    _, channels, height, width = shape
    filters, relu = draw(st.sampled_from([1, 3, 4, 10, 70])), draw(st.booleans())
    halves = min(height, width) > 1
    pools = halves and draw(st.booleans())
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    pads = Pads(*(draw(st.integers(0, side - 1)) for side in (*kernel, *kernel)))
    strides = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    fits = kernel[0] <= height + pads.top + pads.bottom and kernel[1] <= width + pads.left + pads.right
    window = Window(kernel, strides, pads) if fits else SAME
    return [
        lambda: Conv(x, y, (y,), make(filters, channels, 3, 3), make(filters), SAME, relu=relu, pool=pools),
        lambda: Conv(x, y, (y,), make(filters, channels, *window.kernel), None, window, relu=relu),
        lambda: Pool(x, y, (y,), "max", window),
        lambda: Pool(x, y, (y,), "average", HALF if halves else window, count_include_pad=relu),
        lambda: BatchNorm(x, y, (y,), *(make(channels) for _ in range(3)), np.abs(make(channels)) + 1, 1e-5),
        lambda: Flatten(x, y, (y,)),
        lambda: Gemm(x, y, (y,), make(filters, math.prod(shape[1:])), make(filters), flattens=True),
    ]
