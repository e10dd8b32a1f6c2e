"""tests/net: plans as text, and what is said of one that is not the recorded one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.net import plans
from tests.net.text import PlanText
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import Pointer


@pytest.fixture
def plan() -> CompiledModel:
    return plans.digits_plan("fp32", plans.FACTS["cpu"])


def test_recorded_plans_of_digits_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert plans.main(["--only", "digits"]) == 0
    assert capsys.readouterr().out == "16 plans are equal\n"


def test_every_part_of_a_plan_is_in_its_text(plan: CompiledModel) -> None:
    written = PlanText().write(plan)
    program, weights = plan.programs[0], plan.weights
    step, upload = program.steps[0], weights.uploads[0]
    moved = Pointer(upload.target.arena, upload.target.offset + 256)
    doubled = replace(upload, array=2 * upload.array)
    slower = replace(step, grid=step.grid._replace(x=step.grid.x + 1))
    other = replace(step, kernel=replace(step.kernel, defines=(*step.kernel.defines, ("A", 1))))
    changed = [
        replace(plan, weights=replace(weights, weights_nbytes=weights.weights_nbytes + 1)),
        replace(plan, weights=replace(weights, uploads=(replace(upload, target=moved), *weights.uploads[1:]))),
        replace(plan, weights=replace(weights, uploads=(doubled, *weights.uploads[1:]))),
        replace(plan, programs=(replace(program, steps=(slower, *program.steps[1:])), *plan.programs[1:])),
        replace(plan, programs=(replace(program, steps=(other, *program.steps[1:])), *plan.programs[1:])),
        replace(plan, programs=(replace(program, outputs=()), *plan.programs[1:])),
        replace(plan, families={}),
    ]
    assert len({written, *map(PlanText().write, changed)}) == 1 + len(changed)
    assert PlanText().write(plan) == written
