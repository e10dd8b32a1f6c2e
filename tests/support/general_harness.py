"""One op on its own, between values of chosen layouts, without a planner: what general op kernels are tested with.

Between the buffers and in the output lies poison: a float that no thread stored is NaN, a store beside a buffer is
found afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tests.kernels.layout.test_convert import encoded
from tests.support.kernel_harness import Bench, stored
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler import op_kernels as ops
from vgg16gpu.compiler.graph.ops import Array, MultiOp, Op, Shape
from vgg16gpu.compiler.op_kernels.base import OpContext, OpMemory, WeightPacker
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import StatusBlock
from vgg16gpu.program.types import Arena, DType, Layout, Pointer, TensorDesc

NOWHERE = Pointer(Arena.ACTIVATIONS, 0)
NO_PLACES = OpMemory(NOWHERE, StatusBlock(NOWHERE, NOWHERE, 1), NOWHERE, NOWHERE)


def layouts_of(*shapes: Shape) -> Iterator[tuple[Layout, ...]]:
    """Every choice of layouts for values of these shapes: NHWC is for maps and matrices."""
    return product(*((Layout.PLAIN, Layout.NHWC) if len(shape) in (2, 4) else (Layout.PLAIN,) for shape in shapes))


def compute(device: Device, op: Op, operands: Sequence[Array], layouts: Sequence[Layout]) -> Array:
    """op.y in its ONNX shape; `layouts` are those of the operands and of y. AssertionError if its padding is not 0."""
    bench = Bench(device, Arena.ACTIVATIONS)
    shapes = [operand.shape for operand in operands]
    values = [_put(bench, array, layout) for array, layout in zip(operands, layouts[:-1], strict=True)]
    y = TensorDesc("y", op.shape_of_y(*shapes), layouts[-1], NOWHERE)
    y = TensorDesc("y", y.shape, y.layout, bench.room(y.nbytes))
    (op_kernel,) = ops.kernels_for(op, "ffma")
    assert op_kernel.any_layout or {*layouts} == {Layout.NHWC}
    layer = OpContext(op, shapes[0], device.facts, other_shapes=tuple(shapes[1:]))
    arena = WeightPacker()
    constants = op_kernel.weights(layer, arena)
    places = {upload.target: bench.put(upload.array) for upload in arena.uploads}
    x = tuple(values) if isinstance(op, MultiOp) else values[0]
    steps = op_kernel.steps(layer, x, y, tuple(places[constant] for constant in constants), NO_PLACES)
    for step in steps:
        arguments(step)
    assert steps
    bench.run(*steps)
    return real_part(bench.get(y.pointer, y.stored_shape), y)


def compute_all(
    device: Device,
    op: Op,
    operands: Sequence[Array],
    first: DType = DType.F32,
    second: DType = DType.F32,
    scale: Array | None = None,
) -> list[Array]:
    """Every result of an op, all values NHWC where they are maps or matrices, else plain.

    first, second: the elements of the first operand, and of a plain second one. scale: of a first operand of pairs, a
    power of two for each stored channel.
    """
    bench = Bench(device, Arena.ACTIVATIONS)
    shapes = [operand.shape for operand in operands]
    maps = [Layout.NHWC if len(shape) in (2, 4) else Layout.PLAIN for shape in shapes]
    values = [_put(bench, array, layout) for array, layout in zip(operands, maps, strict=True)]
    if first is not DType.F32:
        pointer = bench.put(encoded(stored(operands[0], first), first, scale))
        scales = None if scale is None else bench.put(scale)
        values[0] = TensorDesc("x", shapes[0], Layout.NHWC, pointer, first, scales)
    if second is not DType.F32:
        values[1] = TensorDesc("t", shapes[1], Layout.PLAIN, bench.put(encoded(operands[1], second)), second)
    found = [op.shape_of_y(*shapes), *[shapes[0]] * (len(op.results) - 1)]
    results = [
        TensorDesc("y", shape, Layout.NHWC if len(shape) in (2, 4) else Layout.PLAIN, NOWHERE) for shape in found
    ]
    results = [replace(value, pointer=bench.room(value.nbytes)) for value in results]
    (op_kernel,) = ops.kernels_for(op, "ffma")
    layer = OpContext(op, shapes[0], device.facts, other_shapes=tuple(shapes[1:]))
    workspace = bench.room(max(op_kernel.workspace_nbytes(layer), 4))
    counters = bench.put(np.zeros(max(op_kernel.counters(layer), 1), np.float32))
    places = replace(NO_PLACES, workspace=workspace, counters=counters, further=tuple(results[1:]))
    x = tuple(values) if isinstance(op, MultiOp) else values[0]
    steps = op_kernel.steps(layer, x, results[0], (), places)
    for step in steps:
        arguments(step)
    bench.run(*steps)
    return [real_part(bench.get(value.pointer, value.stored_shape), value) for value in results]


def check_all_layouts(device: Device, op: Op, operands: Sequence[Array], expected: Array) -> None:
    """Bit by bit the same in every choice of layouts."""
    shapes = [operand.shape for operand in operands]
    for layouts in layouts_of(*shapes, op.shape_of_y(*shapes)):
        y = compute(device, op, operands, layouts)
        assert y.shape == expected.shape
        np.testing.assert_array_equal(y.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32), str(layouts))


def real_part(memory: Array, value: TensorDesc) -> Array:
    """A value as numpy knows it; AssertionError where its padding is not zero."""
    if value.layout is Layout.PLAIN:
        return memory
    channels = value.shape[1]
    assert not memory[..., channels:].view(np.uint32).any(), f"padding channels are not zero: {memory[..., channels:]}"
    return np.ascontiguousarray(np.moveaxis(memory, -1, 1)[:, :channels])


def _put(bench: Bench, array: Array, layout: Layout) -> TensorDesc:
    assert array.dtype == np.float32
    memory = array if layout is Layout.PLAIN else stored(array)
    return TensorDesc("x", array.shape, layout, bench.put(memory))
