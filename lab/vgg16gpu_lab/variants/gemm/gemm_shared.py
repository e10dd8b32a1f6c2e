"""im2col, then a product with tiles in shared memory: kernels/lab/gemm/gemm_shared.cu."""

from __future__ import annotations

from vgg16gpu.program.launch import Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_shared.cu"


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    block = parameters["block"]
    return im2col.squares(problem, places, Kernel(SOURCE, "gemm_shared", (("BLOCK", block),)), block)


VARIANTS = (
    Variant(
        name="gemm-shared",
        title="im2col + GEMM, shared memory",
        order=112,
        source=SOURCE,
        teaches="What a block's threads read in common is fetched once, into shared memory.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 8, 32)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
