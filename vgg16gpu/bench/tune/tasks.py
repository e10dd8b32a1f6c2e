"""The distinct layers of models that have tiles to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Conv, Flatten, Gemm, Op, Pool, Relu, Shape
from vgg16gpu.compiler.graph.passes import simplify
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.op_kernels.base import FLOAT, HostInput, InputKernel, OpContext, OpMemory
from vgg16gpu.compiler.op_kernels.conv import conv_first, conv_first_two, conv_wgmma
from vgg16gpu.compiler.op_kernels.gemm import fc_wgmma
from vgg16gpu.compiler.op_kernels.tile_choice import Choice
from vgg16gpu.compiler.op_kernels.wgmma import y_element
from vgg16gpu.compiler.planner.selection import PlanOptions, select_kernels
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale, quantised_inputs, stored_scales
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import KernelLaunch, StatusBlock
from vgg16gpu.program.types import Arena, DeviceFacts, Layout, Pointer, TensorDesc

KERNELS: Final[tuple[Any, ...]] = (conv_first_two, conv_wgmma, conv_first, fc_wgmma)  # they have problems, candidates
NOWHERE: Final = Pointer(Arena.ACTIVATIONS, 0)
_NO_PLACES: Final = OpMemory(NOWHERE, StatusBlock(NOWHERE, NOWHERE, 1), NOWHERE, NOWHERE)
_CONV: Final[conv_wgmma.ConvWeights[Pointer]] = conv_wgmma.ConvWeights._make(
    NOWHERE for _ in conv_wgmma.ConvWeights._fields
)
_FIRST: Final[conv_first.FirstConvWeights[Pointer]] = conv_first.FirstConvWeights._make(
    NOWHERE for _ in conv_first.FirstConvWeights._fields
)
_WEIGHTS: Final[dict[str, object]] = {  # of each kernel, at no place
    conv_first_two.__name__: conv_first_two.ConvPairWeights(_FIRST, _CONV),
    conv_wgmma.__name__: _CONV,
    conv_first.__name__: _FIRST,
    fc_wgmma.__name__: fc_wgmma.FcWeights._make(NOWHERE for _ in fc_wgmma.FcWeights._fields),
}


@dataclass(frozen=True, eq=False)
class TuneTask:
    """A layer, and the op module whose kernels compute it."""

    kernels: Any
    layer: OpContext[Any]

    @cached_property
    def problem(self) -> Any:
        """The layer as its kernels see it."""
        return self.kernels.problem_of(self.layer)

    @property
    def key(self) -> str:
        """The name of the problem in tables."""
        return str(self.problem.key)

    def candidates(self) -> tuple[Choice[Any], ...]:
        """Return every tile that is worth a try; the first is the one without measurements."""
        return tuple(self.kernels.candidates(self.problem, self.layer.facts.multiprocessors))

    @property
    def today(self) -> Choice[Any]:
        """Choice of a plan: of the device's tables, or without measurements."""
        chosen = self.kernels.choose(self.problem, self.layer.facts)
        return Choice(chosen.tile, chosen.programmatic)

    def cut(self, choice: Choice[Any]) -> OpContext[Any]:
        """Return the layer on a device whose table has this choice."""
        return replace(self.layer, facts=replace(self.layer.facts, tuned={self.key: choice.entry}))

    @cached_property
    def x(self) -> TensorDesc | HostInput:
        """Input, at no place."""
        if isinstance(self.kernels.OP_KERNEL, InputKernel):
            return HostInput(NOWHERE, "float32")
        input_dtypes = self.kernels.OP_KERNEL.input_dtypes(self.layer)
        element = input_dtypes[0 if getattr(self.layer.op, "flattens", True) else -1]
        return TensorDesc(self.layer.op.x, self.layer.x_shape, Layout.NHWC, NOWHERE, element)

    @cached_property
    def y(self) -> TensorDesc:
        """Output, at no place."""
        op, element = self.layer.op, y_element(self.layer)
        if isinstance(op, Gemm):
            element = fc_wgmma.output_dtype(self.layer, fc_wgmma.input_dtypes(self.layer) if op.relu else FLOAT)
        return TensorDesc(op.y, op.shape_of_y(self.layer.x_shape), Layout.NHWC, NOWHERE, element)

    def step(
        self, choice: Choice[Any], x: TensorDesc | HostInput, y: TensorDesc, weights: object, places: OpMemory
    ) -> KernelLaunch:
        """Return the launch with this choice."""
        (step,) = self.kernels.OP_KERNEL.steps(self.cut(choice), x, y, weights, places)
        return step  # type: ignore[no-any-return]

    def dry_step(self, choice: Choice[Any]) -> KernelLaunch:
        """Return the launch with this choice, at no place."""
        return self.step(choice, self.x, self.y, _WEIGHTS[self.kernels.__name__], _NO_PLACES)


