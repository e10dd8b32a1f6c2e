"""Runs of a program of several inputs, a gradient say, on arrays that lie on the device, into arrays that lie there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vgg16gpu.compiler.op_kernels.guard import guarded
from vgg16gpu.compiler.op_kernels.layout.take import take
from vgg16gpu.program.launch import KernelLaunch, LaunchPlan
from vgg16gpu.program.types import Pointer
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.direct import ErrorSink, report, reported_words, settled
from vgg16gpu.runtime.on_device.graph_cache import (
    BufferBinding,
    GraphCache,
    PlacesKey,
    absolute,
    gives,
    output_moves,
    rebind,
)
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.outputs import OutOfRangeError, ResultBlock


class PlacedRuns:
    """Runs of a plan's first program. One thread at a time; what is bound goes with the executor.

    Attributes: `is_captured`: a CUDA graph has some, which may be replayed at any time.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor, self._program = executor, executor.plan.programs[0]
        self._exact = next(iter(executor.plan.second_passes), None)
        self._launches = GraphCache(executor)
        self.is_captured = False

    def run(
        self,
        inputs: Mapping[str, StridedView],
        targets: Sequence[StridedView],
        verdict: ErrorSink | None = None,
        *,
        singly: bool = False,
    ) -> PlacesKey:
        """All outputs for these inputs, and waits for that: what `repeat` takes.

        targets: the first rows of each output, which its op writes there itself where it can. Inputs of fewer rows than
        planned get rows of zeros behind them; those of `LaunchPlan.given` are read where they lie, and are as planned.
        NaN and Inf are let through. verdict, singly: for a run that nobody waits for, as for `DirectRuns.enqueue`.
        Raises KernelError for a kernel that gave up; where the plan has no second pass OutOfRangeError for values of so
        many images as are given that left the range of float16.
        """
        self.is_captured |= singly
        places = {name: view.place for name, view in inputs.items()}
        outs = [target.place for target in targets]
        key = PlacesKey(*places.items(), *outs, verdict)
        if verdict:
            self._launches.launch(key, lambda: self._unwaited(places, outs, verdict), singly=singly)
        else:
            self._launches.launch(key, lambda: self._waited(places, outs))
            self._check(places, outs)
        return key

    def repeat(self, key: PlacesKey) -> bool:
        """Enqueue what a run that nobody waits for has enqueued; False where it is not kept."""
        return self._launches.repeat(key)

    def _waited(self, inputs: Mapping[str, StridedView], targets: Sequence[StridedView]) -> list[KernelLaunch]:
        # The next run of the kind may be captured, and then nothing can be loaded.
        self._executor.device.build({step.kernel for step in self._again(inputs, targets)})
        return [*self._steps(self._program, inputs, targets), report(self._executor, self._program)]

    def _check(self, inputs: Mapping[str, StridedView], targets: Sequence[StridedView]) -> None:
        """Wait for what has been launched, and run the second pass if an image needs it."""
        self._executor.device.synchronize()
        words = ResultBlock(replace(self._program, outputs=()), reported_words(self._executor, self._program))
        try:
            words.whole(targets[0].shape[0])
        except OutOfRangeError as error:
            if self._exact is None:
                raise
            exact = self._exact
            self._executor.count_second_pass(error.count)
            self._launches.launch(
                PlacesKey(*inputs.items(), *targets, "exact"), lambda: self._steps(exact, inputs, targets)
            )
            self._executor.device.synchronize()

    def _unwaited(
        self, inputs: Mapping[str, StridedView], targets: Sequence[StridedView], verdict: ErrorSink
    ) -> list[KernelLaunch]:
        guard = self._executor.plan.guard if self._exact else None
        steps = self._steps(self._program, inputs, targets)
        verdicts = settled(self._program, targets, targets[0].shape[0], verdict, guard)
        return [*steps, *verdicts, *self._again(inputs, targets)]

    def _again(self, inputs: Mapping[str, StridedView], targets: Sequence[StridedView]) -> list[KernelLaunch]:
        """The second pass of all, if any turns out to need it; nothing where the plan has none."""
        if self._exact is None:
            return []
        return [guarded(step, self._executor.plan.guard) for step in self._steps(self._exact, inputs, targets)]

    def _steps(
        self, program: LaunchPlan, inputs: Mapping[str, StridedView], targets: Sequence[StridedView]
    ) -> list[KernelLaunch]:
        entry = program.input.entries["float32"]
        given = {value.name: value for value in program.given}
        places = {value.name: (value.pointer, value.pointer.offset + value.nbytes) for value in program.others}
        places[program.input.name] = entry.pointer, program.control.end
        steps = [
            take(absolute(view.address), view.element, view.shape, view.strides, place, Pointer(place.arena, end))
            for view, (place, end) in ((view, places[name]) for name, view in inputs.items() if name not in given)
        ]
        outputs = list(output_moves(program, targets))
        steps += [*entry.steps, *program.steps, *gives(program, targets, outputs, list(map(_images, targets)))]
        moves = [*outputs, *(BufferBinding(value, inputs[name].address) for name, value in given.items())]
        return [rebind(step, moves) for step in steps]


def _images(target: StridedView) -> int | None:
    """How many rows are given; a vector is one piece."""
    return target.shape[0] if len(target.shape) > 1 else None
