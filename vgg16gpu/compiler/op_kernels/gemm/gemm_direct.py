"""Fully connected layers on a CPU: the Python side of kernels/gemm/gemm_direct.cu."""

from __future__ import annotations

from typing import Final

from vgg16gpu.compiler.graph.ops import Gemm
from vgg16gpu.compiler.op_kernels.activation import CLIPS
from vgg16gpu.compiler.op_kernels.base import OpContext, OpKernel, OpMemory, PlainWeights, ceil_div, for_cpus
from vgg16gpu.compiler.op_kernels.gemm.gemm_splitk import product, weights
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc

SOURCE: Final = "gemm_direct.cu"
TILE_OUT: Final = 4
TILE_N: Final = 4
KERNEL: Final = Kernel(SOURCE, "gemm_direct_f32", (("TILE_OUT", TILE_OUT), ("TILE_N", TILE_N)))
VARIANTS: Final = (KERNEL.defines, (*KERNEL.defines, CLIPS))  # tools/ptxas.py


def steps(
    layer: OpContext[Gemm], x: TensorDesc, y: TensorDesc, held: PlainWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del places
    blocks = ceil_div(y.pitch, TILE_OUT) * ceil_div(x.shape[0], TILE_N)
    return (product(layer, x, y, held, KERNEL, Dim3(blocks), Dim3(1)),)


OP_KERNEL = OpKernel(Gemm, steps, weights, priority=1, supports=for_cpus)
