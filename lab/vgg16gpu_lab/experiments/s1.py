"""S1: direct convolution, im2col + GEMM, and cuDNN, on square images of 31 to 511 pixels, and of up to 8192.

Kernel, depth, stride, padding and card are not stated: 3x3 over three channels with a padding of 1, strides 1 to 3.
Their time of im2col leaves the conversion out; the time with it is a row of its own. Their future work, values in
shared memory and several outputs per thread, are rows too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vgg16gpu_lab.experiment import Case, CaseExperiment, Choice, Row, find_row, ratio_row
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32, CUDNN_THREE
from vgg16gpu_lab.measure.measure import Scope
from vgg16gpu_lab.problem import Problem

SIZES = (31, 63, 127, 255, 511)
NEAR = (1023, 2047, 4095, 8191)  # where does cuDNN overtake? 2^n - 1, as theirs; too much for a CPU
LARGER = (1024, 2048, 4096, 8192)  # powers of two: rows lie apart by what caches are made of
QUICK = (31, 63, 127)

# method, variant, what is timed
METHODS: tuple[tuple[str, str, Scope], ...] = (
    ("direct", "direct-published", "compute"),
    ("direct_rows", "direct-rows", "compute"),
    ("direct_planes", "direct-planes", "compute"),
    ("direct_coalesced", "direct-chw", "compute"),
    ("several_outputs", "several-outputs", "compute"),
    ("shared_memory", "tiled-shared", "compute"),
    ("im2col_gemm_only", "im2col-vector", "compute"),
    ("im2col_gemm", "im2col-vector", "total"),
    ("cudnn", CUDNN, "compute"),
    ("cudnn_tf32", CUDNN_TF32, "compute"),
    ("cudnn_three", CUDNN_THREE, "compute"),
    ("cudnn_setup", CUDNN, "setup"),
)
NOTES = {
    "direct": "both faults, as theirs; several output channels and images are ours",
    "direct_rows": "threadIdx.x walks rows: the first fault alone",
    "direct_planes": "stores its sum for every channel: the second fault alone",
    "direct_coalesced": "neither of the two faults",
    "im2col_gemm": "with the conversion",
    "cudnn_tf32": "products rounded to TF32",
    "cudnn_three": "their loop: three calls of one problem, own handles and weights, one time",
    "cudnn_setup": "with handle, descriptors, heuristics and plan",
}


def cases(choice: Choice) -> Iterator[Case]:
    """Yield every method at every size and stride."""
    usual = SIZES if choice.kind == "cpu" else SIZES + NEAR + LARGER
    for size in choice.sizes_or(usual, QUICK):
        for stride in choice.strides or (1, 2, 3):
            for channels in choice.channels or (3,):
                for outputs in choice.outputs or (1,):
                    problem = Problem(1, channels, size, size, outputs, 3, stride, 1)
                    for method, variant, scope in METHODS:
                        if variant == CUDNN_THREE and size > SIZES[-1]:  # their loop, at sizes such as theirs
                            continue
                        yield Case(
                            "methods",
                            str(size),
                            method,
                            parameter(problem),
                            problem,
                            variant,
                            scope=scope,
                            note=NOTES.get(method, ""),
                        )


def parameter(problem: Problem) -> str:
    """Return the parameter as in the published table; "" where the problem is theirs."""
    parts = {"stride": (problem.stride, 1), "channels": (problem.channels, 3), "outputs": (problem.outputs, 1)}
    return " ".join(f"{name}={value}" for name, (value, usual) in parts.items() if value != usual)


def ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield how much faster cuDNN is for larger images (claim: 6 times), at the largest size with both times."""
    sizes = sorted({int(row.size) for row in rows}, key=lambda size: ((size + 1) & size == 0, size), reverse=True)
    pairs = [
        [find_row(rows, size=str(size), method=method, parameter="") for method in ("direct", CUDNN)] for size in sizes
    ]
    timed = [pair for pair in pairs if all(row and row.ours for row in pair)]
    over, under = next(iter(timed or pairs), (None, None))
    yield ratio_row("S1", "large", "cudnn_over_direct", over, under, f"at {over.size}" if over else "")


EXPERIMENT = CaseExperiment(
    "S1",
    "Direct convolution, im2col + GEMM, cuDNN",
    "Which way threads walk over memory may decide more than the algorithm; a time without its conversion is none.",
    lambda choice: tuple(cases(choice)),
    lambda rows: tuple(ratios(rows)),
)
