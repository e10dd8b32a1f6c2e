"""A run of a plan on names: what the planner decided is recorded, then every read must find what was written last.

The op kernels, conversions and entries do their work and note which value they read and write, and where. Nothing here
knows the arguments of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler import op_kernels as ops
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Op, Shape
from vgg16gpu.compiler.op_kernels.base import ActivationScale, AnyOpKernel, HostInput, InputKernel, OpContext, OpMemory
from vgg16gpu.compiler.op_kernels.layout import convert, give, layout, scales
from vgg16gpu.compiler.planner import selection
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.schedule import ProgramBuilder
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan
from vgg16gpu.program.types import Arena, DeviceFacts, Layout, Pointer, TensorDesc, TensorFormat

CONTROL = "control words"


@dataclass(frozen=True)
class Event:
    """A piece of work of a program: what it reads and what it writes."""

    reads: TensorDesc | HostInput
    writes: TensorDesc | None = None
    workspace: tuple[Pointer, int] | None = None
    words: tuple[tuple[Pointer, int], ...] = ()  # control words it uses: pointer and number, or 0


@dataclass
class Recorded:
    """A program, and what it consists of."""

    program: LaunchPlan | None = None
    events: list[Event] = field(default_factory=list)


def recorded_plan(
    graph: Graph, facts: DeviceFacts, shapes: Sequence[Shape], options: PlanOptions
) -> tuple[CompiledModel, list[Recorded]]:
    """A plan, and what each of its programs consists of."""
    made: list[Recorded] = []
    with _recording(made):
        plan = make_plan(graph, facts, shapes, options)
    every = (*plan.all_programs, *plan.second_passes)
    assert {id(program) for program in every} == {id(recorded.program) for recorded in made}
    return plan, made


@contextmanager
def _recording(made: list[Recorded]) -> Iterator[None]:
    program = ProgramBuilder.program

    def one_program(*args: Any, **options: Any) -> LaunchPlan:
        made.append(Recorded())
        made[-1].program = program(*args, **options)
        return made[-1].program

    def note(event: Event) -> None:
        made[-1].events.append(event)

    def convert_(x: TensorDesc, y: TensorDesc, maxima: Pointer) -> KernelLaunch:
        note(Event(x, y, words=((maxima, y.shape[0]),)))
        return _convert(x, y, maxima)

    def take_in(source: HostInput, y: TensorDesc, status: Pointer, kind: str) -> KernelLaunch:
        note(Event(source, y, words=((status, y.shape[0]),)))
        return _take_in(source, y, status, kind)

    def give_(x: TensorDesc, form: TensorFormat, target: Pointer) -> KernelLaunch:
        assert form == TensorFormat()
        note(Event(x, TensorDesc(x.name, x.shape, Layout.PLAIN, target)))
        return _give(x, form, target)

    def observe(value: TensorDesc, scaling: ActivationScale) -> KernelLaunch:
        note(Event(value))
        return _observe(value, scaling)

    def kernels_for(op: Op, family: str) -> tuple[AnyOpKernel, ...]:
        return tuple(replace(op_kernel, steps=_noting(op_kernel, note)) for op_kernel in ops.kernels_for(op, family))

    _convert, _take_in, _give, _observe = convert.convert, layout.take_in, give.give, scales.observe
    with ExitStack() as stack:
        for place, name, fake in (
            (ProgramBuilder, "program", one_program),
            (convert, "convert", convert_),
            (layout, "take_in", take_in),
            (give, "give", give_),
            (scales, "observe", observe),
            (selection, "kernels_for", kernels_for),
        ):
            stack.enter_context(mock.patch.object(place, name, fake))
        yield


def _noting(op_kernel: AnyOpKernel, note: Callable[[Event], None]) -> Callable[..., tuple[KernelLaunch, ...]]:
    def steps(layer: OpContext[Op], x: Any, y: TensorDesc, held: object, places: OpMemory) -> tuple[KernelLaunch, ...]:
        nbytes = op_kernel.workspace_nbytes(layer)
        words = [(places.counters, op_kernel.counters(layer)), (places.maxima, y.shape[0])]
        words += [(places.control.status, y.shape[0])] if isinstance(op_kernel, InputKernel) else []
        note(Event(x, y, (places.workspace, nbytes) if nbytes else None, tuple(words)))
        return op_kernel.steps(layer, x, y, held, places)

    return steps


class Memory:
    """Activation memory in words; each holds the number of the last thing written there."""

    def __init__(self, nbytes: int) -> None:
        assert nbytes % 4 == 0
        self.words = np.zeros(nbytes // 4, np.int64)
        self.written: list[str] = ["nothing"]

    def place(self, pointer: Pointer, nbytes: int) -> npt.NDArray[np.int64]:
        assert pointer.arena is Arena.ACTIVATIONS
        assert pointer.offset % 4 == 0
        assert 0 <= pointer.offset <= pointer.offset + nbytes <= 4 * self.words.size
        return self.words[pointer.offset // 4 : -(-(pointer.offset + nbytes) // 4)]

    def write(self, what: str, pointer: Pointer, nbytes: int) -> None:
        self.written.append(what)
        self.place(pointer, nbytes)[:] = len(self.written) - 1

    def read(self, what: str, pointer: Pointer, nbytes: int) -> None:
        found = {self.written[i] for i in np.unique(self.place(pointer, nbytes))}
        assert found == {what}, f"{what} at {pointer} is overwritten with {found}"


def content(value: TensorDesc | HostInput) -> str:
    """What memory holds where this value lies."""
    if isinstance(value, HostInput):
        return f"input as {value.element_type}"
    return f"{value.name} as {value.element.name} {value.layout.name}"


def simulate(recorded: Recorded, element_type: str = "float32") -> None:
    """Run a program: every read finds what was written last to that name, whole, also while the output is written."""
    program = recorded.program
    assert program is not None
    memory = Memory(program.activations_nbytes)
    entry, control = program.input.entries[element_type], program.control
    source = HostInput(entry.pointer, element_type)
    first = control.counters
    memory.write(content(source), entry.pointer, entry.nbytes)
    memory.write(CONTROL, first, control.end - first.offset)
    assert entry.pointer.offset + entry.nbytes <= first.offset  # one copy brings both

    def nbytes(value: TensorDesc | HostInput) -> int:
        return entry.nbytes if isinstance(value, HostInput) else value.nbytes

    for event in in_order(recorded, element_type):
        x = event.reads
        memory.read(content(x), x.pointer, nbytes(x))
        for pointer, words in (used for used in event.words if used[1]):
            memory.read(CONTROL, pointer, 4 * words)
        if event.workspace:
            memory.write("workspace", *event.workspace)
        if event.writes:
            memory.write(content(event.writes), event.writes.pointer, event.writes.nbytes)
        if event.workspace:
            memory.read("workspace", *event.workspace)
        memory.read(content(x), x.pointer, nbytes(x))
    for output in program.outputs:
        memory.read(content(output), output.pointer, output.nbytes)
        assert control.error.offset <= output.pointer.offset <= program.output_end - output.nbytes
    memory.read(CONTROL, first, control.end - first.offset)


def in_order(recorded: Recorded, element_type: str) -> list[Event]:
    """The events as they run. The entries, which are planned last, each begin with the input as the host left it."""
    starts = [i for i, event in enumerate(recorded.events) if isinstance(event.reads, HostInput)]
    ends = [*starts[1:], len(recorded.events)]
    entries = [recorded.events[start:end] for start, end in zip(starts, ends, strict=True)]
    entry = next(events for events in entries if events[0].reads.element_type == element_type)  # type: ignore[union-attr]
    return entry + recorded.events[: starts[0]]
