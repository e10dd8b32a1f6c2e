"""Direct convolution with the weights in constant memory: the Python side of kernels/lab/direct/constant_weights.cu."""

import math
from dataclasses import replace
from typing import Final

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import bias_macro, cover, launch

CAPACITY: Final = 64 << 10  # bytes of constant memory, on every architecture


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["block"]
    grid, block, pointers = cover(problem, side, side), Dim3(side, side), (places.y, places.x, places.bias)
    launches = launch(
        "constant_weights", problem, pointers, grid, block, problem.stride, problem.padding, **bias_macro(problem)
    )
    return replace(launches, constants={"weight": places.weight})


def refuses(problem: Problem, _: Parameters) -> str:
    """Return why constant memory has no room for the weights; "" where it has."""
    need = 4 * math.prod(problem.weight_shape)
    if need <= CAPACITY:
        return ""
    return f"the weights take {need:,} bytes, constant memory holds {CAPACITY:,}; take fewer channels or outputs"


VARIANTS = (
    Variant(
        name="constant-weights",
        title="weights in constant memory",
        order=50,
        source="lab/constant_weights.cu",
        teaches="All threads of a warp want the same weight at once: what the cache of constant memory is made for.",
        launches=_launches,
        seeds=("S3",),
        parameters={"block": (16, 8, 32)},
        refuses=refuses,
        takes_bias=True,
    ),
)
