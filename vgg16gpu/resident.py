"""A plan brought onto a device: memory allocated, weights uploaded, launches bound. Running it decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.errors import DeviceError, Error, InputError, KernelError
from vgg16gpu.graph import Array
from vgg16gpu.program import Arena, Calibration, Element, Layout, Plan, Pointer, Program, Step, Value

LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True, eq=False)
class _Bound:
    """A program at its place: one launcher per accepted element type."""

    program: Program
    launchers: Mapping[str, Callable[[], None]]


@dataclass(frozen=True, eq=False)
class Results:
    """What a run brought back: one row, or flag, for each image."""

    outputs: tuple[Array, ...]
    nonfinite: npt.NDArray[np.bool_]  # the image holds NaN or Inf
    out_of_range: npt.NDArray[np.bool_]  # a value left the range that its element is good for


class ResidentPlan:
    """Owns the device memory of a plan. Kernels must have been built."""

    def __init__(self, plan: Plan, device: Device) -> None:
        """Allocate, upload, calibrate, bind. Raises DeviceError when memory runs out."""
        self.plan = plan
        self.device = device
        self.second_passes = 0  # images that were run again
        self._bases: dict[Arena, int] = {}
        try:
            self._pinned_in = device.pinned(max(_block_nbytes(program) for program in plan.all_programs))
            self._pinned_out = device.pinned(max(_returned_nbytes(program) for program in plan.all_programs))
            self._allocate_and_upload()
            self._bound = {program.batch: self._bind(program) for program in plan.programs}
            self._second_pass = self._bind(plan.second_pass) if plan.second_pass else None
        except BaseException:
            self.close()
            raise

    def run(self, batch: int, images: npt.NDArray[np.generic]) -> tuple[tuple[Array, ...], npt.NDArray[np.bool_]]:
        """Outputs of the program of size `batch` on up to that many images, and which images hold NaN or Inf.

        One copy in, the launches, one copy out, one synchronisation; then the same for every image whose values left
        the range of the fast kernels, on the exact ones. Raises KernelError for a kernel that gave up waiting, and
        InputError for an image beyond the range of float16 where there is no exact path.
        """
        results = self._run(self._bound[batch], images)
        return self.finished(images, results), results.nonfinite

    def finished(self, images: npt.NDArray[np.generic], results: Results) -> tuple[Array, ...]:
        """The outputs of these images once the second pass has been made where it is needed."""
        again = np.flatnonzero(results.out_of_range)
        if self._second_pass is None:
            lost = [int(i) for i in again if not results.nonfinite[i]]
            if lost:
                raise InputError(
                    f"image {lost[0]} of {len(images)} (counted from 0): values leave the range of float16 inside the "
                    "network; use precision bf16 or fp32"
                )
            return results.outputs
        for i in again:
            exact = self._run(self._second_pass, images[i : i + 1])
            for output, row in zip(results.outputs, exact.outputs, strict=True):
                output[i] = row[0]
            self.second_passes += 1
        return results.outputs

    def _run(self, bound: _Bound, images: npt.NDArray[np.generic]) -> Results:
        program, count, device = bound.program, images.shape[0], self.device
        entry = program.input.entries[images.dtype.name]
        end = program.control.end - entry.pointer.offset
        source = self._pinned_in[:end]
        filled = source[: entry.nbytes].view(images.dtype).reshape(program.batch, *images.shape[1:])
        filled[:count] = images
        filled[count:] = 0
        source[entry.nbytes :] = 0
        device.copy_in(self._address(entry.pointer.arena, entry.pointer.offset), source)
        bound.launchers[images.dtype.name]()
        out = self._pinned_out[: _returned_nbytes(program)]
        device.copy_out(out, self._address(program.control.error.arena, program.control.error.offset))
        device.synchronize()
        return read_results(program, out, count)

    def launcher(self, batch: int, element_type: str = "float32") -> Callable[[], None]:
        """Everything a run of `batch` launches, without the copies: for timing.

        Later values may lie where the input was, so that a second launch computes from other numbers.
        """
        return self._bound[batch].launchers[element_type]

    def bind(self, steps: Sequence[Step]) -> Callable[[], None]:
        """A launcher of some steps of a program, in this order: for timing them one by one."""
        return self.device.bind(steps, self._bases)

    def read(self, value: Value) -> Array:
        """A value in its ONNX shape and layout, as float32, as it lies on the device now."""
        stored = decoded(value, self._copy(value.pointer, value.nbytes))
        if value.scale is not None:
            stored = stored / self._copy(value.scale, 4 * value.pitch).view(np.float32)
        if value.layout is Layout.PLAIN:
            return stored
        return np.ascontiguousarray(np.moveaxis(stored, -1, 1)[:, : value.shape[1]])

    def _copy(self, pointer: Pointer, nbytes: int) -> Bytes:
        copy = np.empty(nbytes, np.uint8)
        self.device.copy_out(copy, self._address(pointer.arena, pointer.offset))
        self.device.synchronize()
        return copy

    def close(self) -> None:
        """Free the device memory. Safe to call twice. Raises what freeing raises, once all has been tried."""
        failure: Error | None = None
        while self._bases:
            try:
                self.device.free(self._bases.popitem()[1])
            except Error as error:
                failure = error
        if failure:
            raise failure

    def _address(self, arena: Arena, offset: int) -> int:
        return self._bases[arena] + offset

    def _allocate_and_upload(self) -> None:
        weights, device = self.plan.weights, self.device
        sizes = {
            Arena.WEIGHTS: weights.weights_nbytes,
            Arena.ACTIVATIONS: self.plan.activations_nbytes,
            Arena.STAGING: weights.staging_nbytes,
        }
        for arena, nbytes in sizes.items():
            self._bases[arena] = device.allocate(max(nbytes, 1))
        for upload in weights.uploads:
            device.copy_in(self._address(upload.target.arena, upload.target.offset), upload.array)
            if upload.pack:
                device.bind((upload.pack,), self._bases)()
        if self.plan.calibration:
            self._calibrate(self.plan.calibration)
        device.synchronize()
        device.free(self._bases.pop(Arena.STAGING))

    def _calibrate(self, calibration: Calibration) -> None:
        bound = self._bind(calibration.program)
        for sample in calibration.samples:
            self._run(bound, sample[None])
        self.device.bind(calibration.finish, self._bases)()

    def _bind(self, program: Program) -> _Bound:
        types = program.input.entries
        return _Bound(program, {name: self.device.bind(program.all_steps(name), self._bases) for name in types})


def read_results(program: Program, out: Bytes, count: int) -> Results:
    """What the block that a run brings back says of its first `count` images. Raises KernelError where a wait ran out."""
    control, start = program.control, program.control.error.offset
    words = out[: 4 * control.returned_words].view(np.int32)
    if words[0]:
        raise KernelError(
            f"a kernel of the network's operator {words[0]} waited in vain for data and gave up: the results are wrong. "
            "Run again; if that fails too, the GPU is overloaded beyond measure or there is a fault in the kernel"
        )
    status = words[1 : 1 + program.batch]
    maxima = words[1 + program.batch :].view(np.float32).reshape(len(control.watched), program.batch)
    in_range = (maxima >= control.lowest) & (maxima <= LARGEST_FLOAT16)
    outputs = []
    for value in program.outputs:
        first = value.pointer.offset - start
        outputs.append(out[first : first + value.nbytes].view(np.float32).reshape(value.shape)[:count].copy())
    return Results(tuple(outputs), status[:count] != 0, ~in_range.all(axis=0)[:count])


def decoded(value: Value, stored: Bytes) -> Array:
    """The numbers in the memory of a value, in its stored shape, as float32; scales of pairs are left in."""
    planes = stored.reshape(value.element.planes, -1)
    match value.element:
        case Element.F32:
            numbers = planes[0].view(np.float32)
        case Element.BF16:
            numbers = (planes[0].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case Element.F16 | Element.F16_PAIR:
            numbers = planes.view(np.float16).astype(np.float32).sum(axis=0)
        case Element.U8:
            numbers = planes[0].astype(np.float32) * np.float32(value.step)
        case Element.S8:
            numbers = planes[0].view(np.int8).astype(np.float32) * np.float32(value.step)
    return numbers.reshape(value.stored_shape)


def _block_nbytes(program: Program) -> int:
    first = min(entry.pointer.offset for entry in program.input.entries.values())
    return program.control.end - first


def _returned_nbytes(program: Program) -> int:
    return program.output_end - program.control.error.offset


def check_memory(plan: Plan, device: Device) -> None:
    """Raise DeviceError, before anything is compiled or allocated, when the plan needs more memory than is free."""
    need, free = plan.device_nbytes + plan.weights.staging_nbytes, device.facts.memory_free
    if need > free:
        raise DeviceError(
            f"{device.facts.name}: the model needs {need / 1e6:.0f} MB of memory for batch "
            f"{plan.programs[-1].batch} and {free / 1e6:.0f} MB are free; use a smaller batch or another device"
        )
