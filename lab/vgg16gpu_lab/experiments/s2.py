"""S2: stride, memory mode, thread-block and partition, on square images of 256 to 4096 pixels (Quadro M4000).

3x3 over three channels, one output channel. `layer` is what they left out: 64 output channels, as VGG16's first layer
has; there GEMMs have rows enough to share what they load. `--outputs 64` is all of it for such a layer. The padding is
1, as their 1024^2 outputs of 1024^2 pixels need. The times of `im2col_gemm` and of `layer`, which stand beside
convolutions that need no conversion, have it in them; those of the tables of GEMMs do not, as theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vgg16gpu_lab.experiment import Case, CaseExperiment, Choice
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32
from vgg16gpu_lab.problem import Problem

SIZES = (256, 512, 1024, 2048, 4096)
QUICK = (256,)
MEMORY = {"basic": "gemm-basic", "shared": "gemm-shared", "registers": "gemm-named"}
PARTITION = {"row": "gemm-by-row", "column": "gemm-by-column", "block": "gemm-by-block"}
REGISTER_TILE = "gemm-register"
TASK_BLOCK = 16  # of their im2col + GEMM
LAYER_SIZES, LAYER_OUTPUTS = (1024,), 64
LAYER = {"basic": "gemm-basic", "shared": "gemm-shared", "register_tile": REGISTER_TILE}
NOTES = {
    "direct": "channels outside, every tap tested, as theirs; filters (C,3,3), theirs (3,3,C)",
    "registers": "names for the operands of 'shared'",
    "register_tile": "not theirs: a true register tile",
    CUDNN_TF32: "products rounded to TF32",
}


def cases(choice: Choice) -> Iterator[Case]:
    """Yield the three published tables, a true register tile beside their 'registers', and the layer."""
    for problem in problems(choice, (1,)):
        for block in choice.blocks or (8, 16, 32):
            for method, variant in MEMORY.items():
                yield _gemm("gemm_memory", problem, method, variant, block)
        yield _case("gemm_memory", problem, "register_tile", "", REGISTER_TILE)
        for block in choice.blocks or (16, 32, 64):
            for method, variant in PARTITION.items():
                yield _gemm("gemm_partition", problem, method, variant, block)
    for problem in problems(choice, choice.strides or (1, 2, 3)):
        parameter = f"stride={problem.stride}"
        yield _case("stride", problem, "direct", parameter, "direct-hwc")
        yield replace(_case("stride", problem, "im2col_gemm", parameter, "gemm-shared", TASK_BLOCK), scope="total")
        for library in (CUDNN, CUDNN_TF32):
            yield _case("stride", problem, library, parameter, library)
    for size in choice.sizes_or(LAYER_SIZES, QUICK):
        problem = Problem(1, 3, size, size, LAYER_OUTPUTS, 3, 1, 1)
        yield _case("layer", problem, "direct", "", "direct-hwc")
        for method, variant in LAYER.items():
            yield replace(_case("layer", problem, method, "", variant), scope="total")
        for library in (CUDNN, CUDNN_TF32):
            yield _case("layer", problem, library, "", library)


def problems(choice: Choice, strides: tuple[int, ...]) -> Iterator[Problem]:
    """Yield every size, stride, number of channels and of outputs."""
    for size in choice.sizes_or(SIZES, QUICK):
        for stride in strides:
            for channels in choice.channels or (3,):
                for outputs in choice.outputs or (1,):
                    yield Problem(1, channels, size, size, outputs, 3, stride, 1)


def _gemm(table: str, problem: Problem, method: str, variant: str, block: int) -> Case:
    return _case(table, problem, method, f"block={block}", variant, block)


def _case(table: str, problem: Problem, method: str, parameter: str, variant: str, block: int | None = None) -> Case:
    extra = {"channels": (problem.channels, 3), "outputs": (problem.outputs, 1)}
    other = [f"{name}={value}" for name, (value, usual) in extra.items() if value != usual]
    name = " ".join(part for part in (parameter, *other) if part)
    parameters = {} if block is None else {"block": block}
    return Case(table, str(problem.height), method, name, problem, variant, parameters, note=NOTES.get(method, ""))


EXPERIMENT = CaseExperiment(
    "S2",
    "Stride, memory mode, thread-block and partition",
    "A launch that fails takes no time at all; operands with names are no register tile; threads must have work.",
    lambda choice: tuple(cases(choice)),
    takes=("sizes", "strides", "blocks", "channels", "outputs"),
)
