"""Time a step of LPIPS with its gradient, a fresh target in each, beside torch's operators: milliseconds and memory.

    python -m testbench.measure.lpips_step MODEL.onnx [--case 1x256,16x256] [--ways ours,torch,compile] [--output FILE]

The layers are relu1_2 to relu5_3, the distance that of unit vectors, with a weight for each channel; the gradient goes
to the first picture. Ours is `PerceptualLoss` in bf16, fp16 and fp32, also with the gradients to both pictures. torch
computes as it comes (convolutions in TF32), in autocast to bfloat16, and in strict float32, each with maps in NCHW and
in channels_last: launch by launch, as a CUDA graph and, but for strict float32, by torch.compile, also as a CUDA graph
of what that has made. cuDNN tries its algorithms (cudnn.benchmark).

Milliseconds a step are the median and the best of `ROUNDS` rounds of back to back steps by the host's clock, after
`WARM` seconds of them. Memory is what the card has used (mem_get_info) more than before the way was made: weights,
compiled kernels, and what a step takes where torch's allocator keeps nothing of the steps before. A distance is that of
the gradient from torch's in strict float32, norm-wise. A way that fails is recorded with its error and leaves the
others; exit code 1 then, and where a gradient is further off than any rounding makes it.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from testbench.measure import lpips_ways
from testbench.measure.lpips_ways import FORMS, Way, case_of
from testbench.measure.perceptual_ways import FORMATS, Case
from testbench.measure.torch_calls import Call, by_wall, timed, wait
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device

CASES: Final = ((1, 256), (16, 256))  # pictures, pixels a side
WAYS: Final = ("ours", "torch", "compile")
ROUNDS: Final = 7
SECONDS: Final = 0.05  # of a round
WARM: Final = 0.3  # seconds of steps before the rounds
STEPS: Final = 3  # that take memory anew before it is read

Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print a table; 1 if a way failed or was far off."""
    options = _options(arguments)
    model, deadline = Model(options.model), time.monotonic() + options.budget
    steps, left_out = list[Record](), list[str]()
    content: Record = {"what": __doc__, "model": options.model.name, "lpips": steps, "left_out": left_out}
    with closing(open_device(options.device).device) as device:
        content["environment"] = environment(device)
    cases = [case_of(model, options.device, count, size) for count, size in options.case]
    exact = {case: _exact(case, steps) for case in cases}
    for case, way in _order(cases, options.ways):
        if time.monotonic() < deadline:
            steps += _measured(case, way, exact[case])
        else:
            left_out.append(_label({**_named(case, way), "form": ""}))
        if options.output:  # what there is so far
            write(options.output, content)
    _show(content)
    return int(bool(_faults(steps)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    def ways(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in WAYS]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not known; accepted: {', '.join(WAYS)}")
        return found

    parser = argparse.ArgumentParser(prog="python -m testbench.measure.lpips_step", description="Steps of LPIPS.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to see that it works")
    parser.add_argument("--case", type=_cases, default=list(CASES), metavar="NxSIZE,...", help="pictures x pixels")
    parser.add_argument("--ways", type=ways, default=list(WAYS), metavar="NAMES", help=", ".join(WAYS))
    parser.add_argument("--budget", type=float, default=480.0, metavar="SECONDS", help="then no further way is begun")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    return parser.parse_args(arguments)


def _cases(text: str) -> list[tuple[int, int]]:
    """Return (number of pictures, pixels a side) of each case. Raises ArgumentTypeError."""
    found = [re.fullmatch(r"(\d+)x(\d+)", word) for word in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"'{text}': give pictures x pixels a side, as in 1x256,16x256")
    return [(int(match[1]), int(match[2])) for match in found if match]


def _order(cases: Sequence[Case], wanted: Sequence[str]) -> Iterator[tuple[Case, Way]]:
    """Yield what is measured; what takes longest and gains least comes last, for a budget to leave it out."""
    compiled = (lpips_ways.compiled(order) for order in reversed(FORMATS))  # channels_last should be the faster one
    groups = (("ours", lpips_ways.ours()), ("torch", lpips_ways.torchs()), *(("compile", ways) for ways in compiled))
    for name, ways in groups:
        if name in wanted:
            yield from ((case, way) for case in cases for way in ways)


def _exact(case: Case, steps: list[Record]) -> torch.Tensor | None:
    """Return the gradient that others are compared with; None, and its error is a record, where torch fails."""
    try:
        return lpips_ways.exact_gradient(case)
    except Exception as error:
        named = {"by": "reference", "order": "", "count": case.count, "size": case.size, "form": ""}
        steps.append({**named, "error": _described(error)})
        return None


def _measured(case: Case, way: Way, exact: torch.Tensor | None) -> list[Record]:
    """Measure each form of a way; what fails is a record with its error."""
    named, found = _named(case, way), list[Record]()
    try:
        before = _used(case)
        with way.open(case) as calls:
            for form, make in calls.items():
                found.append({**named, "form": form, **_form(case, way, make, exact, before)})
    except Exception as error:
        found.append({**named, "form": "", "error": _described(error)})
    return found


def _form(case: Case, way: Way, make: Callable[[], Call], exact: torch.Tensor | None, before: int) -> Record:
    """Measure one form, as far as it goes. before: bytes of the card that were in use."""
    found: Record = {}
    try:
        call = make()
        found |= timed(partial(by_wall, case.device), call, rounds=ROUNDS, seconds=SECONDS, warm=WARM)
        found |= _memory(case, call, before)
        if exact is not None:
            distance = _distance(call()[1], exact)
            found |= {"distance": distance, "is_far": not distance <= way.bound}
    except Exception as error:
        found["error"] = _described(error)
    return found


def _memory(case: Case, call: Call, before: int) -> dict[str, int]:
    """Return the bytes of the card that steps take, beside what was used before; nothing of a CPU."""
    if case.device == "cpu":
        return {}
    _used(case)  # nothing is kept of earlier steps
    for _ in range(STEPS):
        call()
    wait(case.device)
    free, total = torch.cuda.mem_get_info()
    return {"memory_nbytes": total - free - before}


def _used(case: Case) -> int:
    """Return the bytes of the card in use, once torch has given back what it keeps; 0 of a CPU."""
    gc.collect()
    if case.device == "cpu":
        return 0
    wait(case.device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _distance(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of the difference by the norm of the exact one."""
    difference = torch.linalg.vector_norm(gradient.double() - exact.double())
    return float(difference / torch.linalg.vector_norm(exact.double()))


def _named(case: Case, way: Way) -> Record:
    return {"by": way.by, "order": way.order, "count": case.count, "size": case.size}


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _faults(steps: Sequence[Record]) -> list[str]:
    """Name the ways that failed or are far off."""
    failed = [f"{_label(step)}: {step['error'][:120]}" for step in steps if "error" in step]
    return failed + [f"{_label(step)}: {step['distance']:.1e} off" for step in steps if step.get("is_far")]


def _label(step: Record) -> str:
    words = (f"{step['count']}x{step['size']}", step["by"], step["order"], step["form"])
    return ", ".join(filter(None, words))


def _show(content: Record) -> None:
    """Print a table for each case: the better order of memory of each form; memory and distance of the fastest."""
    steps = [step for step in content["lpips"] if "median_ms" in step]
    print(f"{content['model']}: LPIPS with its gradient, median ms a step; GiB and distance of the fastest")
    for count, size in dict.fromkeys((step["count"], step["size"]) for step in steps):
        own = [step for step in steps if (step["count"], step["size"]) == (count, size)]
        print(f"{f'{count}x{size}x{size}':26}" + "".join(f"{form:>16}" for form in FORMS) + f"{'GiB':>8}  distance")
        for by in dict.fromkeys(step["by"] for step in own):
            print(_row(by, [step for step in own if step["by"] == by]))
    for line in _faults(content["lpips"]):
        print(line)
    if content["left_out"]:
        print(f"not begun within the budget: {'; '.join(content['left_out'])}")


def _row(by: str, steps: Sequence[Record]) -> str:
    fastest = min(steps, key=_median)
    times = [min((_median(step) for step in steps if step["form"] == form), default=None) for form in FORMS]
    shown = "".join(f"{'-' if ms is None else f'{ms:.4g}':>16}" for ms in times)
    memory = f"{fastest['memory_nbytes'] / 2**30:.2f}" if "memory_nbytes" in fastest else "-"
    distance = f"{fastest['distance']:.1e}" if "distance" in fastest else "-"
    return f"{by:26}{shown}{memory:>8}  {distance:>8}"


def _median(step: Record) -> float:
    return float(step["median_ms"])


if __name__ == "__main__":
    sys.exit(main())
