"""Runs of a plan on arrays on the device, into arrays there: nothing is copied from or to the host."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vgg16gpu.compiler.op_kernels.guard import guarded
from vgg16gpu.compiler.op_kernels.layout.settle import RunOutput, settle
from vgg16gpu.compiler.op_kernels.layout.take import clear, take
from vgg16gpu.devices.copy_kernel import BUS_GROUPS, transfer_step
from vgg16gpu.program.launch import InputEntry, KernelLaunch, LaunchPlan
from vgg16gpu.program.types import Pointer
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.graph_cache import (
    BoundCall,
    BufferBinding,
    GraphCache,
    absolute,
    can_be_read,
    form_of,
    gives,
    output_moves,
    rebind,
)
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.outputs import OutputRows, ResultBlock


class ErrorSink(NamedTuple):
    """What becomes of errors in a run that the host does not wait for.

    found: address of the words of `settle`. first: number of the first image.
    """

    found: int
    first: int
    allows_nonfinite: bool


class DeviceRunner:
    """Runs of a plan's programs on arrays on the device. One thread at a time; close it before its executor.

    An output that is wanted as it is stored is written to its array by the kernel that computes it; others are brought
    there by one kernel each. Inputs of fewer rows than planned get rows of zeros behind them; those of
    `LaunchPlan.given` are read where they are, and have the planned shape.

    Attributes: `is_captured`: a CUDA graph of a caller has runs, which may be replayed at any time.
    """

    def __init__(self, executor: Executor, names: Sequence[str] = ()) -> None:
        """names: of the inputs, in the order in which runs get them; without them the plan has one input."""
        self._executor, self._plan = executor, executor.plan
        self._names = tuple(names) or (self._plan.programs[0].input.name,)
        self._programs = {program.batch: program for program in self._plan.programs}
        exact = (self._plan.second_pass, *self._plan.second_passes)
        self._exact = {program.batch: program for program in exact if program}
        self._graphs = GraphCache(executor)
        self._blocks: dict[tuple[int, bool], ResultBlock] = {}  # by batch size, and whether of the second pass
        self.is_captured = False

    def run(self, batch: int, inputs: Sequence[StridedView], targets: Sequence[StridedView]) -> OutputRows:
        """Run the program of size `batch` on up to that many images, wait for it, and return its flags.

        targets: where the rows of each output go. Images whose values left the range of the fast kernels are run again
        on the exact ones, each alone, or all together where the plan has no such program for one. An image that is
        still marked as out of range has no valid result. Raises KernelError for a kernel that gave up waiting.
        """
        results = self._waited(batch, inputs, targets)
        if self._exact and np.count_nonzero(results.out_of_range):
            self._repair(batch, inputs, targets, results)
        return results

    def enqueue(
        self,
        batch: int,
        inputs: Sequence[StridedView],
        targets: Sequence[StridedView],
        sink: ErrorSink,
        *,
        singly: bool = False,
    ) -> BoundCall:
        """Enqueue the same and return what was launched; errors go to `sink`, and NaN fills the rows of such images.

        singly: launch by launch, for a stream that captures. The second pass is enqueued whether an image needs it or
        not, and finds that out itself.
        """
        self.is_captured |= singly
        call = self._graphs.bound(
            _key((batch, sink), inputs, targets),
            lambda: self._unwaited(batch, inputs, targets, sink),
            singly=singly,
        )
        assert call.launch is not None  # as `bound` has just said
        call.launch()
        return call

    def close(self) -> None:
        """Forget all calls, so that none of them is repeated. Safe to call twice."""
        self._graphs.close()

    def _waited(
        self, batch: int, inputs: Sequence[StridedView], targets: Sequence[StridedView], *, is_exact: bool = False
    ) -> OutputRows:
        call = self._graphs.bound(
            _key((batch, is_exact), inputs, targets), lambda: self._reporting(batch, inputs, targets, is_exact)
        )
        assert call.launch is not None  # likewise
        call.launch()
        self._executor.device.synchronize()
        block = self._blocks.get((batch, is_exact))
        if block is None:
            program = self._program(batch, is_exact)
            words = self._executor.returned[: 4 * program.control.returned_words]
            block = self._blocks[batch, is_exact] = ResultBlock(replace(program, outputs=()), words)
        return block.read(inputs[0].shape[0])

    def _repair(
        self, batch: int, inputs: Sequence[StridedView], targets: Sequence[StridedView], results: OutputRows
    ) -> None:
        """Run images again whose values left the range, and mark those for which that is true on exact kernels, too."""
        lost = [int(i) for i in np.flatnonzero(results.out_of_range)]
        if self._plan.second_pass is None:
            self._executor.count_second_pass(len(lost))
            results.out_of_range[:] = self._waited(batch, inputs, targets, is_exact=True).out_of_range
            return
        is_only = inputs[0].shape[0] == 1  # some outputs have no row for each image
        for i in lost:
            alone, its = (views if is_only else [view.rows(i, i + 1) for view in views] for views in (inputs, targets))
            results.out_of_range[i] = self._waited(1, alone, its, is_exact=True).out_of_range[0]
            self._executor.count_second_pass()

    def _reporting(
        self, batch: int, inputs: Sequence[StridedView], targets: Sequence[StridedView], is_exact: bool
    ) -> list[KernelLaunch]:
        """Return the steps of a run that reports to the host: its pinned memory has one address for both."""
        if not is_exact:  # the next run of the kind may be captured, and then nothing can be loaded
            self._executor.device.build({step.kernel for step in self._guarded(batch, inputs, targets)})
        program = self._program(batch, is_exact)
        words = self._executor.returned[: 4 * program.control.returned_words]
        report = transfer_step(absolute(words.ctypes.data), program.control.error, words.nbytes, BUS_GROUPS)
        return [*self._steps(program, inputs, targets), report]

    def _unwaited(
        self, batch: int, inputs: Sequence[StridedView], targets: Sequence[StridedView], sink: ErrorSink
    ) -> list[KernelLaunch]:
        """Return the steps of a run that notes errors on the device, and of its second pass."""
        program = self._programs[batch]
        written = [
            RunOutput(absolute(target.address), target.shape, form_of(target), program.is_whole(y))
            for target, y in zip(targets, program.outputs, strict=True)
        ]
        noted = settle(
            program.control,
            absolute(sink.found),
            written,
            inputs[0].shape[0],
            sink.first,
            allows_nonfinite=sink.allows_nonfinite,
            guard=self._plan.guard if self._plan.second_passes else None,
        )
        return [*self._steps(program, inputs, targets), *noted, *self._guarded(batch, inputs, targets)]

    def _guarded(self, batch: int, inputs: Sequence[StridedView], targets: Sequence[StridedView]) -> list[KernelLaunch]:
        """Return the second pass of all images that turn out to need it; nothing where the plan has none.

        Where images are run again one by one, rows of the others must not be touched, so that no op writes to the
        caller's memory itself.
        """
        if not self._plan.second_passes:
            return []
        is_of_all = self._plan.second_pass is None
        steps = self._steps(self._exact[batch], inputs, targets, in_place=is_of_all)
        return [guarded(step, self._plan.guard, 0 if is_of_all else batch) for step in steps]

    def _program(self, batch: int, is_exact: bool) -> LaunchPlan:
        return (self._exact if is_exact else self._programs)[batch]

    def _steps(
        self,
        program: LaunchPlan,
        inputs: Sequence[StridedView],
        targets: Sequence[StridedView],
        *,
        in_place: bool = True,
    ) -> list[KernelLaunch]:
        """Return the steps that take inputs in, compute, and bring outputs to their targets.

        in_place: ops write to a target where they can.
        """
        views = dict(zip(self._names, inputs, strict=True))
        entry = program.input.entries[inputs[0].input_type.name]
        given = {value.name: value for value in program.given}
        places = {value.name: (value.pointer, value.pointer.offset + value.nbytes) for value in program.others}
        places[program.input.name] = entry.pointer, program.control.end
        steps, entry_steps = [], entry.steps
        for name, view in views.items():
            if name in given:
                continue
            place, end = places[name]
            behind = Pointer(place.arena, end)
            if name == program.input.name and not self._plan.keeps_values and _is_entry(view, entry):
                steps.append(clear(Pointer(place.arena, place.offset + entry.nbytes), behind))
                entry_steps = tuple(rebind(step, [BufferBinding(entry, view.address)]) for step in entry.steps)
            else:
                steps.append(take(absolute(view.address), view.element, view.shape, view.strides, place, behind))
        moves = output_moves(program, targets) if in_place and not self._plan.keeps_values else {}
        count = inputs[0].shape[0]
        counts = [None if program.is_whole(y) or y.shape == (count,) else count for y in program.outputs]
        steps += [*entry_steps, *program.steps, *gives(program, targets, moves, counts)]
        bindings = [*moves.values(), *(BufferBinding(value, views[name].address) for name, value in given.items())]
        return [rebind(step, bindings) for step in steps]


def _is_entry(view: StridedView, entry: InputEntry) -> bool:
    """Return whether the steps that take an input in can read an array as if the host had written it to the device.

    No other steps may read the input, whose memory other values have later.
    """
    nbytes = math.prod(view.shape) * view.element.nbytes
    is_host_type = view.element_type == view.input_type.name
    return bool(entry.steps) and is_host_type and nbytes == entry.nbytes and can_be_read(view)


def _key(run: Hashable, inputs: Sequence[StridedView], targets: Sequence[StridedView]) -> Hashable:
    """Return what tells a call from others: what runs, and the places of its arrays."""
    return run, *[view.place for view in inputs], *[view.place for view in targets]
