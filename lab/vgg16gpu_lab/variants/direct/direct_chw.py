"""Direct convolution of images in CHW, one thread per output: the Python side of kernels/lab/direct/direct_chw.cu."""

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import bias_macro, cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["block"]
    grid, block = cover(problem, side, side), Dim3(side, side)
    pointers = (places.y, places.x, places.weight, places.bias)
    return launch("direct_chw", problem, pointers, grid, block, problem.stride, problem.padding, **bias_macro(problem))


VARIANTS = (
    Variant(
        name="direct-chw",
        title="direct, CHW",
        order=20,
        source="lab/direct_chw.cu",
        teaches="Neighbouring threads read neighbouring floats: coalesced, but every value is loaded for each output.",
        launches=_launches,
        seeds=("S1", "S3", "S4"),
        parameters={"block": (16, 8, 32)},
        takes_bias=True,
    ),
)
