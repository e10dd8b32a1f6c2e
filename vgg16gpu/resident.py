"""A plan brought onto a device: memory allocated, weights uploaded, launches bound. Running it decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.errors import DeviceError, Error
from vgg16gpu.graph import Array
from vgg16gpu.program import Arena, Layout, Plan, Program, Step, Value


@dataclass(frozen=True, eq=False)
class _Bound:
    """A program at its place: one launcher per accepted element type."""

    program: Program
    launchers: Mapping[str, Callable[[], None]]


class ResidentPlan:
    """Owns the device memory of a plan. Kernels must have been built."""

    def __init__(self, plan: Plan, device: Device) -> None:
        """Allocate, upload, bind. Raises DeviceError when memory runs out."""
        self.plan = plan
        self.device = device
        self._bases: dict[Arena, int] = {}
        try:
            self._allocate_and_upload()
            self._bound = {program.batch: self._bind(program) for program in plan.programs}
            self._pinned_in = device.pinned(max(_input_nbytes(program) for program in plan.programs))
            self._pinned_out = device.pinned(max(program.output_nbytes for program in plan.programs))
        except BaseException:
            self.close()
            raise

    def run(self, batch: int, images: npt.NDArray[np.generic]) -> tuple[tuple[Array, ...], npt.NDArray[np.bool_]]:
        """Outputs of the program of size `batch` on up to that many images, and which images hold NaN or Inf.

        One copy in, the launches, one copy out, one synchronisation. Rows beyond the images are computed from zeros.
        """
        bound, device = self._bound[batch], self.device
        program, count = bound.program, images.shape[0]
        nbytes = batch * images[:1].nbytes
        source = self._pinned_in[:nbytes]
        filled = source.view(images.dtype).reshape(batch, *images.shape[1:])
        filled[:count] = images
        filled[count:] = 0
        device.copy_in(self._address(program.input.pointer.arena, program.input.pointer.offset), source)
        bound.launchers[images.dtype.name]()
        out = self._pinned_out[: program.output_nbytes]
        device.copy_out(out, self._address(program.output.arena, program.output.offset))
        device.synchronize()
        return self._results(program, out, count)

    def launcher(self, batch: int, element_type: str = "float32") -> Callable[[], None]:
        """Everything a run of `batch` launches, without the copies: for timing.

        Later values may lie where the input was, so that a second launch computes from other numbers.
        """
        return self._bound[batch].launchers[element_type]

    def bind(self, steps: Sequence[Step]) -> Callable[[], None]:
        """A launcher of some steps of a program, in this order: for timing them one by one."""
        return self.device.bind(steps, self._bases)

    def read(self, value: Value) -> Array:
        """A value in its ONNX shape and layout, as it lies on the device now."""
        stored = np.empty(value.stored_shape, np.float32)
        self.device.copy_out(stored, self._address(value.pointer.arena, value.pointer.offset))
        self.device.synchronize()
        if value.layout is Layout.PLAIN:
            return stored
        return np.ascontiguousarray(np.moveaxis(stored, -1, 1)[:, : value.shape[1]])

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
        activations = max(program.activations_nbytes for program in self.plan.programs)
        sizes = {
            Arena.WEIGHTS: weights.weights_nbytes,
            Arena.ACTIVATIONS: activations,
            Arena.STAGING: weights.staging_nbytes,
        }
        for arena, nbytes in sizes.items():
            self._bases[arena] = device.allocate(max(nbytes, 1))
        for upload in weights.uploads:
            device.copy_in(self._address(upload.target.arena, upload.target.offset), upload.array)
            if upload.pack:
                device.bind((upload.pack,), self._bases)()
        device.synchronize()
        device.free(self._bases.pop(Arena.STAGING))

    def _bind(self, program: Program) -> _Bound:
        entries = program.input.steps.items()
        launchers = {name: self.device.bind((step, *program.steps), self._bases) for name, step in entries}
        return _Bound(program, launchers)

    def _results(self, program: Program, out: Bytes, count: int) -> tuple[tuple[Array, ...], npt.NDArray[np.bool_]]:
        outputs = []
        for value in program.outputs:
            start = value.pointer.offset - program.output.offset
            outputs.append(out[start : start + value.nbytes].view(np.float32).reshape(value.shape)[:count].copy())
        start = program.status.offset - program.output.offset
        status = out[start:].view(np.int32).reshape(program.batch, program.status_per_image)
        return tuple(outputs), np.asarray(status[:count].any(axis=1))


def _input_nbytes(program: Program) -> int:
    return 4 * math.prod(program.input.shape)


def check_memory(plan: Plan, device: Device) -> None:
    """Raise DeviceError, before anything is compiled or allocated, when the plan needs more memory than is free."""
    need, free = plan.device_nbytes + plan.weights.staging_nbytes, device.facts.memory_free
    if need > free:
        raise DeviceError(
            f"{device.facts.name}: the model needs {need / 1e6:.0f} MB of memory for batch "
            f"{plan.programs[-1].batch} and {free / 1e6:.0f} MB are free; use a smaller batch or another device"
        )
