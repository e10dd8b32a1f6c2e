"""The planner: a graph and the facts of a device in, programs out. Pure: needs no GPU, decides everything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from vgg16gpu.errors import ModelError
from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import Flatten, Gemm, Graph, Op, Shape, Softmax, infer_shapes
from vgg16gpu.memory import Lifetime, aligned, assign_offsets
from vgg16gpu.ops import layout, lowering, preprocess
from vgg16gpu.ops.base import WeightArena
from vgg16gpu.ops.preprocess import Normalisation
from vgg16gpu.program import Arena, InputSlot, Layout, Plan, Pointer, Program, Step, Value, WeightPlan


def make_plan(
    graph: Graph,
    facts: DeviceFacts,
    input_shapes: Sequence[Shape],
    *,
    normalisation: Normalisation | None = None,
    keep_values: bool = False,
) -> Plan:
    """Programs for runs on each of `input_shapes` (equal but for the batch), and the weights that they share.

    `normalisation` adds an input step for bytes (N, H, W, C). With `keep_values` no buffer is used twice, so that every
    value can be read after a run. Raises ModelError when the graph does not fit an input shape.
    """
    arena = WeightArena()
    shapes = infer_shapes(graph, input_shapes[0])
    constants = {op.y: lowering(op).weights(op, shapes[op.x], arena) for op in graph.ops}
    normalise = preprocess.weights(normalisation, arena) if normalisation else None
    weights = WeightPlan(tuple(arena.uploads), arena.nbytes, arena.staging_nbytes)
    planner = _Planner(graph, facts, constants, normalise, keep_values)
    return Plan(weights, tuple(planner.program(shape) for shape in sorted(input_shapes, key=lambda shape: shape[0])))


_Buffer: TypeAlias = tuple[str, str]  # (what it is for, name): an ONNX name may be anything
_RAW_INPUT: _Buffer = ("raw input", "")
_OUTPUT_BLOCK: _Buffer = ("output block", "")


@dataclass(frozen=True)
class _Planner:
    graph: Graph
    facts: DeviceFacts
    constants: Mapping[str, tuple[Pointer, ...]]
    normalise: tuple[Pointer, Pointer] | None
    keep_values: bool

    def program(self, input_shape: Shape) -> Program:
        """One batch size: sizes first, then places, then steps."""
        shapes = infer_shapes(self.graph, input_shape)
        _check_sizes(shapes)
        output_offsets, status_offset = self._output_offsets(shapes)
        output_nbytes = status_offset + 4 * input_shape[0] * layout.input_blocks(input_shape)
        places, activations_nbytes = self._places(shapes, output_nbytes)
        block = places[_OUTPUT_BLOCK]
        values = {
            name: Value(name, shape, Layout.NHWC, places[_value(name)])
            for name, shape in shapes.items()
            if _value(name) in places
        }
        outputs = tuple(
            Value(name, shapes[name], Layout.PLAIN, Pointer(block.arena, block.offset + offset))
            for name, offset in zip(self.graph.outputs, output_offsets, strict=True)
        )
        values |= {value.name: value for value in outputs if value.name not in values}
        status = Pointer(block.arena, block.offset + status_offset)
        steps: list[Step] = []
        for op in self.graph.ops:
            workspace = places.get(_workspace(op), block)
            arguments = (op, values[op.x], values[op.y], self.constants[op.y], workspace, self.facts)
            steps += lowering(op).steps(*arguments)
        steps += [
            layout.from_nhwc(values[y.name], y, (y.name,), "output to ONNX layout")
            for y in outputs
            if values[y.name] is not y
        ]
        stored = [self.graph.input.name, *(op.y for op in self.graph.ops)]
        return Program(
            batch=input_shape[0],
            input=self._input_slot(values[self.graph.input.name], places[_RAW_INPUT], status),
            steps=tuple(steps),
            outputs=outputs,
            output=block,
            output_nbytes=output_nbytes,
            status=status,
            status_per_image=layout.input_blocks(input_shape),
            activations_nbytes=activations_nbytes,
            values=tuple(values[name] for name in stored),
        )

    def _output_offsets(self, shapes: Mapping[str, Shape]) -> tuple[list[int], int]:
        """Offsets of the outputs, and of the status words behind them, in the block that one copy brings back."""
        offsets, end = [], 0
        for name in self.graph.outputs:
            offsets.append(end)
            end += aligned(4 * math.prod(shapes[name]))
        return offsets, end

    def _places(self, shapes: Mapping[str, Shape], output_nbytes: int) -> tuple[dict[_Buffer, Pointer], int]:
        """Where every buffer of the activation arena lies. Step 0 takes the input in, op i runs as step i + 1."""
        end = len(self.graph.ops) + 1
        last_use = {op.x: step for step, op in enumerate(self.graph.ops, 1)}
        born = {self.graph.input.name: 0} | {op.y: step for step, op in enumerate(self.graph.ops, 1)}
        direct = {name for name in born if self._writes_output(name)}
        keep = set(born) if self.keep_values else set(self.graph.outputs)
        lives = {_RAW_INPUT: Lifetime(4 * math.prod(shapes[self.graph.input.name]), 0, 0)}
        for name, step in born.items():
            if name not in direct:
                nbytes = _unplaced(name, shapes[name]).nbytes
                lives[_value(name)] = Lifetime(nbytes, step, end if name in keep else last_use.get(name, step))
        for step, op in enumerate(self.graph.ops, 1):
            if nbytes := lowering(op).workspace_nbytes(op, shapes[op.x], self.facts):
                lives[_workspace(op)] = Lifetime(nbytes, step, step)
        lives[_OUTPUT_BLOCK] = Lifetime(output_nbytes, 0, end)
        if self.keep_values:
            lives = {buffer: replace(life, first=0, last=end) for buffer, life in lives.items()}
        offsets, size = assign_offsets(tuple(lives.values()))
        return {buffer: Pointer(Arena.ACTIVATIONS, offset) for buffer, offset in zip(lives, offsets, strict=True)}, size

    def _writes_output(self, name: str) -> bool:
        """Whether the op that computes `name` can write the plain output itself: a matrix that nobody else reads."""
        producer = next((op for op in self.graph.ops if op.y == name), None)
        read = any(op.x == name for op in self.graph.ops)
        return name in self.graph.outputs and isinstance(producer, Gemm | Softmax | Flatten) and not read

    def _input_slot(self, value: Value, raw: Pointer, status: Pointer) -> InputSlot:
        steps = {"float32": layout.to_nhwc(raw, value, status)}
        if self.normalise:
            steps["uint8"] = preprocess.from_bytes(raw, value, status, self.normalise)
        return InputSlot(value.name, value.shape, raw, steps)


def _check_sizes(shapes: Mapping[str, Shape]) -> None:
    """The kernels count the floats of an image and the 16-byte vectors of a value in 32 bits."""
    for name, shape in shapes.items():
        stored = math.prod(_unplaced(name, shape).stored_shape)
        if stored // shape[0] >= 1 << 31 or stored >= 1 << 33:
            raise ModelError(
                f"value '{name}' of shape {shape} is too large: an image may have 2^31 values, a batch 2^33; "
                "use a smaller image or batch"
            )


def _unplaced(name: str, shape: Shape) -> Value:
    """A value in the device layout before it has a place: for its size alone."""
    return Value(name, shape, Layout.NHWC, Pointer(Arena.ACTIVATIONS, 0))


def _value(name: str) -> _Buffer:
    return "value", name


def _workspace(op: Op) -> _Buffer:
    return "workspace", op.y
