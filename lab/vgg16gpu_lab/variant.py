"""A way to compute a convolution: what it is called, what it teaches, and its launches for a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from vgg16gpu.errors import InputError
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import ALIGNMENT, Arena, DeviceFacts, Pointer
from vgg16gpu_lab.problem import Problem

Layout: TypeAlias = Literal["CHW", "HWC"]  # of an image, x or y; images follow each other
Parameters: TypeAlias = Mapping[str, int]

GAP_NBYTES: Final = 4096  # before and behind each array: a few rows of a small image
MAX_STATIC_NBYTES: Final = 48 << 10  # of shared memory that a kernel declares, on every architecture

_SHORT_SUM: Final = 1 << 15  # products: more than any layer of a usual network adds up


@dataclass(frozen=True)
class Places:
    """Where the arrays of a problem lie, each aligned to 256 bytes."""

    x: Pointer
    weight: Pointer  # (outputs, C, K, K)
    y: Pointer
    workspace: Pointer
    bias: Pointer  # (outputs,), of a problem that has one; nothing lies there otherwise


@dataclass(frozen=True)
class Launches:
    """What a variant runs. `convert` makes what `compute` reads (im2col, transformed weights): timed apart."""

    compute: tuple[KernelLaunch, ...]
    convert: tuple[KernelLaunch, ...] = ()
    constants: Mapping[str, Pointer] = field(default_factory=dict)
    """__constant__ arrays of the compute kernels, by name, and where their values lie: copied before the launches."""


@dataclass(frozen=True)
class Variant:
    """One technique. `launches(problem, parameters, places)` writes its steps; it runs whatever `refuses` is "" for."""

    name: str  # on the command line: direct-hwc
    title: str  # in tables: "direct, HWC"
    order: int  # reading order
    source: str  # in kernels/: "lab/direct_hwc.cu", or an absolute path
    teaches: str  # a sentence
    launches: Callable[[Problem, Parameters, Places], Launches]
    x_layout: Layout = "CHW"
    y_layout: Layout = "CHW"
    hopper: bool = False  # whether it needs compute capability 9.x and tensor maps
    seeds: tuple[str, ...] = ()  # the experiments that have it: S1 to S5
    parameters: Mapping[str, Sequence[int]] = field(
        default_factory=dict
    )  # values that are worth a try, usual one first
    refuses: Callable[[Problem, Parameters], str] = lambda problem, parameters: ""  # noqa: ARG005 - why it cannot run
    workspace_nbytes: Callable[[Problem, Parameters], int] = lambda problem, parameters: 0  # noqa: ARG005
    tolerance: float = 1e-5  # norm-wise error that its arithmetic may have
    takes_bias: bool = False  # whether it adds `places.bias` where the problem has one

    def allowed(self, problem: Problem) -> float:
        """Return the tolerance of a problem: a long sum's error in float32 grows with the root of its products."""
        products = problem.channels * problem.kernel**2
        return self.tolerance * max(1.0, math.sqrt(products / _SHORT_SUM))

    def with_defaults(self, parameters: Parameters) -> dict[str, int]:
        """Return all parameters: those given, the usual value of the others. Raises InputError for unknown ones."""
        for name in parameters:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise InputError(f"{self.name} has no parameter '{name}'; there are: {known}")
        return {name: values[0] for name, values in self.parameters.items()} | dict(parameters)

    def lacks(self, facts: DeviceFacts) -> str:
        """Return what a device lacks that the variant needs; "" where it can run."""
        if self.hopper and not (facts.compute_capability[0] == 9 and facts.tensor_maps):
            return f"it needs a GPU of compute capability 9.x and cuda-bindings, not {facts.name}"
        return ""


def places(problem: Problem, workspace_nbytes: int) -> tuple[Places, int]:
    """Return the arrays' places, with at least `GAP_NBYTES` before and behind each, and the number of bytes."""
    pointers, end = [], GAP_NBYTES
    for nbytes in _sizes(problem, workspace_nbytes):
        pointers.append(Pointer(Arena.ACTIVATIONS, end))
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT + GAP_NBYTES
    return Places(*pointers), end


def gaps(problem: Problem, workspace_nbytes: int) -> Mapping[str, tuple[int, int]]:
    """Return (offset, bytes) of the gaps before the first array and behind each, where no kernel may write."""
    found, total = places(problem, workspace_nbytes)
    starts = [each.offset for each in (found.x, found.weight, found.y, found.workspace, found.bias)]
    ends = [start + nbytes for start, nbytes in zip(starts, _sizes(problem, workspace_nbytes), strict=True)]
    names = ("before x", "behind x", "behind weight", "behind y", "behind the workspace", "behind bias")
    between = zip((0, *ends), (*starts, total), strict=True)
    return {name: (end, start - end) for name, (end, start) in zip(names, between, strict=True)}


def _sizes(problem: Problem, workspace_nbytes: int) -> list[int]:
    shapes = problem.x_shape, problem.weight_shape, problem.y_shape
    return [*(4 * math.prod(shape) for shape in shapes), workspace_nbytes, problem.bias_nbytes]
