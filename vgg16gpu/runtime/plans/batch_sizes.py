"""Which of an engine's batch sizes a number of images is run in: those that should take the least time.

The time of a program is estimated from its plan alone, so that a count is cut in the same way on every day and card:
each step moves its bytes or does its FLOP, whichever takes longer, and a launch and a run cost something, too. All in
bytes at the speed of memory. For VGG16 on an H200 the estimate is within 9 % of what was measured at batch 1, 8, 32 and
128, in fp16 and fp32 (testbench/results/bench-h200.json); what is compared here are such times with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vgg16gpu.program.launch import CompiledModel, LaunchPlan

LAUNCH: Final = 10e6  # bytes: 2.5 us at 4 TB/s
RUN: Final = 80e6  # bytes: 20 us of copies, one wait and Python
# FLOP in the time of a byte, in convolutions as they are: peaks are a third higher.
FLOP: Final[Mapping[str, float]] = {"fp32": 60, "fp16": 180, "bf16": 180, "int8": 340}
FFMA_FLOP: Final = 13


def costs(plan: CompiledModel, precision: str) -> dict[int, float]:
    """The estimated time of a run at each batch size, in bytes."""
    is_plain = {*plan.families.values()} <= {"ffma"}
    flop = FFMA_FLOP if is_plain else FLOP[precision]
    return {program.batch: _cost(program, flop) for program in plan.programs}


def cover(count: int, costs: Mapping[int, float]) -> tuple[int, ...]:
    """Batch sizes, largest first, that hold `count` images (the last may not be full) at the least cost.

    costs: of each size. Of covers that cost the same the one with fewer runs.
    """
    best = min(costs, key=lambda size: costs[size] / size)
    most = max(costs)
    whole = max(count - 2 * most, 0) // best
    rest = count - whole * best
    covers: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for images in range(1, rest + 1):
        tried = []
        for size in costs:
            cost, others = covers[max(images - size, 0)]
            tried.append((cost + costs[size], (*others, size)))
        covers.append(min(tried, key=lambda found: (found[0], len(found[1]))))
    return tuple(sorted((best,) * whole + covers[rest][1], reverse=True))


def _cost(program: LaunchPlan, flop: float) -> float:
    return RUN + sum(LAUNCH + max(step.nbytes, step.flop / flop) for step in program.all_steps())
