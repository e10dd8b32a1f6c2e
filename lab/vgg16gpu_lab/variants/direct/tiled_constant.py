"""A tile in shared memory and the weights in constant memory: the Python side of tiled_constant.cu."""

from dataclasses import replace

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct import constant_weights, tiled_shared
from vgg16gpu_lab.variants.direct.launches import bias_macro, cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["tile"]
    grid, block = cover(problem, side, side), Dim3(side, side)
    pointers = (places.y, places.x, places.bias)
    macros = {"STRIDE": problem.stride, "TILE": side} | bias_macro(problem)
    launches = launch("tiled_constant", problem, pointers, grid, block, problem.padding, **macros)
    return replace(launches, constants={"weight": places.weight})


def _refuses(problem: Problem, parameters: Parameters) -> str:
    return tiled_shared.refuses(problem, parameters) or constant_weights.refuses(problem, parameters)


VARIANTS = (
    Variant(
        name="tiled-constant",
        title="tile in shared, weights in constant memory",
        order=55,
        source="lab/tiled_constant.cu",
        teaches="Shared memory holds what the threads of a block share, constant memory what all want at once.",
        launches=_launches,
        seeds=("S3",),
        parameters={"tile": (16, 8, 32)},
        refuses=_refuses,
        takes_bias=True,
    ),
)
