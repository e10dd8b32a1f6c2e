"""Runs of a plan on arrays that lie on the device: nothing is copied from or to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vgg16gpu.compiler.op_kernels.guard import guarded
from vgg16gpu.compiler.op_kernels.layout.settle import RunOutput, settle
from vgg16gpu.compiler.op_kernels.layout.take import take
from vgg16gpu.devices.base import Bytes
from vgg16gpu.devices.copy_kernel import BUS_GROUPS, transfer_step
from vgg16gpu.program.launch import KernelLaunch, LaunchPlan
from vgg16gpu.program.types import Pointer
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.graph_cache import GraphCache, absolute, form_of, gives, output_moves, rebind
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.outputs import OutputRows, ResultBlock


@dataclass(frozen=True)
class _ProgramRun:
    """A run of one program: of the second pass or not, and which arrays. An output's form comes with its view."""

    is_exact: bool
    batch: int
    images: StridedView
    targets: tuple[StridedView, ...]

    def alone(self, i: int) -> _ProgramRun:
        """The second pass of one of its images."""
        if self.images.shape[0] == 1:  # some outputs have no row for each image
            return replace(self, is_exact=True, batch=1)
        return _ProgramRun(True, 1, self.images.rows(i, i + 1), tuple(target.rows(i, i + 1) for target in self.targets))


@dataclass(frozen=True)
class ErrorSink:
    """What becomes of faults in a run that nobody waits for.

    found: address of the words of `settle`. first: number of the first image.
    """

    found: int
    first: int
    allows_nonfinite: bool


class DirectRuns:
    """Runs of a plan on the device on images that lie there, into arrays that lie there. One thread at a time.

    An output that is wanted as it is stored is written to its array by the kernel that computes it; others are brought
    there by one kernel each.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._plan = executor.plan
        self._programs = {program.batch: program for program in self._plan.programs}
        exact = (self._plan.second_pass, *self._plan.second_passes)
        self._exact = {program.batch: program for program in exact if program}
        self._launches = GraphCache(executor)
        self._blocks: dict[tuple[int, bool], ResultBlock] = {}  # by batch size, and whether of the second pass

    def run(self, batch: int, images: StridedView, targets: Sequence[StridedView]) -> OutputRows:
        """The program of size `batch` on up to that many images; the rows of each output go to its target.

        The results have flags alone. One synchronisation waits for all; then the same for each image whose values left
        the range of the fast kernels. Raises KernelError for a kernel that gave up waiting.
        """
        call = _ProgramRun(False, batch, images.place, tuple([target.place for target in targets]))
        results = self._waited(call)
        if not self._plan.second_pass:
            return results
        for i in map(int, np.flatnonzero(results.out_of_range)):
            results.out_of_range[i] = self._waited(call.alone(i)).out_of_range[0]
            self._executor.count_second_pass()
        return results

    def _waited(self, call: _ProgramRun) -> OutputRows:
        self._launches.launch((call, "waited"), lambda: self._reporting(call))
        self._executor.device.synchronize()
        key = call.batch, call.is_exact
        if key not in self._blocks:
            program = self._program(call)
            words = reported_words(self._executor, program)
            self._blocks[key] = ResultBlock(replace(program, outputs=()), words)
        return self._blocks[key].read(call.images.shape[0])

    def _reporting(self, call: _ProgramRun) -> list[KernelLaunch]:
        if not call.is_exact:  # the next run of the kind may be captured, and then nothing can be loaded
            self._executor.device.build({step.kernel for step in self._again(call)})
        return [*self._steps(call), report(self._executor, self._program(call))]

    def enqueue(
        self,
        batch: int,
        images: StridedView,
        targets: Sequence[StridedView],
        verdict: ErrorSink,
        *,
        singly: bool = False,
    ) -> None:
        """As `run`, but nobody waits: what is wrong is noted for later, and NaN fills the rows of such images.

        singly: launch by launch, for a stream that captures. The second pass is enqueued whether an image needs it or
        not, and finds that out itself.
        """
        call = _ProgramRun(False, batch, images.place, tuple([target.place for target in targets]))
        self._launches.launch((call, verdict), lambda: self._unwaited(call, verdict), singly=singly)

    def _unwaited(self, call: _ProgramRun, verdict: ErrorSink) -> list[KernelLaunch]:
        guard = self._plan.guard if self._plan.second_passes else None
        verdicts = settled(self._program(call), call.targets, call.images.shape[0], verdict, guard)
        return [*self._steps(call), *verdicts, *self._again(call)]

    def _again(self, call: _ProgramRun) -> list[KernelLaunch]:
        """The second pass of all images that turn out to need it; nothing where the plan has none."""
        if not self._plan.second_passes:
            return []
        steps = self._steps(replace(call, is_exact=True), in_place=False)  # else into the rows of the others, too
        return [guarded(step, self._plan.guard, call.batch) for step in steps]

    def _program(self, call: _ProgramRun) -> LaunchPlan:
        return (self._exact if call.is_exact else self._programs)[call.batch]

    def _steps(self, call: _ProgramRun, *, in_place: bool = True) -> list[KernelLaunch]:
        """Images in, the program, and its outputs where they are wanted, without a copy where ops can write there."""
        program, images = self._program(call), call.images
        entry = program.input.entries[images.input_type.name]
        end = Pointer(program.control.error.arena, program.control.end)
        steps = [take(absolute(images.address), images.element, images.shape, images.strides, entry.pointer, end)]
        steps += [*entry.steps, *program.steps]
        moves = list(output_moves(program, call.targets)) if in_place and not self._plan.keeps_values else []
        counts = [None if program.is_whole(y) else images.shape[0] for y in program.outputs]
        return [rebind(step, moves) for step in (*steps, *gives(program, call.targets, moves, counts))]


def settled(
    program: LaunchPlan, targets: Sequence[StridedView], images: int, verdict: ErrorSink, guard: Pointer | None = None
) -> list[KernelLaunch]:
    """Launches that note what is wrong with so many images, and fill the rows of these in the outputs with NaN.

    guard: where to name those that need the second pass, instead of that.
    """
    written = [
        RunOutput(absolute(target.address), target.shape, form_of(target), program.is_whole(y))
        for target, y in zip(targets, program.outputs, strict=True)
    ]
    control, found, allowed = program.control, absolute(verdict.found), verdict.allows_nonfinite
    return settle(control, found, written, images, verdict.first, allows_nonfinite=allowed, guard=guard)


def report(executor: Executor, program: LaunchPlan) -> KernelLaunch:
    """The control words to the host, which knows pinned memory by the address that the device has for it, too."""
    words = reported_words(executor, program)
    return transfer_step(absolute(words.ctypes.data), program.control.error, words.nbytes, BUS_GROUPS)


def reported_words(executor: Executor, program: LaunchPlan) -> Bytes:
    """Where they are then."""
    return executor.returned[: 4 * program.control.returned_words]
