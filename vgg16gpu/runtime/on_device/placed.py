"""Runs of a program of several inputs, a gradient say, on arrays that lie on the device, into arrays that lie there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vgg16gpu.compiler.lowering.layout.give import give
from vgg16gpu.compiler.lowering.layout.take import take
from vgg16gpu.program.launches import Step
from vgg16gpu.program.values import Pointer
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.direct import Verdict, absolute, form_of, report, reported_words, settled
from vgg16gpu.runtime.on_device.launches import KeptLaunches
from vgg16gpu.runtime.on_device.views import DeviceView
from vgg16gpu.runtime.outputs import ResultBlock


class PlacedRuns:
    """Runs of a plan's first program. One thread at a time; what is bound goes with the executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._program = executor, executor.plan.programs[0]
        self._launches = KeptLaunches(executor)

    def run(
        self,
        inputs: Mapping[str, DeviceView],
        targets: Sequence[DeviceView],
        verdict: Verdict | None = None,
        *,
        singly: bool = False,
    ) -> None:
        """All outputs for these inputs, and waits for that; targets: the first rows of each output.

        Inputs of fewer rows than planned get rows of zeros behind them. NaN and Inf are let through. verdict, singly:
        for a run that nobody waits for, as for `DirectRuns.enqueue`. Raises KernelError for a kernel that gave up,
        OutOfRangeError for values of so many images as are given that left the range of float16.
        """
        places = {name: view.place for name, view in inputs.items()}
        outs = [target.place for target in targets]
        key = (*places.items(), *outs, verdict)
        self._launches.launch(key, lambda: [*self._steps(places, outs), *self._last(outs, verdict)], singly=singly)
        if verdict is None:
            self._executor.device.synchronize()
            words = ResultBlock(replace(self._program, outputs=()), reported_words(self._executor, self._program))
            words.whole(targets[0].shape[0])

    def _last(self, targets: Sequence[DeviceView], verdict: Verdict | None) -> list[Step]:
        """Who waits gets the control words; else they are looked at on the device."""
        if verdict is None:
            return [report(self._executor, self._program)]
        return settled(self._program, targets, targets[0].shape[0], verdict)

    def _steps(self, inputs: Mapping[str, DeviceView], targets: Sequence[DeviceView]) -> list[Step]:
        program = self._program
        entry = program.input.entries["float32"]
        places = {value.name: (value.pointer, value.pointer.offset + value.nbytes) for value in program.others}
        places[program.input.name] = entry.pointer, program.control.end
        steps = [
            take(absolute(view.address), view.element, view.shape, view.strides, place, Pointer(place.arena, end))
            for view, (place, end) in ((view, places[name]) for name, view in inputs.items())
        ]
        steps += [*entry.steps, *program.steps]
        for stored, target in zip(program.stored_outputs, targets, strict=True):
            steps.append(give(stored, form_of(target), absolute(target.address), _images(target)))
        return steps


def _images(target: DeviceView) -> int | None:
    """How many rows are given; a vector is one piece."""
    return target.shape[0] if len(target.shape) > 1 else None
