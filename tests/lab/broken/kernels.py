"""Kernels with one mistake each: the one of `lab new`, changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

GUARD = "if (i >= OH || j >= OW) return;"
ZERO = "if (h < 0 || h >= H || w < 0 || w >= W) continue;  // padding is zero"
X = "x[(((long long)n * C + c) * H + h) * W + w]"
WEIGHT = "weight[(((long long)o * C + c) * K + p) * K + q]"
Y = "y[(((long long)n * OC + o) * OH + i) * OW + j] = sum;"
INSIDE = "const bool in = h >= 0 && h < H && w >= 0 && w < W;"
LAST = "if (blockIdx.z == gridDim.z - 1 && i == OH - 1 && j == OW - 1)"
SUMMED = f"sum = fmaf({X}, {WEIGHT}, sum);"


@dataclass(frozen=True)
class Broken:
    """A kernel with these texts changed, and what `lab run` must say of it."""

    changes: tuple[tuple[str, str], ...]
    said: str  # a regular expression
    options: tuple[str, ...] = ()  # of `lab run`, which show it
    right: tuple[str, ...] = ()  # the block and stride with which it is right all the same

    def write(self, kernel: Path) -> None:
        """Into the file of the template's kernel."""
        text = kernel.read_text()
        for old, new in self.changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        kernel.write_text(text)


def instead(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((old, new),)


def at_the_end(statement: str) -> tuple[tuple[str, str], ...]:
    return ((Y, f"{Y}\n  {statement}"),)


NO_BARRIER = (
    (GUARD, "__shared__ float filter[1024];\n"
            "  if (threadIdx.x == 0 && threadIdx.y == 0)\n"
            "    for (int k = 0; k < C * K * K; k++) filter[k] = weight[(long long)o * C * K * K + k];\n"
            f"  {GUARD}"),
    (WEIGHT, "filter[(c * K + p) * K + q]"),
)  # fmt: skip

BROKEN: Mapping[str, Broken] = MappingProxyType(
    {
        # Of the reviews
        "a row and a column too many": Broken(instead(GUARD, "if (i > OH || j > OW) return;"), "writes behind y"),
        "no guard": Broken(instead(GUARD, ""), "writes behind y", ("--blocks", "8,16,32")),
        "does not compile": Broken(instead("float sum = 0.f;", "float sum = nonsense;"), r"mine\.cu does not compile"),
        "never ends": Broken(at_the_end("while (x != nullptr) y[0] += 0.f;"), "did not end within .* a loop without"),
        # Writes
        "a column too many": Broken(instead("j >= OW", "j > OW"), "writes behind y"),
        "300 bytes behind y": Broken(at_the_end(f"{LAST} (&{Y[:-7]})[75] = 0.f;"), "writes behind y"),
        "into x": Broken(at_the_end(f"{LAST} const_cast<float*>(x)[1] = 7.f;"), "writes into x"),
        "into the weights": Broken(at_the_end(f"{LAST} const_cast<float*>(weight)[0] = 7.f;"), "writes into weight"),
        "far outside": Broken(at_the_end("y[(1ll << 40) + i] = sum;"), "SIG(SEGV|BUS): it reads or writes far outside"),
        "last column left out": Broken(instead("j >= OW)", "j >= OW - 1)"), "error nan .* not written"),
        # Reads
        "a row above": Broken(instead("if (h < 0", "if (h < -1"), "error nan"),
        "beside, times 0": Broken(
            ((ZERO, INSIDE), (X, f"{X} * (in ? 1.f : 0.f)")), "error nan .* or read beside its array"
        ),
        "beside, through fmaxf": Broken(
            ((ZERO, INSIDE), (SUMMED, f"sum = in ? fmaf({X}, {WEIGHT}, sum) : sum + fmaxf({X} - 1e6f, 0.f);")),
            "reverse order: error inf",
        ),
        "beside, thrown away": Broken(
            ((ZERO, INSIDE), (SUMMED, f"sum = in ? fmaf({X}, {WEIGHT}, sum) : sum - fmaxf(-{X} - 1e6f, 0.f);")),
            r"reads 4 bytes outside of its arrays in mine\.cu, line \d+ \(address sanitizer\)",
        ),
        "shared memory before it is written": Broken(
            instead("float sum = 0.f;", "__shared__ float never[32];\n  float sum = never[threadIdx.x % 32];"),
            "error nan",
        ),
        # Wrong answers
        "channel forgotten": Broken(instead("(long long)o * C + c)", "(long long)o * C)"), r"error [\d.]+ against"),
        "barrier missing": Broken(NO_BARRIER, r"threads in reverse order: error"),
        "block of 32": Broken(
            at_the_end(f"if (blockDim.x == 32) {Y[:-4]}1.f;"), r"error [\d.]+", ("--blocks", "8,32"), ("mine block=8",)
        ),
        "stride 2": Broken(
            at_the_end(f"if (stride == 2) {Y[:-4]}1.f;"), r"error [\d.]+", ("--strides", "1,2"), ("stride=1",)
        ),
    }
)
