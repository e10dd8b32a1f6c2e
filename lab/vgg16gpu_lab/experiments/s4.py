"""S4: hand-written direct convolution against cuDNN: 6x768x512, kernel 6x6, 6 outputs, no padding.

Beside their one point: the steps to the last kernel one at a time, and their block cut in other ways (table `blocks`);
the chart that they promise (size by channels, as many outputs as channels). The row `direct` is the loop of their
pseudo-code. Ours, as the report has no source of either: a simple kernel (512 and 2048 pixels, 5x5, zero padding, one
channel and one output), and Winograd F(2x2,3x3) on a layer of 64 channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from vgg16gpu_lab.experiment import Case, CaseExperiment, Choice, Row, find_row, ratio_row
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32, NUMPY
from vgg16gpu_lab.measure.measure import Scope
from vgg16gpu_lab.problem import Problem

POINT = Problem(1, 6, 768, 512, 6, 6)
QUICK_POINT = Problem(1, 6, 192, 128, 6, 6)
CHART_SIZES, QUICK_SIZES = (64, 128, 256, 512, 1024), (64,)
SIMPLE_SIZES, QUICK_SIMPLE = (512, 2048), (128,)  # at 512 pixels a launch is much of the time
CHART_CHANNELS, QUICK_CHANNELS = (1, 3, 6, 16, 32, 64), (1, 6)
ROUNDS = 99
PUBLISHED, BEST = "halo-published", "halo-prefetch"  # their loop; ours with a true prefetch

STEPS = {  # one change each, in blocks of 4 columns x 8 rows as theirs
    "halo_edge": "halo-edge",
    "halo_even": "halo-even",
    "halo_float4": "halo-float4",
    "halo_channels": "halo-shared",
    "halo_prefetch": BEST,
    "halo_oc_outside": "halo-oc-outside",  # halo_channels with its loops the other way round
}
STEP_BLOCK: Mapping[str, int] = MappingProxyType({"block_x": 4, "block_y": 8})
BLOCKS = ((4, 8), (8, 4), (16, 2), (32, 1), (8, 8), (16, 16))  # columns x rows; the first four are a warp each
POINT_METHODS = {
    "cpu": NUMPY,
    "direct_chw": "direct-chw",
    "several_channels": "several-channels",
    **STEPS,
    "direct": PUBLISHED,
    "cudnn": CUDNN,
    "cudnn_tf32": CUDNN_TF32,
}
SIMPLE_METHODS = {"simple": "simple-16x16", "halo_shared": "halo-shared", "cudnn": CUDNN}
WINOGRAD_METHODS = {
    "winograd": "winograd",
    "direct_chw": "direct-chw",
    "halo_prefetch": BEST,
    "cudnn": CUDNN,
}
CHART_METHODS = {"direct": PUBLISHED, "halo_prefetch": BEST, "cudnn": CUDNN, "cudnn_tf32": CUDNN_TF32}
NOTES = {
    "cpu": "numpy on the host, in float64",
    "direct": "the loop of their pseudo-code; ours: two barriers that it lacks, a filter for each input channel",
    "simple": "ours, not theirs",
    "winograd": "ours, not theirs",
    "cudnn_tf32": "products rounded to TF32",
}


def cases(choice: Choice) -> Iterator[Case]:
    """Yield the published point, other blocks there, the simple kernel, Winograd, and the chart."""
    point, layer = (QUICK_POINT, 32) if choice.quick else (POINT, 256)
    yield from _cases("conv2d", f"{point.height}x{point.width}", point, POINT_METHODS)
    yield from _blocks(point)
    for size in QUICK_SIMPLE if choice.quick else SIMPLE_SIZES:
        yield from _cases("simple", str(size), Problem(1, 1, size, size, 1, 5, 1, 2), SIMPLE_METHODS)
    yield from _cases("winograd", str(layer), Problem(1, 64, layer, layer, 64, 3, 1, 1), WINOGRAD_METHODS, "total")
    for size in choice.sizes_or(CHART_SIZES, QUICK_SIZES):
        for channels in choice.channels or (QUICK_CHANNELS if choice.quick else CHART_CHANNELS):
            for outputs in choice.outputs or (channels,):
                for stride in choice.strides or (1,):
                    problem = Problem(1, channels, size, size, outputs, 6, stride)
                    yield from _cases("chart", str(size), problem, CHART_METHODS)


def _blocks(point: Problem) -> Iterator[Case]:
    """Yield the step with even shares, the output cut in other ways."""
    for columns, rows in BLOCKS:
        edges, parameters = f"block={columns}x{rows}", {"block_x": columns, "block_y": rows}
        yield Case("blocks", f"{point.height}x{point.width}", "halo_even", edges, point, "halo-even", parameters)


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
            STEP_BLOCK if table == "conv2d" and method in STEPS else {},
            scope=scope,
            note=NOTES.get(method, ""),
        )


def ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the ratio at the published point, where their loop is said to be 1.2 times as fast as cuDNN."""
    over, under = (find_row(rows, table="conv2d", problem=POINT, method=method) for method in ("cudnn", "direct"))
    yield ratio_row("S4", "768x512", "direct_over_cudnn_speed", over, under, "")


EXPERIMENT = CaseExperiment(
    "S4",
    "Hand-written direct conv2d against cuDNN",
    "Shared memory, halo and float4 pay by shape: one point, where a kernel wins, says nothing of the others.",
    lambda choice: tuple(cases(choice)),
    lambda rows: tuple(ratios(rows)),
    ROUNDS,
)
