"""Plans with a second pass on any device: tensor cores in float16 first, FFMA for images out of its range.

They stand for float32 in pairs, which Hopper alone has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.op_kernels.base import WeightPacker
from vgg16gpu.compiler.planner import plan as planner
from vgg16gpu.compiler.planner.schedule import ProgramBuilder
from vgg16gpu.compiler.planner.selection import KernelAssignment, PlanOptions
from vgg16gpu.program.launch import CompiledModel, LaunchPlan

LOWEST: Final = 2.0**-10  # of an image's largest magnitudes; above zero, as that of pairs is


def plan_float16_with_second_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on plans in fp16 on tensor cores have a second pass, as those of pairs do."""
    plain: Callable[..., CompiledModel] = planner._plain_plan

    def made(selection: KernelAssignment, shapes: Sequence[Any], options: PlanOptions) -> CompiledModel:
        return _made(selection, shapes, options) if selection.precision == "fp16" else plain(selection, shapes, options)

    monkeypatch.setattr(planner, "_plain_plan", made)


def _made(selection: KernelAssignment, shapes: Sequence[Shape], options: PlanOptions) -> CompiledModel:
    arena, exact = WeightPacker(), selection.on_ffma()
    held = planner._held(selection.graph, arena)
    fast, slow = (
        ProgramBuilder(chosen, planner._constants(chosen, arena), held, None, options.keep_values)
        for chosen in (selection, exact)
    )
    return CompiledModel(
        planner._weight_plan(arena),
        tuple(_strict(fast.program(shape)) for shape in shapes),
        second_pass=slow.program((1, *shapes[0][1:])),
        families=selection.families,
        second_passes=tuple(slow.program(shape) for shape in shapes),
    )


def _strict(program: LaunchPlan) -> LaunchPlan:
    return replace(program, control=replace(program.control, lowest=LOWEST))