def tasks(graph: Graph, facts: DeviceFacts, precisions: Sequence[str], shapes: Sequence[Shape]) -> Iterator[TuneTask]:
    """Yield every layer with tiles to choose from: for each precision and layer, the input's shapes in turn."""
    for precision in precisions:
        quantised = _quantised(graph) if precision == "int8" else None
        try:
            selection = select_kernels(
                graph, facts, infer_shapes(graph, shapes[0]), PlanOptions(precision, quantised=quantised)
            )
        except ModelError as error:
            raise ModelError(f"{facts.name} has nothing to tune in {precision}: {error}") from error
        runs = [list(selection.layers(infer_shapes(graph, shape))) for shape in shapes]
        for layers in zip(*runs, strict=True):
            for layer in layers:
                for kernels in KERNELS:
                    if selection.op_kernels[layer.op.y] is kernels.OP_KERNEL:
                        yield TuneTask(kernels, layer)


def distinct(found: Iterator[TuneTask]) -> list[TuneTask]:
    """Return the first task of each problem."""
    first: dict[str, TuneTask] = {}
    for task in found:
        first.setdefault(task.key, task)
    return list(first.values())


def _quantised(graph: Graph) -> dict[str, QuantisedOp]:
    """Return integers of the right types; their values do not matter, so they take no memory."""
    scales = {name: Scale(1.0, signed) for name, signed in quantised_inputs(graph).items()}
    stored = stored_scales(graph, scales)
    return {
        op.y: QuantisedOp(
            np.broadcast_to(np.int8(0), op.weight.shape),
            np.ones(len(op.weight), np.float32),
            scales[op.x],
            stored[op.y],
        )
        for op in graph.ops
        if isinstance(op, Conv | Gemm)
    }


def vgg_graph(vgg: Vgg) -> Graph:
    """Return the simplified graph of a net, with weights that are all zero and take no memory."""
    ops: list[Op] = []
    name = "input"
    for layer in vgg.layers:
        x, name = name, f"{layer.name or 'flatten'}"
        ops.append(_op(layer.kind, x, name, layer.shape, layer.window))
    return simplify(Graph(GraphInput("input", (None, 3, vgg.size, vgg.size)), tuple(ops), (name,)))


def _op(kind: str, x: str, y: str, shape: tuple[int, ...], window: int) -> Op:
    weight, names = np.broadcast_to(np.float32(0), shape), (y,)
    bias = np.broadcast_to(np.float32(0), shape[:1])
    match kind:
        case "Conv":
            return Conv(x, y, names, weight, bias, Window((3, 3), pads=Pads(1, 1, 1, 1)))
        case "Relu":
            return Relu(x, y, names)
        case "MaxPool":
            return Pool(x, y, names, "max", MAX_POOL_2X2)
        case "AveragePool":
            return Pool(x, y, names, "average", Window((window, window), (window, window)))
        case "Flatten":
            return Flatten(x, y, names)
        case "Gemm":
            return Gemm(x, y, names, weight, bias)
    raise ModelError(f"layer {y!r} of kind {kind} cannot be tuned; give a model file")
