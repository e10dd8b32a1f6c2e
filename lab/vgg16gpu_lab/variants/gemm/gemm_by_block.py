"""im2col, then a product with a thread for each element, in square blocks: the kernel of gemm_basic.cu."""

from __future__ import annotations

from vgg16gpu.program.launch import Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_basic.cu"  # a partition by blocks is what that one does already


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    return im2col.squares(problem, places, Kernel(SOURCE, "gemm_basic"), parameters["block"])


VARIANTS = (
    Variant(
        name="gemm-by-block",
        title="im2col + GEMM, by block",
        order=124,
        source=SOURCE,
        teaches="The kernel of gemm-basic under another name. A 64x64 block is 4096 threads: it never runs.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 32, 64)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
