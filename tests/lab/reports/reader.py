"""The kernels that the reports print, cut out of their own text at test time: "theirs" is said of nothing else.

The texts are no part of the project. They are looked for in $VGG16GPU_REPORTS, else in shared/seeds beside the
checkout; where they are not there, or have moved, tests are skipped and say so.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "VGG16GPU_REPORTS"
REPORTS: Final = Path(
    os.environ.get(VARIABLE) or Path(__file__).resolve().parents[3].parent / "shared" / "seeds"
)  # of S1.txt to S5.txt
TILE: Final = 16  # of templates

_NUMBER: Final = re.compile(r"^\s*\d{1,3}(?=\s|$)")  # the line number that S2 and S5 print
_FENCE: Final = "```"
_TO_RUN: Final = (  # what our two compilers need, and nothing that a kernel computes
    (re.compile(r"template\s*<\s*int\s+(\w+)\s*>"), rf"constexpr int \1 = {TILE};"),
    (re.compile(r"extern\s+__shared__\s+float\s+(\w+)\[\];"), r"DYNAMIC_SHARED(float, \1);"),
    (re.compile(r'(?<!"C" )__global__'), 'extern "C" __global__'),
    (re.compile(r"#pragma unroll\b"), "UNROLL"),
    (
        re.compile(r"^(?=void serial_convolution\()", re.MULTILINE),
        "__device__ ",
    ),  # S4's serial code, which a kernel calls
)


@dataclass(frozen=True)
class Printed:
    """A kernel as a report prints it: lines of its text, both included."""

    name: str  # of the kernel
    file: str
    first: int
    last: int
    numbered: bool = False  # lines begin with a printed number
    dropped: tuple[int, ...] = ()  # lines that are there once too often
    mark: str = "__global__"  # in the first line, or the text has moved
    before: str = ""  # glue of ours
    after: str = ""

    @property
    def label(self) -> str:
        """For the names of tests."""
        return f"{Path(self.file).stem}-{self.name}"


S1_CONV2 = Printed("conv2", "S1.txt", 30, 68, dropped=(68,))  # a brace too many
S1_IM2COL = Printed("im2col", "S1.txt", 80, 108)
S1_GEMM = Printed("gemm", "S1.txt", 117, 130)
S2_IM2COL = Printed("im2col_kernel", "S2.txt", 152, 173, numbered=True)
S2_SHARED = Printed("matrixMulShared", "S2.txt", 191, 220, numbered=True, mark="template")
S2_BASIC = Printed("matrixMulBasic", "S2.txt", 239, 258, numbered=True)
S2_REGED = Printed("matrixMulReged", "S2.txt", 261, 310, numbered=True, dropped=(297, 298), mark="template")
S2_ROW = Printed("matrixMulRow", "S2.txt", 321, 337, numbered=True)
S2_COL = Printed("matrixMulCol", "S2.txt", 340, 361, numbered=True)
S2_BLOCK = Printed("matrixMulBlock", "S2.txt", 364, 378, numbered=True)
S4_SERIAL = Printed(
    "serial",
    "S4.txt",
    240,
    282,
    mark="#define",
    after="__global__ void serial(float* in, float* out, float* kernel, int inC, int inH, int inW, int outC,\n"
    "                       int outH, int outW, int kernelH, int kernelW) {\n"
    "  serial_convolution(in, out, kernel, 1, inC, inH, inW, outC, outH, outW, kernelH, kernelW);\n"
    "}\n",
)


def require(printed: Printed) -> list[str]:
    """The lines of its report; skips the test where the text is not there, or is another one."""
    path = REPORTS / printed.file
    if not path.is_file():
        pytest.skip(f"no text of the reports: {path} is not there (set {VARIABLE} to the folder of S1.txt to S5.txt)")
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) < printed.last or printed.mark not in lines[printed.first - 1]:
        pytest.skip(f"{path} has no '{printed.mark}' in line {printed.first}: it is another text of this report")
    return lines


def code(printed: Printed) -> str:
    """The kernel as it is printed, without printed line numbers."""
    lines = require(printed)
    chosen = (
        lines[number - 1]
        for number in range(printed.first, printed.last + 1)
        if number not in printed.dropped and not lines[number - 1].startswith(_FENCE)
    )
    text = "\n".join(_NUMBER.sub("", line, count=1) if printed.numbered else line for line in chosen)
    return f"{printed.before}{text}\n{printed.after}"


def runnable(*printed: Printed) -> str:
    """Kernels as a file that the devices compile: C names, a tile for templates, our words for what compilers spell."""
    text = "\n".join(map(code, printed))
    for pattern, replacement in _TO_RUN:
        text = pattern.sub(replacement, text)
    return f'#include "common.cuh"\n\n{text}'
