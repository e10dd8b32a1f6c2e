"""Graph -> Graph: from the gradients of a model's outputs to that of its input (a vector-Jacobian product).

The graph of a gradient computes forward what it needs of the values between, then backward, op by op: `backward.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vgg16gpu.compiler.graph.backward import Backward, vjp_rule
from vgg16gpu.compiler.graph.ops import Conv, Graph, GraphInput, Op, Pool, Reshape, Shape
from vgg16gpu.compiler.graph.shapes import infer_shapes, output_shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.errors import ModelError


@dataclass(frozen=True, eq=False)
class GradientGraph:
    """A graph whose only output is the gradient of `input` of another graph.

    cotangents: the shape of a gradient for each output of the other graph, by its name here, in their order; those that
    matter are further inputs.
    """

    graph: Graph
    cotangents: Mapping[str, Shape]


def gradient_graph(graph: Graph, shape: Shape, precision: str = "fp32") -> GradientGraph:
    """The gradient of a simplified graph with one input, for inputs of this shape; precision: of its products.

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
    """Adds the ops from gradients of some values to that of the input, whose name it gives. given: (value, gradient).

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
    """The ops, pools apart from convolutions: the gradient needs the map between, which `back` comes to know."""
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Conv) and op.pool:
            between = back.fresh(f"{op.y}/before its pool")
            conv = replace(op, y=between, names=(between,), pool=False)
            back.shapes[between] = output_shape(conv, back.shapes[op.x])
            ops += [conv, Pool(between, op.y, op.names, "max", MAX_POOL_2X2)]
        else:
            ops.append(op)
    return tuple(ops)


def needed(ops: tuple[Op, ...], outputs: tuple[str, ...]) -> tuple[tuple[Op, ...], set[str]]:
    """The ops that some values are computed from, in their order, and the names of all that they read."""
    names, kept = {*outputs}, []
    for op in reversed(ops):
        if not names.isdisjoint(op.results):
            names.update(op.operands)
            kept.append(op)
    return tuple(reversed(kept)), names
