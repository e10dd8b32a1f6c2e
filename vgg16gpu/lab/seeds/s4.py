"""S4: hand-written direct convolution against cuDNN: 6x768x512, kernel 6x6, 6 outputs, no padding.

Beside their one point, the chart that they promise (size by channels, as many outputs as channels), their appended
simple kernel (512x512, 5x5, zero padding; one channel and one output, as nothing else is stated), and Winograd
F(2x2,3x3) on a layer of 64 channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vgg16gpu.lab.baseline import CUDNN, NUMPY
from vgg16gpu.lab.experiment import Case, CaseExperiment, Choice, Row, find_row, ratio_row
from vgg16gpu.lab.measure import Scope
from vgg16gpu.lab.problem import Problem

POINT = Problem(1, 6, 768, 512, 6, 6)
QUICK_POINT = Problem(1, 6, 192, 128, 6, 6)
CHART_SIZES, QUICK_SIZES = (64, 128, 256, 512, 1024), (64,)
CHART_CHANNELS, QUICK_CHANNELS = (1, 3, 6, 16, 32, 64), (1, 6)
ROUNDS = 99
BEST = "halo-prefetch"  # what theirs was meant to be

POINT_METHODS = {
    "cpu": NUMPY,
    "direct_chw": "direct-chw",
    "several_channels": "several-channels",
    "halo_shared": "halo-shared",
    "direct": BEST,
    "cudnn": CUDNN,
}
SIMPLE_METHODS = {"simple": "simple-16x16", "halo_shared": "halo-shared", "cudnn": CUDNN}
WINOGRAD_METHODS = {
    "winograd": "winograd",
    "direct_chw": "direct-chw",
    "halo_prefetch": BEST,
    "cudnn": CUDNN,
}
CHART_METHODS = {"halo_shared": "halo-shared", "direct": BEST, "cudnn": CUDNN}
NOTES = {"cpu": "numpy on the host, in float64", "direct": f"{BEST}, right for every shape"}


def cases(choice: Choice) -> Iterator[Case]:
    """The published point, the simple kernel, Winograd, and the chart."""
    point, simple, layer = (QUICK_POINT, 128, 32) if choice.quick else (POINT, 512, 256)
    yield from _cases("conv2d", f"{point.height}x{point.width}", point, POINT_METHODS)
    yield from _cases("simple", str(simple), Problem(1, 1, simple, simple, 1, 5, 1, 2), SIMPLE_METHODS)
    yield from _cases("winograd", str(layer), Problem(1, 64, layer, layer, 64, 3, 1, 1), WINOGRAD_METHODS, "total")
    for size in choice.sizes_or(CHART_SIZES, QUICK_SIZES):
        for channels in choice.channels or (QUICK_CHANNELS if choice.quick else CHART_CHANNELS):
            for outputs in choice.outputs or (channels,):
                for stride in choice.strides or (1,):
                    problem = Problem(1, channels, size, size, outputs, 6, stride)
                    yield from _cases("chart", str(size), problem, CHART_METHODS)


def _cases(
    table: str, size: str, problem: Problem, methods: dict[str, str], scope: Scope = "compute"
) -> Iterator[Case]:
    for method, variant in methods.items():
        yield Case(
            table,
            size,
            method,
            f"channels={problem.channels} outputs={problem.outputs} kernel={problem.kernel} stride={problem.stride}",
            problem,
            variant,
            scope=scope,
            note=NOTES.get(method, ""),
        )


def ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Theirs is about 1.2 times as fast as cuDNN at the published point."""
    over, under = (find_row(rows, table="conv2d", problem=POINT, method=method) for method in ("cudnn", "direct"))
    yield ratio_row("S4", "768x512", "direct_over_cudnn_speed", over, under, "")


EXPERIMENT = CaseExperiment(
    "S4",
    "Hand-written direct conv2d against cuDNN",
    "Shared memory, halo and prefetch pay by shape: one point, where they win, says nothing of the others.",
    lambda choice: tuple(cases(choice)),
    lambda rows: tuple(ratios(rows)),
    ROUNDS,
)
