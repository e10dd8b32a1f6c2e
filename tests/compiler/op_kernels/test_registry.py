"""The Python side of the kernels: every op has one, tiles suit the device, launches cover the work."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vgg16gpu.compiler import op_kernels as ops
from vgg16gpu.compiler.graph import gradient_ops, loss
from vgg16gpu.compiler.graph import ops as graph_ops
from vgg16gpu.compiler.graph.ops import Conv, Elementwise, FusedConvPair, Gemm, MultiOp, Op, Shape
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.base import (
    AnyOpKernel,
    InputKernel,
    MultiOpKernel,
    OpContext,
    OpMemory,
    ceil_div,
)
from vgg16gpu.compiler.op_kernels.conv import conv_igemm
from vgg16gpu.compiler.op_kernels.gemm import gemm_splitk
from vgg16gpu.compiler.planner.selection import FAMILIES
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import KernelLaunch, Scalar, StatusBlock
from vgg16gpu.program.types import Arena, DeviceFacts, DType, Layout, Pointer, TensorDesc

MB = 2**20
CPU = DeviceFacts("cpu", "a processor", 2, (0, 0), 232448, 2**34, 2**34)
GPUS = {
    "T4": DeviceFacts("cuda", "T4", 40, (7, 5), 65536, 2**34, 2**34),
    "MX450": DeviceFacts("cuda", "MX450", 14, (7, 5), 65536, 2**31, 2**31),
    "RTX 3060": DeviceFacts("cuda", "RTX 3060", 28, (8, 6), 101376, 2**33, 2**33),
    "A100": DeviceFacts("cuda", "A100", 108, (8, 0), 166912, 2**36, 2**36),
    "H200": DeviceFacts("cuda", "H200", 132, (9, 0), 232448, 2**37, 2**37),
}
DEVICES = {"cpu": CPU, **GPUS}
VGG16 = (  # (C, OC, map, pool) of the 13 convolutions at 224
    (3, 64, 224, False),
    (64, 64, 224, True),
    (64, 128, 112, False),
    (128, 128, 112, True),
    (128, 256, 56, False),
    (256, 256, 56, False),
    (256, 256, 56, True),
    (256, 512, 28, False),
    (512, 512, 28, False),
    (512, 512, 28, True),
    (512, 512, 14, False),
    (512, 512, 14, True),
)


def convolution(channels: int, filters: int, pool: bool = False) -> Conv:
    weight = np.broadcast_to(np.float32(0), (filters, channels, 3, 3))
    return Conv("x", "y", ("y",), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)), relu=True, pool=pool)


def steps_of(op: Op, x_shape: Shape, facts: DeviceFacts, layout: Layout = Layout.NHWC) -> tuple[KernelLaunch, ...]:
    x = TensorDesc("x", x_shape, Layout.NHWC, Pointer(Arena.ACTIVATIONS, 0))
    y = TensorDesc("y", op.shape_of_y(x_shape), layout, Pointer(Arena.ACTIVATIONS, x.nbytes))
    constants = (Pointer(Arena.WEIGHTS, 0),) * 2
    words = Pointer(Arena.ACTIVATIONS, 2 * x.nbytes)
    places = OpMemory(words, StatusBlock(words, words, x_shape[0]), words, words)
    return ffma(op).steps(OpContext(op, x_shape, facts), x, y, constants, places)


def ffma(op: Op) -> AnyOpKernel:
    """What a GPU has."""
    return next(found for found in ops.kernels_for(op, "ffma") if found.priority == 0)


# Without those that are no ops by themselves: only its own kernel asks for a chain.
BASES = (Op, MultiOp, Elementwise)
KINDS = [kind for module in (graph_ops, gradient_ops, loss) for kind in vars(module).values()]
OP_TYPES = sorted(
    {kind for kind in KINDS if isinstance(kind, type) and issubclass(kind, Op)} - {FusedConvPair, *BASES},
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("op_type", OP_TYPES, ids=lambda op_type: op_type.__name__)
def test_float32_arithmetic_computes_every_op(op_type: type[Op]) -> None:
    """On every device, from float32 to float32: what other kernels lack is always there."""
    op = object.__new__(op_type)
    found = ops.kernels_for(op)
    assert all(issubclass(op_type, op_kernel.op_type) for op_kernel in found)
    assert {op_kernel.family for op_kernel in found} <= {*FAMILIES}
    layer = OpContext(op, (1, 3, 8, 8), CPU)
    op_kernel = ffma(op)
    assert op_kernel.supports(layer)
    assert op_kernel.input_dtypes(layer) == (DType.F32,)
    assert op_kernel.output_dtype(layer, (DType.F16,)) is DType.F32
    assert op_kernel.counters(layer) == (1 if op_type is gradient_ops.PowerOfTwo else 0)  # a word for each image
    assert not isinstance(op_kernel, InputKernel)
    assert all(isinstance(one, MultiOpKernel) is issubclass(op_type, MultiOp) for one in found)


@pytest.mark.parametrize("name", ops.modules())
def test_the_table_has_every_module_with_the_ops_and_families_that_it_lowers(name: str) -> None:
    """What it lacks is never imported, so the planner would go on without that kernel."""
    rows = [row for row in ops.MODULES if f"{ops.__name__}.{row.module}" == name]
    told = [{(op, family) for op in row.ops for family in row.families} for row in rows]
    there = {(op_kernel.op_type.__name__, op_kernel.family) for op_kernel in ops.kernels_in(name)}
    assert told == ([there] if there else [])


def test_an_op_without_a_kernel_is_refused() -> None:
    class Unknown(Op):
        pass

    with pytest.raises(ModelError, match="Unknown 'y': there is no kernel for this operator"):
        ops.kernels_for(Unknown("x", "y", ("y",)))


# ---- Convolution


@pytest.mark.parametrize("batch", [1, 2, 8, 32])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layer", VGG16, ids=str)
def test_convolution_on_every_device(layer: tuple[int, int, int, bool], device: str, batch: int) -> None:
    channels, filters, size, pool = layer
    facts, op, shape = DEVICES[device], convolution(channels, filters, pool), (batch, channels, size, size)
    geometry = conv_igemm.geometry(op, shape, facts)
    tile = geometry.tile
    assert tile.shared <= facts.shared_nbytes
    assert 1 <= geometry.splits <= geometry.groups <= conv_igemm.MAX_GROUPS
    assert geometry.group % tile.k == 0
    per_block = ceil_div(geometry.groups, geometry.splits)
    assert (geometry.splits - 1) * per_block < geometry.groups  # no block without a group
    main, *rest = steps_of(op, shape, facts)
    assert main.grid.x * tile.px >= geometry.rows > (main.grid.x - 1) * tile.px
    assert main.grid.y * tile.oc >= geometry.columns > (main.grid.y - 1) * tile.oc
    assert main.grid.z == geometry.splits
    assert main.block.x == tile.threads <= 256
    assert main.flop == 2 * batch * size * size * channels * filters * 9
    workspace = conv_igemm.workspace_nbytes(OpContext(op, shape, facts))
    assert bool(rest) == bool(workspace) == (geometry.splits > 1)
    assert workspace <= 64 * MB * batch
    if rest:
        assert rest[0].grid.x * rest[0].block.x >= geometry.rows * geometry.columns // (16 if pool else 4)


def test_the_group_length_is_a_function_of_the_reduction_alone() -> None:
    op = convolution(512, 512)
    groups = {
        conv_igemm.geometry(op, (batch, 512, size, size), facts).group
        for facts in DEVICES.values()
        for batch in (1, 9)
        for size in (7, 30)
    }
    assert groups == {576}


TOO_LARGE: tuple[Shape, ...] = ((1, 4, 1, 32768), (1, 4, 32768, 1), (1, 1 << 20, 64, 64), (1 << 13, 4, 2048, 1024))


@pytest.mark.parametrize("shape", TOO_LARGE, ids=str)
def test_maps_beyond_the_indices_of_the_kernel_are_refused(shape: Shape) -> None:
    op = Conv("x", "y", ("y",), np.broadcast_to(np.float32(0), (4, shape[1], 1, 1)), None, Window((1, 1)))
    with pytest.raises(ModelError, match=r"Conv 'y': its input .* is too large; .*use a smaller image or batch"):
        conv_igemm.geometry(op, shape, CPU)


# ---- Fully connected


@pytest.mark.parametrize("batch", [*range(1, 34), 64, 1000])
def test_gemm_covers_batch_and_outputs(batch: int) -> None:
    op = Gemm("x", "y", ("y",), np.broadcast_to(np.float32(0), (1001, 64)), None)
    for layout, pitch in ((Layout.NHWC, 1004), (Layout.PLAIN, 1001)):
        (step,) = steps_of(op, (batch, 64), CPU, layout)
        tile_out, tile_n, _ = gemm_splitk.choose_tile(batch)
        assert math.prod(step.grid) == ceil_div(pitch, tile_out) * ceil_div(batch, tile_n)
        assert step.arguments[-2] == Scalar(pitch)


# ---- Shared parts


def test_a_kernel_has_at_most_32767_rows() -> None:
    """Or a row that must read as zero would come back into the map."""
    weight = np.broadcast_to(np.float32(0), (1, 1, 35000, 1))
    op = Conv("x", "y", ("y",), weight, None, Window((35000, 1), pads=Pads(17500, 0, 17496, 0)))
    with pytest.raises(ModelError, match="maps and kernels may have up to 32767 rows"):
        conv_igemm.geometry(op, (1, 1, 4, 1), CPU)
