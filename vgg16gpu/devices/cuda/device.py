"""The GPU, through PyCUDA or cuda-bindings (`driver`): its primary context, streams, pinned buffers, CUDA graphs.

Either is imported when a device is opened, not before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import (
    Bytes,
    Counters,
    Event,
    KernelResources,
    Stream,
    Transfer,
    no_constant,
    step_by_step,
)
from vgg16gpu.devices.copy_kernel import BUS_GROUPS, transfer_kernel, transfer_step
from vgg16gpu.devices.cuda.compiler import CubinCompiler, CubinUnit
from vgg16gpu.devices.cuda.context import (
    CHUNK_NBYTES,
    ContextGuard,
    DeviceResources,
    as_bytes,
    goes_by_kernel,
    host_address,
    pick_card,
    read_facts,
)
from vgg16gpu.devices.cuda.driver import load_driver, load_module
from vgg16gpu.devices.cuda.graph import has_conditional_nodes, kernel_signature, load_bindings
from vgg16gpu.devices.cuda.interop import CudaInterop
from vgg16gpu.devices.cuda.launch import BuiltKernel, CudaLaunch, LaunchSequence, resolve, step_name
from vgg16gpu.devices.cuda.versions import cuda_versions
from vgg16gpu.devices.stages import stage
from vgg16gpu.devices.staging import PinnedCopier
from vgg16gpu.errors import DeviceError, Error, KernelError
from vgg16gpu.program.launch import FIRST_WITH_EARLY_STARTS, GUARDED, Kernel, KernelLaunch
from vgg16gpu.program.types import Arena, Pointer

_TRANSFER = transfer_kernel(BUS_GROUPS)
_DECIDE = Kernel("decide.cu", "decide")


class CudaDevice:
    """One NVIDIA GPU: `devices.base.Device` with kernels compiled for its architecture.

    The buffers of `pinned` are gone after `close`. Raises DeviceError if the GPU cannot be had.
    """

    def __init__(self, ordinal: int = 0) -> None:
        driver = load_driver()
        card = pick_card(driver, ordinal)
        try:
            self._bindings = load_bindings()  # before the context, which may be on its way in another thread
            with stage("context"):
                self._held = DeviceResources(driver, card.retain_primary_context())
        except driver.Error as error:
            raise DeviceError(f"cuda:{ordinal} cannot be used: {error}") from error
        # Also at the end of the interpreter.
        self._finalizer = weakref.finalize(self, DeviceResources.release, self._held)
        failures: tuple[type[Error], ...] = (DeviceError, KernelError)
        self._guards = {failure: ContextGuard(self._held, failure) for failure in failures}
        try:
            self.counters = Counters()
            with self._active(DeviceError):
                with stage("streams"):
                    self._held.open()
                self.facts = read_facts(driver, card, tensor_maps=self._bindings is not None)
            self.foreign = CudaInterop(self._held, ordinal, self.counters, self._bindings)
            self._has_conditions = self._bindings is not None and has_conditional_nodes(self._bindings)
            self._compiler = CubinCompiler(self.facts.compute_capability)
        except BaseException:
            self.close()
            raise

    @property
    def uses_graphs(self) -> bool:
        """Whether `bind` and `round_trip` make CUDA graphs: cuda-bindings is installed and goes with the driver."""
        return self._bindings is not None

    # Kernels

    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compile (or take from the cache) and load kernels, that of round trips too.

        Raises KernelError with the compiler's message.
        """
        asked = [*kernels, _TRANSFER]
        if self._has_conditions and any(GUARDED in kernel.defines for kernel in asked):
            asked.append(_DECIDE)
            with self._active(KernelError):
                self._held.open_branch()
        wanted = [kernel for kernel in dict.fromkeys(asked) if kernel not in self._held.kernels]
        units = {CubinUnit(kernel.source, kernel.defines) for kernel in wanted}
        cubins = self._compiler.cubins(sorted(units, key=str))
        with self._active(KernelError):
            for kernel in wanted:
                unit = CubinUnit(kernel.source, kernel.defines)
                self._held.kernels[kernel] = self._load(kernel, unit, cubins[unit])

    def resources(self, kernel: Kernel) -> KernelResources:
        """What the compiler says a built kernel takes. Raises KernelError if it is not built."""
        return self._built(kernel).resources

    def constant(self, kernel: Kernel, name: str) -> int:
        """Address of a `__constant__` array of a built kernel's file. Raises KernelError where there is none."""
        with self._active(KernelError):
            module = self._held.modules[self._built(kernel).unit]
            try:
                address, _ = module.get_global(name)
            except self._held.driver.Error as error:
                raise no_constant(kernel, name) from error
        return int(address)

    def bind(
        self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], *, as_graph: bool = True
    ) -> Callable[[], None]:
        """Resolve arguments once; the result enqueues all steps in order. Their kernels must be built.

        Two steps or more become one CUDA graph where `uses_graphs` and `as_graph`. In a graph, also of a caller who
        captures, guarded steps are left out while their word is 0, where the driver knows conditional nodes. Raises
        KernelError, naming the step, for a kernel that is not built, arguments that are not the kernel's, or a launch
        that the GPU refuses.
        """
        held = self._held
        with self._active(KernelError):
            launches = [self._resolve(step, bases) for step in steps]
            sequence = LaunchSequence(held.driver, self._bindings, held.stream, launches)
            if any(step.guard for step in steps) and _DECIDE in held.kernels:
                sequence.branch, sequence.decide = held.branch, self._deciding()
            if self._bindings is not None and as_graph and len(steps) > 1:
                sequence.make_graph()
            held.sequences.add(sequence)
        return _Launcher(self, sequence, len(steps))

    def unbind(self, launch: Callable[[], None]) -> None:
        """Give back what `bind` or `round_trip` returned, its graph with it; it must not be under way.

        Called again, it raises KernelError. Anything else that can be called is left alone. Kernels stay: other
        launches have them too.
        """
        with self._active(DeviceError):
            if isinstance(launch, _Launcher | _RoundTrip) and launch.sequence in self._held.sequences:
                self._held.sequences.remove(launch.sequence)
                launch.sequence.clear()

    def round_trip(self, upload: Transfer, launch: Callable[[], None], download: Transfer) -> Callable[[], None]:
        """Prepare a run: `upload` to the device, what `bind` returned, `download` to the host, and wait for it.

        The result does it all and counts each part; where `uses_graphs` the copies and launches are one CUDA graph, in
        which a kernel makes the small copies: it is a few us faster than a copy node.
        Raises DeviceError for host memory that is not pinned; KernelError, at once or later, as `bind` and
        `synchronize` do.
        """
        held, bindings = self._held, self._bindings
        with self._active(KernelError):
            if not (held.is_pinned(upload.host) and held.is_pinned(download.host)):
                raise DeviceError("a round trip needs host memory from `pinned`")
            if bindings is None or not isinstance(launch, _Launcher):
                return step_by_step(self, upload, launch, download)
            before, after = goes_by_kernel(upload), goes_by_kernel(download)
            first = [self._copy(upload, inwards=True)] if before else []
            last = [self._copy(download, inwards=False)] if after else []
            nodes = (None if before else upload, None if after else download)
            launches = [*first, *launch.sequence.launches, *last]
            sequence = LaunchSequence(held.driver, bindings, held.stream, launches, *nodes)
            sequence.make_graph()
            held.sequences.add(sequence)
        return _RoundTrip(self, sequence, launch.count)

    # Memory

    def allocate(self, nbytes: int) -> int:
        """Address of fresh device memory, aligned to 256 bytes. Raises DeviceError with need and free."""
        with self._active(DeviceError):
            address = self._allocate(int(nbytes))
        self.counters.allocations += 1
        return address

    def free(self, address: int) -> None:
        """Give back what `allocate` returned, once the work enqueued on the compute stream is done."""
        with self._active(DeviceError):
            if address not in self._held.allocations:
                raise DeviceError(f"{address:#x} is not allocated on {self.facts.name}, or has been freed")
            with suppress(self._held.driver.Error):  # a failure of that work is for `synchronize` to report
                self._wait()
            self._held.allocations.pop(address).free()

    def pinned(self, nbytes: int) -> Bytes:
        """A host buffer that copies to and from the device fast; freed with the device, if not before."""
        with self._active(DeviceError):
            return self._held.pin(nbytes)

    def pin(self, memory: Bytes) -> None:
        """Have the driver lock memory of the caller's, whole pages. Raises DeviceError where it does not."""
        with self._active(DeviceError):
            self._held.register(memory)

    def unpin(self, buffer: Bytes) -> None:
        """Give back what `pinned` returned, or end what `pin` did. Nothing may be on its way there or from there."""
        with self._active(DeviceError):
            self._held.unpin(buffer)

    def copy_in(self, address: int, source: npt.NDArray[np.generic], stream: Stream = Stream.COMPUTE) -> None:
        """Enqueue a copy of a contiguous host array to the device.

        A pinned array must stay as it is until the copy is done; any other may change on return. A large array in
        ordinary memory, a mapped file say, goes through pinned chunks, each a copy that counts.
        """
        data = as_bytes(source)
        with self._active(DeviceError):
            if data.nbytes <= CHUNK_NBYTES or self._held.is_pinned(data):
                self._send(address, data, stream)
            else:
                self._send_in_chunks(address, data, stream)

    def copy_out(self, target: npt.NDArray[np.generic], address: int, stream: Stream = Stream.COMPUTE) -> None:
        """Enqueue a copy from the device into a contiguous host array."""
        data = as_bytes(target)
        with self._active(DeviceError):
            self._held.driver.memcpy_dtoh_async(data, address, self._held.streams[stream])
        self.counters.copies_out += 1

    def copy_on_device(self, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy from one address to another, on the compute stream."""
        with self._active(DeviceError):
            self._held.driver.memcpy_dtod_async(target, source, nbytes, self._held.stream)
        self.counters.launches += 1

    def zero(self, address: int, nbytes: int) -> None:
        """Enqueue that these bytes become zero, on the compute stream."""
        with self._active(DeviceError):
            self._held.driver.memset_d8_async(address, 0, nbytes, self._held.stream)
        self.counters.launches += 1

    # Order and time

    def event(self) -> Event:
        """A new event, which counts as reached until it is recorded; freed with the device."""
        driver = self._held.driver
        with self._active(DeviceError):
            self._held.marks.append(driver.Event(driver.event_flags.DISABLE_TIMING))
        return len(self._held.marks) - 1

    def record(self, event: Event, stream: Stream) -> None:
        """Put the event behind everything enqueued on `stream`, from where it was recorded before."""
        with self._active(DeviceError):
            self._held.marks[event].record(self._held.streams[stream])

    def follow(self, stream: Stream, event: Event) -> None:
        """Hold back what will be enqueued on `stream` until the event is reached, as it is recorded now."""
        with self._active(DeviceError):
            self._held.streams[stream].wait_for_event(self._held.marks[event])

    def wait(self, event: Event) -> None:
        """Wait until the event is reached; counts as a synchronisation. Raises KernelError if a launch failed."""
        with self._active(KernelError):
            self.counters.synchronisations += 1
            self._held.marks[event].synchronize()

    def synchronize(self) -> None:
        """Wait for everything enqueued on the compute stream. Raises KernelError if a launch failed."""
        with self._active(KernelError):
            self._wait()

    def measure(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Seconds on the device of each of `repeats` calls of `work`, between two events, each waited for."""
        with self._active(KernelError):
            return [self._time(work, 1) for _ in range(repeats)]

    def measure_back_to_back(self, work: Callable[[], None], repeats: int) -> float:
        """Seconds on the device per call of `work`, enqueued `repeats` times between two events."""
        with self._active(KernelError):
            return self._time(work, repeats) / repeats

    # The device itself

    def versions(self) -> Mapping[str, str]:
        """Versions of driver, CUDA, PyCUDA, cuda-bindings and nvcc, for records. Starts nvcc."""
        return cuda_versions(self._held.driver)

    def close(self) -> None:
        """Free everything and let go of the context. Safe to call twice, and after an error that broke the context."""
        self._finalizer()

    def _active(self, failure: type[Error]) -> ContextGuard:
        return self._guards[failure]

    def _load(self, kernel: Kernel, unit: CubinUnit, cubin: bytes) -> BuiltKernel:
        held = self._held
        try:
            if unit not in held.modules:
                held.modules[unit] = load_module(held.driver, cubin)
        except held.driver.Error as error:
            compiler = self._compiler.name or "the compiler that made it"
            raise KernelError(f"{unit} does not load: {error}; is {compiler} newer than the driver?") from error
        try:
            function = held.modules[unit].get_function(kernel.name)
        except held.driver.Error as error:
            raise KernelError(f'{kernel.source} has no extern "C" kernel {kernel.name!r}: {error}') from error
        # Reading attributes also loads the kernel, which the driver may otherwise put off to its first launch.
        resources = KernelResources(function.num_regs, function.shared_size_bytes, function.local_size_bytes)
        signature = kernel_signature(self._bindings, cubin, kernel.name) if self._bindings is not None else None
        return BuiltKernel(unit, resources, function.max_threads_per_block, signature)

    def _built(self, kernel: Kernel) -> BuiltKernel:
        if kernel not in self._held.kernels:
            raise KernelError(f"{kernel.label} of {kernel.source} is not built on this device; call build first")
        return self._held.kernels[kernel]

    def _function(self, kernel: Kernel) -> Any:
        return self._held.modules[self._built(kernel).unit].get_function(kernel.name)

    def _resolve(self, step: KernelLaunch, bases: Mapping[Arena, int]) -> CudaLaunch:
        built = self._built(step.kernel)
        function = self._function(step.kernel)
        if step.shared:
            static = built.resources.shared_nbytes
            if step.shared + static > self.facts.shared_nbytes:
                raise KernelError(
                    f"{step_name(step)}: {step.shared + static} bytes of shared memory for a block; "
                    f"{self.facts.name} has {self.facts.shared_nbytes}"
                )
            attribute = self._held.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            built.shared_limit = max(built.shared_limit, int(step.shared))  # other steps may take more
            function.set_attribute(attribute, built.shared_limit)
        launch = resolve(step, function, built, bases, self._bindings)
        return replace(launch, programmatic=launch.programmatic and self._has_early_starts)

    @property
    def _has_early_starts(self) -> bool:
        return self.facts.compute_capability >= FIRST_WITH_EARLY_STARTS

    def _deciding(self) -> CudaLaunch:
        """Return the launch of decide.cu; its arguments are those of each conditional node."""
        function = self._function(_DECIDE)
        function.prepare(["Q", "Q"])
        one = (1, 1, 1)
        early = self._has_early_starts
        return CudaLaunch(_DECIDE.label, function, one, one, arguments=(), shared=0, guard=0, programmatic=early)

    def _copy(self, transfer: Transfer, *, inwards: bool) -> CudaLaunch:
        """The kernel that makes a copy, early: pinned memory of the host has an address on the device, the same."""
        here, there = Pointer(Arena.ACTIVATIONS, 0), Pointer(Arena.STAGING, 0)
        out, inp = (here, there) if inwards else (there, here)
        bases = {here.arena: transfer.address, there.arena: host_address(transfer.host)}
        step = replace(transfer_step(out, inp, transfer.host.nbytes, BUS_GROUPS), programmatic=True)
        return self._resolve(step, bases)

    def _allocate(self, nbytes: int) -> int:
        driver = self._held.driver
        try:
            allocation = driver.mem_alloc(max(nbytes, 1))
        except driver.MemoryError as error:
            free, total = driver.mem_get_info()
            raise DeviceError(
                f"not enough memory on {self.facts.name}: {nbytes:,} bytes needed, {free:,} free of {total:,}; "
                "use a smaller batch or image, or free memory on the GPU"
            ) from error
        self._held.allocations[int(allocation)] = allocation
        return int(allocation)

    def _send(self, address: int, data: Bytes, stream: Stream) -> None:
        self._held.driver.memcpy_htod_async(address, data, self._held.streams[stream])
        self.counters.copies_in += 1

    def _send_in_chunks(self, address: int, data: Bytes, stream: Stream) -> None:
        chunks = self._held.chunks()
        with closing(PinnedCopier()) as stager:
            for index, start in enumerate(range(0, data.nbytes, CHUNK_NBYTES)):
                buffer, sent = chunks[index % len(chunks)]
                part = data[start : start + CHUNK_NBYTES]
                sent.synchronize()  # the last copy out of this buffer, by this upload or an earlier one
                stager.fill(buffer[: part.size], (part,))  # the bus waits for this
                self._send(address + start, buffer[: part.size], stream)
                sent.record(self._held.streams[stream])

    def _wait(self) -> None:
        self.counters.synchronisations += 1
        self._held.stream.synchronize()

    def _time(self, work: Callable[[], None], times: int) -> float:
        start, stop = self._held.events
        start.record(self._held.stream)
        for _ in range(times):
            work()
        stop.record(self._held.stream)
        self._wait()
        return float(start.time_till(stop)) * 1e-3


@dataclass(frozen=True, eq=False)
class _Launcher:
    """What `bind` returns."""

    device: CudaDevice
    sequence: LaunchSequence
    count: int

    def __call__(self) -> None:
        with self.device._active(KernelError):
            self.sequence.launch()
        self.device.counters.launches += self.count


@dataclass(frozen=True, eq=False)
class _RoundTrip:
    """What `round_trip` returns where it has made a graph."""

    device: CudaDevice
    sequence: LaunchSequence
    count: int

    def __call__(self) -> None:
        device, counters = self.device, self.device.counters
        with device._active(KernelError):
            self.sequence.launch()
            counters.copies_in += 1
            counters.launches += self.count
            counters.copies_out += 1
            device._wait()
