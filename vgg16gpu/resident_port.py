"""Where the batches of a plan on a device go in and come out, for streams and for callers that fill the input."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from vgg16gpu.graph import Shape
from vgg16gpu.pipeline import Port, Span
from vgg16gpu.program import Program
from vgg16gpu.resident import ResidentPlan, Results, read_results
from vgg16gpu.staging import Rows


def ports(resident: ResidentPlan) -> Mapping[tuple[int, str], Port]:
    """The port of each batch size and element type."""
    return {
        (program.batch, element_type): _port(resident, program, element_type)
        for program in resident.plan.programs
        for element_type in program.input.entries
    }


def pinned_input(resident: ResidentPlan, element_type: str) -> Rows:
    """The memory that `ResidentPlan.run` sends from, as images of the largest batch."""
    return _port(resident, resident.plan.programs[-1], element_type).images(resident._pinned_in)


def run_once(resident: ResidentPlan, batch: int, images: Rows) -> Results:
    """One pass over up to `batch` images: copy in, launches, copy out."""
    return resident._run(resident._bound[batch], images)


def _port(resident: ResidentPlan, program: Program, element_type: str) -> Port:
    entry, control = program.input.entries[element_type], program.control
    return Port(
        shape=image_shape(program.input.shape, element_type),
        element_type=element_type,
        input=Span(resident._address(entry.pointer.arena, entry.pointer.offset), control.end - entry.pointer.offset),
        output=Span(
            resident._address(control.error.arena, control.error.offset), program.output_end - control.error.offset
        ),
        launch=resident.launcher(program.batch, element_type),
        results=partial(read_results, program),
    )


def image_shape(shape: Shape, element_type: str) -> Shape:
    """How images of a shape (N, C, H, W) lie on the host: bytes have the channels last."""
    return (shape[0], *shape[2:], shape[1]) if element_type == "uint8" else shape
