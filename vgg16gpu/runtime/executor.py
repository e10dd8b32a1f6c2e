"""A plan brought onto a device: memory allocated, weights uploaded, launches bound. Running it decides nothing."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.devices.base import Bytes, Device, Transfer
from vgg16gpu.devices.stages import stage
from vgg16gpu.devices.staging import PinnedCopier, Rows
from vgg16gpu.devices.weights import WeightBinding, WeightCache
from vgg16gpu.errors import DeviceError, Error
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan, PairScaling
from vgg16gpu.program.types import Arena, Layout, Pointer, TensorDesc
from vgg16gpu.runtime.outputs import OutOfRangeError, OutputRows, ResultBlock, decoded, image_shape, read_results
from vgg16gpu.runtime.streaming import IoBinding, Pipeline, Span, StagingBuffers

_log = logging.getLogger(__name__)
_Key: TypeAlias = tuple[int, npt.DTypeLike]  # the batch size and the element type of a program


class BoundProgram(NamedTuple):
    """A program at its place, for one element type. Host memory is pinned, and shared by all programs."""

    port: IoBinding
    images: Rows  # the place of the input in the host's buffer
    inputs: Mapping[str, Array]  # of each input, by name
    rest: Bytes  # what is sent as zeros: all behind the images; where there are several inputs, the whole buffer
    round_trip: Callable[[], None]
    block: ResultBlock


class Executor:
    """A plan on a device: owns the device memory of it, and runs it.

    Its weights are a lease of a store that several plans share, which goes with it; without one they are its own.
    """

    @classmethod
    def load(cls, plan: CompiledModel, device: Device, weights: WeightBinding | None = None) -> Self:
        """Compile the kernels and bring everything to the device. Raises DeviceError and KernelError.

        Whoever gives a lease has seen to it that there is enough memory.
        """
        if weights is None:
            check_memory(plan, device)
        started = time.perf_counter()
        with stage("kernels"):
            device.build(plan.kernels)
        compiled = time.perf_counter()
        loaded = cls(plan, device, weights)
        loaded.compile_seconds, loaded.upload_seconds = compiled - started, time.perf_counter() - compiled
        return loaded

    def __init__(self, plan: CompiledModel, device: Device, weights: WeightBinding | None = None) -> None:
        """Allocate, upload, calibrate, bind; kernels must have been built. Raises DeviceError when memory runs out."""
        self._weights, self._shares = weights or WeightCache(device).lease(plan.weights), weights is not None
        self.compile_seconds = self.upload_seconds = 0.0  # of `load`
        self.plan = plan
        self.device = device
        self.second_passes = 0  # images that needed one
        self._stager = PinnedCopier()
        self._bases: dict[Arena, int] = {}
        self._pinned: list[Bytes] = []
        self._launches: list[Callable[[], None]] = []  # all that is bound
        self._bound: dict[_Key, BoundProgram] = {}
        self._exact: dict[_Key, BoundProgram] = {}  # of second passes
        try:
            with stage("memory"):
                programs = (*plan.all_programs, *plan.second_passes)
                self._pinned_in = self._pin(max(program.sent_nbytes for program in programs))
                self._pinned_out = self._pin(max(program.returned_nbytes for program in programs))
                self._allocate()
            with stage("weights"):
                self._upload()
            with stage("graphs"):
                for program in plan.programs:
                    if not program.others:  # `run_once` binds those of several inputs, of which most run on the device
                        self._bound |= self._bind(program)
                if plan.second_pass:
                    self._exact |= self._bind(plan.second_pass)
        except BaseException:
            self.close()
            raise

    def run(self, batch: int, images: Rows) -> OutputRows:
        """What the program of size `batch` makes of up to that many images.

        One copy in, the launches, one copy out, one synchronisation; then the same for every image whose values left
        the range of the fast kernels, on the exact ones if the plan has them. Raises KernelError for a kernel that gave
        up waiting.
        """
        bound = self._bound[batch, images.dtype]
        results = self._pass(bound, images)
        return self.finished(results, bound.images.__getitem__)

    def count_second_pass(self, images: int = 1) -> None:
        """So many images need to be run again."""
        self.second_passes += images
        _log.info("images are computed again in float32 arithmetic: values left the range of the fast kernels")

    def run_once(self, inputs: Mapping[str, Array], count: int | None = None) -> tuple[Array, ...]:
        """The outputs for arrays of exactly the planned shapes, by name of the input; NaN and Inf are let through.

        Of the plan's first program; of the second pass of all if values of the first `count` images, or of any, left
        the range of float16. Copies and raises as `run` does, and OutOfRangeError where there is no second pass.
        """
        is_exact = False
        while True:
            bound = self._first(is_exact)
            bound.rest.fill(0)
            for name, place in bound.inputs.items():
                place[...] = inputs[name]
            bound.round_trip()
            try:
                return bound.block.whole(count)
            except OutOfRangeError as error:
                if is_exact or not self.plan.second_passes:
                    raise
                self.count_second_pass(error.count)
                is_exact = True

    def _first(self, is_exact: bool) -> BoundProgram:
        """Return the first program for float32, or its second pass; bound now if it is new."""
        program, bound = (self.plan.second_passes[0], self._exact) if is_exact else (self.plan.programs[0], self._bound)
        key = program.batch, np.dtype(np.float32)
        if key not in bound:
            self.device.build({step.kernel for step in program.all_steps()})
            bound[key] = self._bind_entry(program, "float32")
        return bound[key]

    def finished(self, results: OutputRows, images: Callable[[npt.NDArray[np.intp]], Rows]) -> OutputRows:
        """The results of a batch once the second pass has been made where it is needed.

        images: gives copies of those that are asked for (they may lie where the second pass sends from). An image is
        still marked as out of range if the plan has no exact kernels for it.
        """
        if not self._exact or not np.count_nonzero(results.out_of_range):
            return results
        again = np.flatnonzero(results.out_of_range)
        copies = images(again)
        for i, image in zip(again, copies, strict=True):
            exact = self._pass(self._exact[1, copies.dtype], image[None])
            for output, row in zip(results.outputs, exact.outputs, strict=True):
                output[i] = row[0]
            results.out_of_range[i] = exact.out_of_range[0]
            self.count_second_pass()
        return results

    def _pass(self, bound: BoundProgram, images: Rows) -> OutputRows:
        self._stager.fill(bound.images, (images,))
        bound.rest.fill(0)
        bound.round_trip()
        return bound.block.read(len(images))

    def input(self, element_type: str) -> Rows:
        """The pinned memory that `run` sends from, as images of the largest batch: what lies there is not copied."""
        return self._bound[self.plan.programs[-1].batch, np.dtype(element_type)].images

    def pipeline(self, element_type: str, largest: int, *, is_direct: bool = False) -> Pipeline:
        """Room for a stream of batches of any size up to `largest`. Raises DeviceError when memory runs out."""
        ports = {
            batch: bound.port
            for (batch, dtype), bound in self._bound.items()
            if dtype == element_type and batch <= largest
        }
        return Pipeline(self.device, self._stager, ports, is_direct=is_direct)

    def frames(self, batch: int, element_type: str, depth: int) -> StagingBuffers:
        """Room for `depth` batches of one size that gather on the device. Raises DeviceError when memory runs out."""
        return StagingBuffers(self.device, {batch: self._bound[batch, np.dtype(element_type)].port}, depth)

    def image_shape(self, batch: int, element_type: str) -> Shape:
        """The shape of a batch of images as `element_type`."""
        return self._bound[batch, np.dtype(element_type)].port.shape

    def launcher(self, batch: int, element_type: str = "float32") -> Callable[[], None]:
        """Everything a run of `batch` launches, without the copies: for timing.

        It takes the device as the last run left it, which must have been one of this batch size: programs share their
        memory, and counters in the control words of one are numbers of another. Later values may lie where the input
        was, so that a second launch computes from other numbers.
        """
        return self._bound[batch, np.dtype(element_type)].port.launch

    def bind(
        self, steps: Sequence[KernelLaunch], beside: int | None = None, *, as_graph: bool = True
    ) -> Callable[[], None]:
        """A launcher of some steps of a program, in this order; the plan gives it back when it is closed.

        beside: address of further memory, which the steps know as the arena STAGING. as_graph: as for `Device.bind`.
        """
        bases = {**self._bases, Arena.WEIGHTS: self._weights.base}
        if beside is not None:
            bases[Arena.STAGING] = beside
        return self._kept(self.device.bind(self._weights.located(steps), bases, as_graph=as_graph))

    def unbind(self, launch: Callable[[], None]) -> None:
        """Give back what `bind` returned before the plan is closed; it must not be under way."""
        self._launches.remove(launch)
        self.device.unbind(launch)

    @property
    def returned(self) -> Bytes:
        """The pinned memory that runs copy control words and outputs to; each takes it from its start on."""
        return self._pinned_out

    def read(self, value: TensorDesc) -> Array:
        """A value in its ONNX shape and layout, as float32, as it lies on the device now."""
        stored = decoded(value, self._copy(value.pointer, value.nbytes))
        if value.scale is not None:
            stored /= self._copy(value.scale, 4 * value.pitch).view(np.float32)
        if value.factor is not None:
            factors = self._copy(value.factor, 4 * len(stored)).view(np.float32)
            stored /= factors.reshape(-1, *(1,) * (stored.ndim - 1))
        if value.layout is Layout.PLAIN:
            return stored
        return np.ascontiguousarray(np.moveaxis(stored, -1, 1)[:, : value.shape[1]])

    def _copy(self, pointer: Pointer, nbytes: int) -> Bytes:
        copy = np.empty(nbytes, np.uint8)
        self.device.copy_out(copy, self._address(pointer.arena, pointer.offset))
        self.device.synchronize()
        return copy

    def close(self) -> None:
        """Give back all that the plan has on the device, which other plans may use on. Safe to call twice.

        Raises what freeing raises, once all has been tried.
        """
        failure: Error | None = None
        self._stager.close()
        steps: list[Callable[[], None]] = [partial(self.device.free, address) for address in self._bases.values()]
        steps += [self._weights.release, *(partial(self.device.unpin, buffer) for buffer in self._pinned)]
        steps += [partial(self.device.unbind, launch) for launch in self._launches]  # done, once memory is free
        self._bases.clear()
        self._pinned.clear()
        self._launches.clear()
        for step in steps:
            try:
                step()
            except Error as error:
                failure = error
        if failure:
            raise failure

    def _kept(self, launch: Callable[[], None]) -> Callable[[], None]:
        self._launches.append(launch)
        return launch

    def _pin(self, nbytes: int) -> Bytes:
        self._pinned.append(self.device.pinned(nbytes))
        return self._pinned[-1]

    def _address(self, arena: Arena, offset: int) -> int:
        return self._weights.address(offset) if arena is Arena.WEIGHTS else self._bases[arena] + offset

    def _allocate(self) -> None:
        self._weights.allocate()
        sizes = {Arena.ACTIVATIONS: self.plan.activations_nbytes, Arena.STAGING: self._weights.staging_nbytes}
        for arena, nbytes in sizes.items():
            self._bases[arena] = self.device.allocate(max(nbytes, 1))

    def _upload(self) -> None:
        """Bring the weights there that are not there yet, packed, and the scales that typical inputs give."""
        device = self.device
        for upload in self._weights.uploads:
            device.copy_in(self._address(upload.target.arena, upload.target.offset), np.ascontiguousarray(upload.array))
            if upload.pack:
                self.bind((upload.pack,))()
        if self.plan.calibration:
            self._fix_pair_scales(self.plan.calibration)
        device.synchronize()
        while self._launches:  # they were for this once
            device.unbind(self._launches.pop())
        device.free(self._bases.pop(Arena.STAGING))
        if self._shares:
            self._weights.settle(self.plan.calibration)

    def _fix_pair_scales(self, scaling: PairScaling) -> None:
        bound = self._bind_entry(scaling.program, scaling.samples.dtype.name)
        for sample in scaling.samples:
            self._pass(bound, sample[None])
        self.bind(scaling.finish)()

    def _bind(self, program: LaunchPlan) -> dict[_Key, BoundProgram]:
        """Return a program bound for each element type."""
        return {(program.batch, np.dtype(name)): self._bind_entry(program, name) for name in program.input.entries}

    def _bind_entry(self, program: LaunchPlan, element_type: str) -> BoundProgram:
        port, start = self._port(program, element_type), _start(program, element_type)
        source, target = self._pinned_in[: port.input.nbytes], self._pinned_out[: port.output.nbytes]
        upload, download = Transfer(source, port.input.address), Transfer(target, port.output.address)
        round_trip = self._kept(self.device.round_trip(upload, port.launch, download))
        images = port.images(source[program.input.entries[element_type].pointer.offset - start :])
        inputs = {program.input.name: images}
        for value in program.others:
            place = source[value.pointer.offset - start :][: 4 * math.prod(value.shape)]
            inputs[value.name] = place.view(np.float32).reshape(value.shape)
        rest = source if program.others else port.rest(source)
        return BoundProgram(port, images, inputs, rest, round_trip, ResultBlock(program, target))

    def _port(self, program: LaunchPlan, element_type: str) -> IoBinding:
        error = program.control.error
        return IoBinding(
            shape=image_shape(program.input.shape, element_type),
            element_type=element_type,
            input=self._input_span(program, element_type),
            output=Span(self._address(error.arena, error.offset), program.returned_nbytes),
            launch=self.bind(program.all_steps(element_type)),
            results=partial(read_results, program),
        )

    def _input_span(self, program: LaunchPlan, element_type: str) -> Span:
        start, arena = _start(program, element_type), program.input.entries[element_type].pointer.arena
        return Span(self._address(arena, start), program.control.end - start)


def _start(program: LaunchPlan, element_type: str) -> int:
    """Return the offset of the first input that the host copies in; all of them end where the control words begin."""
    others = [value.pointer.offset for value in program.others]
    return min(program.input.entries[element_type].pointer.offset, *others, program.control.end)


def check_memory(plan: CompiledModel, device: Device) -> None:
    """Raise DeviceError, before anything is compiled or allocated, when the plan needs more memory than is free.

    What streams will take beside it, should there be any, is not counted: see `Pipeline`.
    """
    need, free = plan.device_nbytes + plan.weights.staging_nbytes, device.facts.memory_free
    if need > free:
        raise DeviceError(
            f"{device.facts.name}: the model needs {need / 1e6:.0f} MB of memory for batch "
            f"{plan.programs[-1].batch} and {free / 1e6:.0f} MB are free; use a smaller batch or another device"
        )
