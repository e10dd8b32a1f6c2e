"""Write a plan as canonical text: what a device is asked, and nothing of how Python's classes are called.

A change that only renames or moves code leaves the text equal byte for byte. Numbers are decimal, floats hexadecimal;
arrays are hashed, each once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.program.launch import (
    Argument,
    CompiledModel,
    KernelLaunch,
    LaunchPlan,
    Scalar,
    StridedIndexer,
    TmaDescriptor,
)
from vgg16gpu.program.types import Arena, DType, Layout, Pointer, TensorDesc

_ARENAS: Final = {Arena.WEIGHTS: "W", Arena.ACTIVATIONS: "A", Arena.STAGING: "S", Arena.GIVEN: "G"}
_ELEMENTS: Final = {
    DType.F32: "f32",
    DType.F16: "f16",
    DType.BF16: "bf16",
    DType.F16_PAIR: "pair",
    DType.U8: "u8",
    DType.S8: "s8",
}
_LAYOUTS: Final = {Layout.PLAIN: "plain", Layout.NHWC: "nhwc"}


class PlanText:
    """Text of plans. It remembers the hashes of arrays, which it keeps alive."""

    def __init__(self) -> None:
        self._hashes: dict[int, tuple[npt.NDArray[Any], str]] = {}

    def write(self, plan: CompiledModel) -> str:
        """Return the text of a plan: weights, programs, calibration, second passes."""
        return "\n".join([*self._weights(plan), *self._passes(plan)]) + "\n"

    def _weights(self, plan: CompiledModel) -> Iterator[str]:
        weights = plan.weights
        yield f"weights {weights.weights_nbytes} staging {weights.staging_nbytes} activations {plan.activations_nbytes}"
        for item in weights.items:
            yield f"item {item.offset} {item.nbytes} {'computed' if item.is_computed else 'uploaded'}"
        for upload in weights.uploads:
            yield f"upload {self._array(upload.array)} to {_place(upload.target)}"
            if upload.pack:
                yield f"  pack {_step(upload.pack)}"

    def _passes(self, plan: CompiledModel) -> Iterator[str]:
        yield f"guard {_place(plan.guard)} keeps {int(plan.keeps_values)}"
        yield "families " + " ".join(f"{name}:{family}" for name, family in sorted(plan.families.items()))
        for program in plan.programs:
            yield from _program("program", program)
        if plan.calibration:
            yield f"samples {self._array(plan.calibration.samples)}"
            yield from _program("calibration", plan.calibration.program)
            yield from (f"  finish {_step(step)}" for step in plan.calibration.finish)
        if plan.second_pass:
            yield from _program("second pass", plan.second_pass)
        for program in plan.second_passes:
            yield from _program("guarded second pass", program)

    def _array(self, array: npt.NDArray[Any]) -> str:
        """Return dtype, shape and hash. An array that repeats one element is hashed by that one."""
        key = id(array)
        if key not in self._hashes:
            single = array.size > 0 and not any(array.strides)
            content = array.reshape(-1)[:1] if single else np.ascontiguousarray(array)
            digest = hashlib.sha256(content.tobytes() if single else content.data.cast("B")).hexdigest()[:16]
            self._hashes[key] = array, f"{array.dtype.str} {_numbers(array.shape)} {digest}"
        return self._hashes[key][1]


def _program(title: str, program: LaunchPlan) -> Iterator[str]:
    control = program.control
    yield f"{title} batch {program.batch} nbytes {program.activations_nbytes} output end {program.output_end}"
    yield (
        f"  control counters {_place(control.counters)} error {_place(control.error)} batch {control.batch} "
        f"watched {' '.join(control.watched)} lowest {_float(control.lowest)}"
    )
    yield f"  input {program.input.name} {_numbers(program.input.shape)}"
    for kind, entry in sorted(program.input.entries.items()):
        yield f"  entry {kind} {_place(entry.pointer)} {entry.nbytes}"
        yield from (f"    {_step(step)}" for step in entry.steps)
    yield from (f"  other {_value(value)}" for value in program.others)
    yield from (f"  {_step(step)}" for step in program.steps)
    yield from (f"  output step {_step(step)}" for step in program.output_steps)
    yield from (f"  output {_value(value)}" for value in program.outputs)
    yield from (f"  stored {_value(value)}" for value in program.stored_outputs)
    yield from (f"  value {_value(value)}" for value in program.values)


def _step(step: KernelLaunch) -> str:
    kernel = step.kernel
    macros = " ".join(f"{name}={value}" for name, value in kernel.defines)
    arguments = " ".join(map(_argument, step.arguments))
    early = " early" if step.programmatic else ""
    return (
        f"{kernel.source} {kernel.name} [{macros}] grid {_numbers(step.grid)} block {_numbers(step.block)} "
        f"shared {step.shared}{early} ({arguments}) flop {step.flop} nbytes {step.nbytes} of {' '.join(step.names)}"
    )


def _argument(argument: Argument) -> str:
    match argument:
        case Pointer():
            return _place(argument)
        case Scalar(value, "f"):
            return _float(value)
        case Scalar(value):
            return str(int(value))
        case StridedIndexer():
            return f"walk({' '.join(map(str, argument.words))})"
        case TmaDescriptor():
            numbers = (argument.dimensions, argument.strides, argument.box)
            return f"map({_place(argument.pointer)} {_ELEMENTS[argument.element]} {' '.join(map(_numbers, numbers))})"


def _value(value: TensorDesc) -> str:
    scale, factor = (_place(place) if place else "-" for place in (value.scale, value.factor))
    return (
        f"{value.name} {_numbers(value.shape)} {_LAYOUTS[value.layout]} {_ELEMENTS[value.element]} "
        f"{_place(value.pointer)} scale {scale} step {_float(value.step)} factor {factor}"
    )


def _place(pointer: Pointer) -> str:
    return f"{_ARENAS[pointer.arena]}+{pointer.offset}"


def _float(value: float) -> str:
    return float(value).hex()


def _numbers(values: Any) -> str:
    return "x".join(map(str, values)) or "scalar"
