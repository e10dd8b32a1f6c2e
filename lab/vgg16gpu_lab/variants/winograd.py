"""Winograd's F(2x2,3x3): the Python side of kernels/lab/winograd.cu."""

from typing import Final

from vgg16gpu.compiler.op_kernels.base import ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant

_SOURCE: Final = "lab/winograd.cu"
_TRANSFORMED: Final = 16  # numbers of a 3x3 filter
_BLOCK: Final = 128


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    p, count = problem, parameters["outputs"]
    defines, groups = (("OUTPUTS", count),), ceil_div(p.outputs, count)
    tiles = ceil_div(p.out_height, 2) * ceil_div(p.out_width, 2)
    weights = KernelLaunch(
        kernel=Kernel(_SOURCE, "winograd_weights_f32", defines),
        grid=Dim3(ceil_div(groups * count * p.channels, _BLOCK)),
        block=Dim3(_BLOCK),
        arguments=(places.workspace, places.weight, *scalars(p.channels, p.outputs)),
        nbytes=4 * p.outputs * p.channels * (p.kernel**2 + _TRANSFORMED),
        label="winograd weights",
    )
    convolution = KernelLaunch(
        kernel=Kernel(_SOURCE, "winograd_f32", defines),
        grid=Dim3(ceil_div(tiles, _BLOCK), groups, p.batch),
        block=Dim3(_BLOCK),
        arguments=(
            *(places.y, places.x, places.workspace),
            *scalars(p.channels, p.height, p.width, p.outputs, p.out_height, p.out_width, p.padding),
        ),
        flop=p.flop,
        nbytes=p.nbytes,
        label="winograd",
    )
    return Launches(compute=(convolution,), convert=(weights,))


def _refuses(problem: Problem, parameters: Parameters) -> str:
    if problem.kernel != 3 or problem.stride != 1:
        return f"F(2x2,3x3) does 3x3 kernels at stride 1, not {problem.kernel}x{problem.kernel} at {problem.stride}"
    if parameters["outputs"] % 4:
        return f"'outputs' is {parameters['outputs']}, filters are read by fours: take a multiple of 4"
    return ""


def _workspace_nbytes(problem: Problem, parameters: Parameters) -> int:
    count = parameters["outputs"]
    return 4 * _TRANSFORMED * problem.channels * ceil_div(problem.outputs, count) * count


VARIANTS = (
    Variant(
        name="winograd",
        title="Winograd F(2x2,3x3)",
        order=70,
        source=_SOURCE,
        teaches="4 multiplications per output instead of 9, for more additions, loads and registers.",
        launches=_launches,
        seeds=("S4",),
        parameters={"outputs": (4, 8)},
        refuses=_refuses,
        workspace_nbytes=_workspace_nbytes,
    ),
)
