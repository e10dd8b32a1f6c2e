"""Launches with redirected pointers, and CUDA graphs of them, kept by the places that they read and write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from vgg16gpu.compiler.op_kernels.layout.give import give
from vgg16gpu.program.launch import Argument, InputEntry, KernelLaunch, LaunchPlan, TmaDescriptor
from vgg16gpu.program.types import Arena, Pointer, TensorDesc, TensorFormat
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.views import StridedView

_VECTOR_NBYTES: Final = 16  # kernels load and store vectors of this size, and the copy engine wants such addresses


@dataclass(frozen=True)
class BufferBinding:
    """What has its place in an arena, `value`, and lies somewhere else for one call."""

    value: TensorDesc | InputEntry
    address: int

    def place(self, pointer: Pointer) -> Pointer | None:
        """Where a place of the value lies now, as an address; None for a place of something else."""
        offset = pointer.offset - self.value.pointer.offset
        inside = pointer.arena is self.value.pointer.arena and 0 <= offset < self.value.nbytes
        return absolute(self.address + offset) if inside else None


def absolute(address: int) -> Pointer:
    """A place on the device by its address, in launches that are bound with an arena that begins at 0."""
    return Pointer(Arena.STAGING, address)


def form_of(target: StridedView) -> TensorFormat:
    """How an array lies there that is to be written."""
    form = target.form
    assert form is not None  # whoever calls has seen to it
    return form


def can_be_read(array: StridedView) -> bool:
    """Return whether kernels can read an array where it lies, row-major."""
    dense = TensorFormat().strides(array.shape)
    pairs = zip(array.shape, array.strides, dense, strict=True)
    return array.address % _VECTOR_NBYTES == 0 and all(dim <= 1 or stride == wanted for dim, stride, wanted in pairs)


def output_moves(program: LaunchPlan, targets: Sequence[StridedView]) -> dict[str, BufferBinding]:
    """Return, by name, the outputs that their ops can write to the caller's memory.

    They are stored in the form that is wanted, and have a row there for every row.
    """
    moves: dict[str, BufferBinding] = {}
    taken = {program.input.name, *(other.name for other in program.others)}
    for stored, y, target in zip(program.stored_outputs, program.outputs, targets, strict=True):
        if stored.name not in taken and target.shape == y.shape and _holds(target, stored):
            taken.add(stored.name)
            moves[stored.name] = BufferBinding(stored, target.address)
    return moves


def gives(
    program: LaunchPlan, targets: Sequence[StridedView], moves: Iterable[str], images: Sequence[int | None]
) -> list[KernelLaunch]:
    """Launches that bring the other outputs to their targets: so many images of each, or (None) all of it."""
    steps = []
    there = set(moves)
    for output, target, count in zip(program.stored_outputs, targets, images, strict=True):
        if output.name not in there:
            is_vector = count is not None and len(output.shape) == 1
            stored = replace(output, shape=(*output.shape, 1)) if is_vector else output  # a row for each image
            steps.append(give(stored, form_of(target), absolute(target.address), count))
        there.discard(output.name)  # the same value as a further output
    return steps


def _holds(target: StridedView, stored: TensorDesc) -> bool:
    """Return whether an op can write its value there, with all that it writes between the elements."""
    form = form_of(target)
    may_pad = target.takes_padding or not form.has_padding(stored.shape)
    return may_pad and form.is_that_of(stored) and target.address % _VECTOR_NBYTES == 0


def rebind(step: KernelLaunch, moves: Sequence[BufferBinding]) -> KernelLaunch:
    """A launch with the values that lie somewhere else where they lie."""
    return replace(step, arguments=tuple(_placed(argument, moves) for argument in step.arguments)) if moves else step


def _placed(argument: Argument, moves: Sequence[BufferBinding]) -> Argument:
    pointer = argument.pointer if isinstance(argument, TmaDescriptor) else argument
    if not isinstance(pointer, Pointer):
        return argument
    found = next((place for move in moves if (place := move.place(pointer))), pointer)
    return replace(argument, pointer=found) if isinstance(argument, TmaDescriptor) else found


KEPT: Final = 32  # calls whose launches are kept; allocators hand out the same places again and again

Launch: TypeAlias = Callable[[], None]

_turns: Final = itertools.count()


class BoundCall:
    """What a call launches: one kernel after the other, or as one CUDA graph.

    Attributes: `launch` enqueues it all; None once the call is no longer kept. `is_whole`: it is one graph, which may
    be repeated. `used`: when it was used last, in turns of all calls.
    """

    __slots__ = ("is_whole", "launch", "used")

    def __init__(self, launch: Launch) -> None:
        self.launch: Launch | None = launch
        self.is_whole = False
        self.used = next(_turns)

    def touch(self) -> None:
        """Note that the call is used now."""
        self.used = next(_turns)


class GraphCache:
    """What calls launch, by their places: one kernel after the other the first time, from the second on as one graph.

    A place that comes once costs no CUDA graph, and one that comes back no binding. The least recently used call goes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._kept: dict[Hashable, BoundCall] = {}

    def bound(self, key: Hashable, steps: Callable[[], Sequence[KernelLaunch]], *, singly: bool = False) -> BoundCall:
        """Return the call of a key, which can be launched; its steps are asked for where they are not bound yet.

        singly: one kernel after the other whatever was before, for a stream that captures.
        """
        found = self._kept.get((key, singly))
        if found is None or found.launch is None:
            made = steps()
            self._executor.device.build({step.kernel for step in made})
            while len(self._kept) >= KEPT:
                self._drop(min(self._kept, key=lambda each: self._kept[each].used))
            found = self._kept[key, singly] = BoundCall(self._executor.bind(made, beside=0, as_graph=False))
        elif not (found.is_whole or singly):
            self._release(found)
            found.launch, found.is_whole = self._executor.bind(steps(), beside=0), True
        found.touch()
        return found

    def close(self) -> None:
        """Forget all calls; their launches go with the executor."""
        for call in self._kept.values():
            call.launch = None
        self._kept.clear()

    def _drop(self, key: Hashable) -> None:
        self._release(self._kept.pop(key))

    def _release(self, call: BoundCall) -> None:
        launch, call.launch = call.launch, None
        if launch is not None:
            self._executor.unbind(launch)
