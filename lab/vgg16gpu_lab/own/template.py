"""What `lab new NAME` writes: a kernel that works, its Python side and its test, to be made into something better."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
from pathlib import Path
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import write_error
from vgg16gpu_lab.variants import variants

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST: Final = 60  # characters of a name
_CPP_WORD: Final = re.compile(  # those that a name could be, and that are no words of Python
    "alignas|alignof|asm|auto|bool|case|catch|char|const|constexpr|decltype|default|delete|do|double|enum|explicit|"
    "export|extern|float|friend|goto|inline|int|long|main|mutable|namespace|new|noexcept|nullptr|operator|private|"
    "protected|public|register|short|signed|sizeof|static|struct|switch|template|this|throw|typedef|typeid|typename|"
    "union|unsigned|using|virtual|void|volatile"
)


_KERNEL: Final = """\
// @STEM@: y[n,o,i,j] = sum over c, p, q of x[n,c,i*stride+p-padding,j*stride+q-padding] * weight[o,c,p,q]
// Layouts:  x (N,C,H,W), weight (OC,C,K,K), y (N,OC,OH,OW), all float.
// Mapping:  a thread computes one output; grid (columns, rows, N*OC), any 2-D block.
// Shared:   none.
// Cost:     per output: 2*C*K*K FLOP, 2*C*K*K loads from global memory.
// Teaches:  where everybody starts. What does yours do better?
#include "common.cuh"

extern "C" __global__ void @STEM@(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ weight,
                                  int C, int H, int W, int OC, int OH, int OW, int K, int stride, int padding) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
  const int o = blockIdx.z % OC, n = blockIdx.z / OC;
  if (i >= OH || j >= OW) return;
  float sum = 0.f;
  for (int c = 0; c < C; c++)
    for (int p = 0; p < K; p++)
      for (int q = 0; q < K; q++) {
        const int h = i * stride + p - padding, w = j * stride + q - padding;
        if (h < 0 || h >= H || w < 0 || w >= W) continue;  // padding is zero
        sum = fmaf(x[(((long long)n * C + c) * H + h) * W + w], weight[(((long long)o * C + c) * K + p) * K + q], sum);
      }
  y[(((long long)n * OC + o) * OH + i) * OW + j] = sum;
}
"""

_MODULE: Final = '''\
"""The Python side of @STEM@.cu: how it is launched, and what `vgg16gpu lab` says of it."""

from pathlib import Path

from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu.program import Dim3, Kernel, KernelLaunch, Scalar

SOURCE = str(Path(__file__).resolve().with_name("@STEM@.cu"))


def launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    """One launch: a thread for each output."""
    batch, outputs, rows, columns = problem.y_shape
    block = parameters["block"]
    sizes = (problem.channels, problem.height, problem.width, outputs, rows, columns)
    step = KernelLaunch(
        kernel=Kernel(SOURCE, "@STEM@"),  # macros: Kernel(SOURCE, "@STEM@", (("TILE", 4),))
        grid=Dim3(-(-columns // block), -(-rows // block), batch * outputs),
        block=Dim3(block, block),
        arguments=(
            places.y,
            places.x,
            places.weight,
            *map(Scalar, (*sizes, problem.kernel, problem.stride, problem.padding)),
        ),
        flop=problem.flop,
        nbytes=problem.nbytes,
        label="@NAME@",
    )
    return Launches(compute=(step,))


VARIANTS = (
    Variant(
        name="@NAME@",
        title="@NAME@",
        order=1000,
        source=SOURCE,
        teaches="Say in a sentence what yours teaches.",
        launches=launches,
        parameters={"block": (16, 8, 32)},  # values that are worth a try, the usual one first
    ),
)
'''

_TEST: Final = '''\
"""@STEM@.cu against float64, on problems of odd shapes. Run it: python -m pytest test_@STEM@.py"""

import pytest
from @STEM@ import VARIANTS

from vgg16gpu.devices import open_device
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.trial import Trial

PROBLEMS = (
    Problem(batch=1, channels=3, height=31, width=31, outputs=1, padding=1),
    Problem(batch=2, channels=1, height=17, width=40, outputs=5, kernel=5, stride=2, padding=2),
    Problem(batch=3, channels=7, height=9, width=8, outputs=9, kernel=1, stride=3),
    Problem(batch=1, channels=2, height=7, width=33, outputs=2, kernel=7, padding=3),
)


@pytest.fixture(scope="module")
def device():
    """A GPU if there is one, else the CPU; open_device("cpu") is always the CPU."""
    opened, _ = open_device("auto")
    yield opened
    opened.close()


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_right_answer(device, variant, problem):
    with Trial(device, variant, problem) as trial:
        assert trial.error() <= variant.tolerance
        assert trial.trespass() == ""  # "behind y": an index is wrong
'''


def write_template(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Write kernel, Python side and test of a new variant into `folder`, which is made; their paths.

    Nothing is replaced. Raises InputError for a name that is none or taken, and for files that are there.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"'{name}' is no name for a variant: small letters and digits with hyphens, as in my-kernel")
    if len(name) > _LONGEST:
        raise InputError(f"'{name}' has {len(name)} characters; a name may have {_LONGEST}")
    stem = name.replace("-", "_")
    if reason := _reserved(stem):
        raise InputError(f"'{name}' is {reason}; take another name")
    if name in {variant.name for variant in variants()}:
        raise InputError(f"there is a variant '{name}' already (see `vgg16gpu lab list`); take another name")
    texts = {f"{stem}.cu": _KERNEL, f"{stem}.py": _MODULE, f"test_{stem}.py": _TEST}
    there = [file for file in texts if os.path.lexists(folder / file)]
    if there:
        raise InputError(f"{folder / there[0]} is there already and is left as it is; take another name or folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            with (folder / file).open("x", encoding="utf-8") as stream:
                stream.write(text.replace("@STEM@", stem).replace("@NAME@", name))
    except OSError as error:
        raise write_error(folder, error) from error
    kernel, module, test = (folder / file for file in texts)
    return kernel, module, test


def _reserved(stem: str) -> str:
    """Return what else the shared name of kernel, Python module and command-line word means; "" if nothing."""
    if keyword.iskeyword(stem) or _CPP_WORD.fullmatch(stem):
        return "a word of Python or C++"
    if stem in ("all", "conftest"):
        return "a word of `lab run` or pytest"
    return "the name of a Python module" if importlib.util.find_spec(stem) else ""
