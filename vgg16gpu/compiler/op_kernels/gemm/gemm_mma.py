"""Fully connected layers on the tensor cores of any card since Turing: the Python side of kernels/gemm/gemm_mma.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.ops import Gemm
from vgg16gpu.compiler.op_kernels.activation import activated, activation, activation_label
from vgg16gpu.compiler.op_kernels.base import OpContext, OpKernel, OpMemory, WeightPacker, scalars
from vgg16gpu.compiler.op_kernels.layout.pack import gemm_input, pack_gemm
from vgg16gpu.compiler.op_kernels.mma import (
    CPU_GEMM_TILE,
    FINISH_THREADS,
    GEMM_VARIANTS,
    MmaTile,
    MmaWeights,
    choose_gemm_tile,
    finish_grid,
    gemm_grid,
    gemm_parts,
    gemm_workspace_nbytes,
    output_dtype,
    starts_early,
    supports,
    with_finish,
    x_element,
)
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DType, Pointer, TensorDesc

VARIANTS = GEMM_VARIANTS  # tools/ptxas.py


def weights(layer: OpContext[Gemm], arena: WeightPacker) -> MmaWeights:
    """Pack weights as (OUT, stored features of x) of the element, and their vectors."""
    op = layer.op
    element = x_element(layer)
    raw = op.weight if layer.quantised is None else layer.quantised.weight
    channels, pixels = gemm_input(layer.x_shape, op.flattens)
    stored = DType.S8 if layer.quantised is not None else element
    packed = pack_gemm(raw, channels, pixels, arena, stored, element.padded(channels))
    return with_finish(packed, layer, arena)


def workspace_nbytes(layer: OpContext[Gemm]) -> int:
    """Return the bytes for the parts of the sums."""
    return gemm_workspace_nbytes(layer.x_shape[0], layer.op.weight.shape[0], _row_nbytes(layer))


def steps(
    layer: OpContext[Gemm], x: TensorDesc, y: TensorDesc, held: MmaWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return two launches: the parts of the sums, and the launch that finishes them."""
    op = layer.op
    batch, outputs, length = x.shape[0], op.weight.shape[0], math.prod(x.stored_shape[1:])
    tile = _tile(layer)
    main, last = tile.gemm_kernels(x.element, y.element)
    parts, part_nbytes = gemm_parts(length * x.element.nbytes)
    label = f"gemm {op.weight.shape[1]}->{outputs}{activation_label(op)}"
    product = KernelLaunch(
        kernel=main,
        grid=gemm_grid(tile, batch, outputs, length * x.element.nbytes),
        block=Dim3(tile.threads),
        arguments=(places.workspace, x.pointer, held.weight, *scalars(batch, outputs, length, part_nbytes)),
        shared=tile.shared,
        flop=2 * batch * op.weight.size,
        nbytes=x.nbytes + x.element.nbytes * op.weight.size,
        names=op.names,
        label=label,
        programmatic=starts_early(layer.facts, batch),
    )
    return product, finish_step(op, last, y, (held.dequant, held.bias, held.out_scale), places, parts, product)


def finish_step(
    op: Gemm,
    last: Kernel,
    y: TensorDesc,
    vectors: tuple[Pointer, Pointer, Pointer],
    places: OpMemory,
    parts: int,
    product: KernelLaunch,
) -> KernelLaunch:
    """Return the launch that adds the parts of each sum in order and stores y.

    vectors: dequant, bias and out_scale. product: the launch before.
    """
    batch, outputs = y.shape[0], op.weight.shape[0]
    return KernelLaunch(
        kernel=activated(last, op),
        grid=finish_grid(batch, y.pitch),
        block=Dim3(FINISH_THREADS),
        arguments=(
            *(y.pointer, places.maxima, places.workspace, *vectors),
            *scalars(batch, outputs, y.pitch, parts),
            *activation(op),
            *scalars(1),
        ),
        nbytes=y.nbytes,
        names=op.names,
        label=f"{product.label}: add {parts} parts",
        programmatic=product.programmatic,
    )


def _tile(layer: OpContext[Gemm]) -> MmaTile:
    if layer.facts.kind == "cpu":
        return CPU_GEMM_TILE
    return choose_gemm_tile(layer.x_shape[0], layer.facts.shared_nbytes)


def _row_nbytes(layer: OpContext[Gemm]) -> int:
    """Return the bytes of the stored features of an image."""
    element = x_element(layer)
    channels, pixels = gemm_input(layer.x_shape, layer.op.flattens)
    return element.nbytes * pixels * element.padded(channels)


OP_KERNEL = OpKernel(
    Gemm,
    steps,
    weights,
    workspace_nbytes,
    family="mma",
    supports=supports,
    input_dtypes=lambda layer: (x_element(layer),),
    output_dtype=output_dtype,
    output_alignment=4,
)
