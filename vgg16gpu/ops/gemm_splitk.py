"""Fully connected layers: the Python side of kernels/gemm_splitk.cu."""

from __future__ import annotations

from collections.abc import Sequence

from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import Gemm, Shape
from vgg16gpu.ops.base import BLOCK, Lowering, WeightArena, ceil_div, scalars
from vgg16gpu.ops.pack import gemm_input, pack_gemm
from vgg16gpu.program import Dim3, Kernel, Pointer, Step, Value, padded_channels

SOURCE = "gemm_splitk.cu"


def choose_tile(batch: int) -> tuple[int, int, int]:
    """(TILE_OUT, TILE_N, UNROLL_K). Small batches stream the weights; larger ones reuse each of them 16 times."""
    for tile_n, tile_out, unroll in ((1, 4, 2), (2, 4, 2), (4, 4, 1), (8, 4, 1)):
        if batch <= tile_n:
            return tile_out, tile_n, unroll
    return 8, 16, 1


def weights(op: Gemm, x_shape: Shape, arena: WeightArena) -> tuple[Pointer, ...]:
    """Weights as (OUT, stored features of x), bias as (padded OUT,)."""
    channels, pixels = gemm_input(x_shape, op.flattens)
    return pack_gemm(op.weight, channels, pixels, arena), arena.add_channels(op.bias, op.weight.shape[0])


def steps(
    op: Gemm, x: Value, y: Value, pointers: Sequence[Pointer], workspace: Pointer, facts: DeviceFacts
) -> tuple[Step, ...]:
    """One launch."""
    del workspace, facts
    weight, bias = pointers
    batch, outputs = x.shape[0], op.weight.shape[0]
    channels, pixels = gemm_input(x.shape, op.flattens)
    tile_out, tile_n, unroll = choose_tile(batch)
    defines = (("TILE_OUT", tile_out), ("TILE_N", tile_n), ("UNROLL_K", unroll))
    return (
        Step(
            kernel=Kernel(SOURCE, "gemm_splitk_f32", defines),
            grid=Dim3(ceil_div(y.pitch, tile_out) * ceil_div(batch, tile_n)),
            block=Dim3(BLOCK),
            arguments=(
                *(y.pointer, x.pointer, weight, bias),
                *scalars(batch, outputs, pixels * padded_channels(channels), y.pitch, int(op.relu)),
            ),
            flop=2 * batch * op.weight.size,
            nbytes=x.nbytes + y.nbytes + 4 * (op.weight.size + outputs),
            names=op.names,
            label=f"gemm {op.weight.shape[1]}->{outputs}" + " + relu" * op.relu,
        ),
    )


LOWERING = Lowering(Gemm, steps, weights)
