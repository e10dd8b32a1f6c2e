"""What holds of bits, of NaN and of waits that run out, on Hopper's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_harness import assert_same_bits
from tests.support.wgmma_harness import Trial, resident
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, TmaDescriptor
from vgg16gpu.runtime.executor import Executor


def check_positions(device: Device, trial: Trial) -> None:
    """An image's bits depend neither on its place in the batch nor on its neighbours."""
    x = trial.x
    with resident(device, trial) as plan:
        y = plan.run(len(x), x).outputs[0]
        backwards = plan.run(len(x), np.ascontiguousarray(x[::-1])).outputs[0]
        assert_same_bits(backwards[::-1], y, "backwards")
        for i in range(len(x)):
            among_others = np.roll(x, 1, axis=0)
            among_others[i] = x[i]
            assert_same_bits(plan.run(len(x), among_others).outputs[0][i], y[i], f"image {i} among others")
            assert_same_bits(plan.run(len(x), x[i : i + 1]).outputs[0][0], y[i], f"image {i} alone in its batch")
        assert plan.second_passes == 0


def check_batches(device: Device, trial: Trial, *batches: int) -> None:
    """An image has the bits that it has in a full batch of the trial, and in that batch with nothing behind it."""
    full = len(trial.x)
    with resident(device, trial, *batches, full) as plan:
        together = plan.run(full, trial.x).outputs[0]
        for batch in batches:
            alone, among = (plan.run(size, trial.x[:batch]).outputs[0] for size in (batch, full))
            assert_same_bits(alone, together[:batch])
            assert_same_bits(alone, among)


def check_replays(device: Device, trial: Trial, count: int = 1000) -> None:
    """The same bits again and again."""
    with resident(device, trial) as plan:
        first = plan.run(len(trial.x), trial.x).outputs[0]
        for replay in range(count):
            again = plan.run(len(trial.x), trial.x).outputs[0]
            if again.tobytes() != first.tobytes():
                assert_same_bits(again, first, f"replay {replay}")
        assert plan.second_passes == 0


def check_nan(device: Device, trial: Trial, reached: npt.NDArray[np.bool_] | None = None) -> None:
    """NaN at row 3, column 4 of image 1 is reported, and stays in that image; fp32 runs it once more.

    `reached`: where in the map of the first output it shows.
    """
    x = trial.x.copy()
    x[(1, 0, 3, 4)[: x.ndim]] = np.nan
    with resident(device, trial) as plan:
        clean = plan.run(len(x), trial.x).outputs[0]
        (y,), nonfinite, _ = plan.run(len(x), x)
        assert plan.second_passes == (1 if trial.precision == "fp32" else 0)
    assert nonfinite.tolist() == [i == 1 for i in range(len(x))]
    others = np.arange(len(x)) != 1
    assert_same_bits(y[others], clean[others])
    if reached is not None:
        assert np.isnan(y[1][:, reached]).all()
        if trial.precision != "fp32":
            assert_same_bits(y[1][:, ~reached], clean[1][:, ~reached])


# ---- Faults


def with_smaller_box(plan: CompiledModel, kernel: str, batch: int) -> CompiledModel:
    """The same plan; in the program for `batch`, the first step of this kernel gets a row less than it waits for."""
    program = next(program for program in plan.programs if program.batch == batch)
    victim = next(step for step in program.all_steps() if step.kernel.name == kernel)

    def broken(step: KernelLaunch) -> KernelLaunch:
        if step is not victim:
            return step
        maps = [i for i, argument in enumerate(step.arguments) if isinstance(argument, TmaDescriptor)]
        place = maps[1] if kernel == "gemm_wgmma" else maps[0]  # weights come first there
        arguments = list(step.arguments)
        tensor: Any = arguments[place]
        arguments[place] = replace(tensor, box=(*tensor.box[:-2], tensor.box[-2] - 1, tensor.box[-1]))
        return replace(step, arguments=tuple(arguments))

    entry = program.input.entries["float32"]
    entries = {**program.input.entries, "float32": replace(entry, steps=tuple(map(broken, entry.steps)))}
    faulty = replace(program, steps=tuple(map(broken, program.steps)), input=replace(program.input, entries=entries))
    return replace(plan, programs=tuple(faulty if other is program else other for other in plan.programs))


def check_fault(device: Device, trial: Trial, kernel: str, operator: int, y: str | None = None) -> None:
    """A wait that runs out is reported with the number of the operator, and does no harm to the next run.

    `y`: what it stores, where that is not what the graph's operator of this number stores.
    """
    y = y or trial.graph.ops[operator - 1].y
    good, bad = len(trial.x), len(trial.x) - 1
    plan = trial.plan(device.facts, bad, good)
    device.build(plan.kernels)
    resident = Executor(with_smaller_box(plan, kernel, bad), device)
    try:
        expected = resident.run(good, trial.x).outputs[0]
        with pytest.raises(KernelError, match=f"operator {operator} '{y}'.*waited in vain"):
            resident.run(bad, trial.x[:bad])
        assert_same_bits(resident.run(good, trial.x).outputs[0], expected)
    finally:
        resident.close()
