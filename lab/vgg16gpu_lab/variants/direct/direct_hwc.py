"""Direct convolution of images in HWC, one thread per output: the Python side of kernels/lab/direct/direct_hwc.cu."""

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import cover, launch_at_run_time


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["block"]
    pointers = (places.y, places.x, places.weight)
    return launch_at_run_time("direct_hwc", problem, pointers, cover(problem, side, side), Dim3(side, side))


VARIANTS = (
    Variant(
        name="direct-hwc",
        title="direct, HWC",
        order=10,
        source="lab/direct_hwc.cu",
        teaches="With channels innermost, neighbouring threads read and write several floats apart.",
        launches=_launches,
        x_layout="HWC",
        y_layout="HWC",
        seeds=("S2",),
        parameters={"block": (16, 8, 32)},
    ),
)
