"""The cpu device: the CUDA kernels, compiled by a C++ compiler and run on all cores.

Copies and launches are done when the call returns, whatever their stream; `synchronize` and `wait` only count.
Environment:

VGG16GPU_THREADS   the number of OS threads (default: the cores that this process may use)
VGG16GPU_ORDER     in which order the threads of a block run between two barriers: forward, reverse, or a number that
                   seeds a shuffle; a correct kernel gives the same bits in every order
VGG16GPU_SANITIZE  address, thread or poison: the checks of a device that is opened without `sanitize`
VGG16GPU_OPTIMIZE  0 to 3 (default): how far the compiler optimises; a lower level compiles in less than half the time,
                   runs more slowly, and gives the same bits
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import ArrayInterop, Bytes, Counters, Event, Stream, Transfer, no_constant, step_by_step
from vgg16gpu.devices.cache import CachedFile
from vgg16gpu.devices.cpu import compiler as cpu_compiler
from vgg16gpu.devices.cpu import memory as cpu_memory
from vgg16gpu.devices.cpu.compiler import CHECKS, Check, LibraryUnit
from vgg16gpu.devices.cpu.library import MAX_SHARED_NBYTES, BoundLaunch, Library, LoadedKernel
from vgg16gpu.devices.platforms import machine_memory, supported_machine, usable_cores
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.io.foreign.numbers import digits_value
from vgg16gpu.io.shown import shown
from vgg16gpu.program.launch import Kernel, KernelLaunch
from vgg16gpu.program.types import Arena, DeviceFacts

_MAX_OS_THREADS = 1024
_ORDERS = {"forward": 0, "reverse": 1}
_SHUFFLED = 2
_RUNTIME_SYMBOLS: Mapping[Check, str] = {"address": "__asan_init", "thread": "__tsan_init"}

_checked_lock = threading.Lock()  # libraries built with checks have one set of shared arrays in the whole process


class CpuDevice:
    """The Device (see devices/base.py) of this machine's processor.

    `sanitize` builds the kernels with checks (see cpu_compiler.Check); "address" and "thread" need the sanitizer's
    run-time library in the process, see devices/cpu/sanitize.py. `threads`: OS threads, in place of the environment's.
    Raises DeviceError: not Linux on x86-64 or aarch64, no C++ compiler, a wrong environment variable.
    """

    facts: DeviceFacts
    counters: Counters
    foreign: ArrayInterop | None = None  # this is no card

    def __init__(self, sanitize: Check | None = None, threads: int | None = None) -> None:
        supported_machine()
        self._check = sanitize or _check_from_environment()
        cpu_compiler.find_compiler().flags(self._check)  # a wrong environment is told now
        _require_runtime(self._check)
        self._cores = usable_cores()
        self._os_threads = 1 if self._check else threads or threads_from_environment(self._cores)
        self._order, self._seed = _order_from_environment()
        total, free = machine_memory()
        self.facts = DeviceFacts("cpu", cpu_compiler.cpu_name(), self._cores, (0, 0), MAX_SHARED_NBYTES, total, free)
        self.counters = Counters()
        self._kernels: dict[Kernel, LoadedKernel] = {}
        self._heap = cpu_memory.Heap(total, exact=self._check is not None)
        self._constants: dict[int, int] = {}  # bytes by address
        self._pinned: list[Bytes] = []
        self._workers: cpu_memory.WorkerMemory | None = None
        self._closed = False
        self._lock = _checked_lock if self._check else threading.Lock()
        _open_devices.add(self)

    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compile (or take from the cache) and load kernels. Raises KernelError with the compiler's message."""
        self._require_open()
        wanted = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._kernels]
        if not wanted:
            return
        units = {kernel: LibraryUnit(kernel.source, kernel.defines) for kernel in wanted}
        names: dict[LibraryUnit, list[str]] = {}
        for kernel, unit in units.items():
            names.setdefault(unit, []).append(kernel.name)
        compiled = cpu_compiler.compile_units(units.values(), self._check, self._cores)
        libraries = {unit: self._library(unit, found, names[unit]) for unit, found in compiled.items()}
        loaded = {kernel: libraries[unit].kernel(kernel.name) for kernel, unit in units.items()}
        for kernel, found in loaded.items():
            if found is None:
                raise KernelError(f'{units[kernel].label} has no kernel {kernel.name}: extern "C" __global__ void')
            self._kernels[kernel] = found
        need = self._os_threads * max(library.worker_nbytes for library in libraries.values())
        if self._workers is None or self._workers.nbytes < need:
            self._workers = cpu_memory.WorkerMemory(need)

    def _library(self, unit: LibraryUnit, found: CachedFile, names: Sequence[str]) -> Library:
        """Load a unit's library with kernels of these names; a cached one that is damaged or lacks one is rebuilt."""
        with contextlib.suppress(KernelError):
            library = Library(found)
            if found.is_new or all(library.kernel(name) for name in names):
                return library
        if not found.is_new:
            found.discard()
            found = cpu_compiler.compile_units([unit], self._check, self._cores)[unit]
        return Library(found)

    def constant(self, kernel: Kernel, name: str) -> int:
        """Return the address of a `__constant__` array of a built kernel's file. Raises KernelError without one.

        Every device of the process that is opened with the same checks has the same array.
        """
        self._require_open()
        found = self._built(kernel).library.constant(name)
        if found is None:
            raise no_constant(kernel, name)
        address, nbytes = found
        self._constants[address] = nbytes
        return address

    def allocate(self, nbytes: int) -> int:
        """Allocate memory, aligned to 256 bytes; return its address. Raises DeviceError with need and free."""
        self._require_open()
        address = self._heap.allocate(nbytes)
        self.counters.allocations += 1
        return address

    def free(self, address: int) -> None:
        """Free the memory of `allocate`. Raises DeviceError if it is not."""
        self._require_open()
        self._heap.free(address)

    def pinned(self, nbytes: int) -> Bytes:
        """Return a host buffer; here any memory will do."""
        self._require_open()
        buffer = cpu_memory.aligned(nbytes)
        self._pinned.append(buffer)
        return buffer

    def pin(self, memory: Bytes) -> None:
        """Do nothing: copies need no pinned memory here."""

    def unpin(self, buffer: Bytes) -> None:
        """Free the memory of `pinned`."""
        self._require_open()
        self._pinned = [other for other in self._pinned if other is not buffer]

    def copy_in(self, address: int, source: npt.NDArray[np.generic], stream: Stream = Stream.COMPUTE) -> None:  # noqa: ARG002
        """Copy a contiguous host array to the device. Raises DeviceError if it does not fit there."""
        self._require_open()
        self._require_memory(address, source.nbytes)
        cpu_memory.copy(address, cpu_memory.contiguous_address(source, written=False), source.nbytes)
        self.counters.copies_in += 1

    def copy_out(self, target: npt.NDArray[np.generic], address: int, stream: Stream = Stream.COMPUTE) -> None:  # noqa: ARG002
        """Copy from the device into a contiguous host array. Raises DeviceError if there is not as much."""
        self._require_open()
        self._require_memory(address, target.nbytes)
        cpu_memory.copy(cpu_memory.contiguous_address(target, written=True), address, target.nbytes)
        self.counters.copies_out += 1

    def copy_on_device(self, target: int, source: int, nbytes: int) -> None:
        """Copy from one address to another. Raises DeviceError if one does not hold as much."""
        self._require_open()
        for address in (target, source):
            self._require_memory(address, nbytes)
        cpu_memory.copy(target, source, nbytes)
        self.counters.launches += 1

    def zero(self, address: int, nbytes: int) -> None:
        """Set these bytes to zero. Raises DeviceError if they are not the device's."""
        self._require_open()
        self._require_memory(address, nbytes)
        ctypes.memset(address, 0, nbytes)
        self.counters.launches += 1

    def bind(
        self,
        steps: Sequence[KernelLaunch],
        bases: Mapping[Arena, int],
        *,
        as_graph: bool = True,  # noqa: ARG002 - there are no graphs here
    ) -> Callable[[], None]:
        """Resolve arguments once; the result runs all steps in order and raises KernelError if one fails.

        Raises KernelError: a kernel that is not built, arguments it does not take, a grid or block out of range.
        """
        self._require_open()
        launches = [BoundLaunch(self._built(step.kernel), step, bases) for step in steps]

        def run() -> None:
            with self._lock:
                self._require_open()
                memory = self._workers.address if self._workers else 0  # there are workers if there is a kernel
                for launch in launches:
                    self.counters.launches += 1
                    launch(memory, self._os_threads, self._order, self._seed)

        return run

    def unbind(self, launch: Callable[[], None]) -> None:  # noqa: ARG002
        """Do nothing: the result of `bind` holds nothing else."""
        self._require_open()

    def round_trip(self, upload: Transfer, launch: Callable[[], None], download: Transfer) -> Callable[[], None]:
        """Prepare a run: `upload`, what `bind` returned, `download`; each is done before the next begins."""
        self._require_open()
        return step_by_step(self, upload, launch, download)

    def event(self) -> Event:
        """Return an event, always the same: here each is always reached."""
        self._require_open()
        return 0

    def record(self, event: Event, stream: Stream) -> None:  # noqa: ARG002
        """Do nothing: what was enqueued is done."""
        self._require_open()

    def follow(self, stream: Stream, event: Event) -> None:  # noqa: ARG002
        """Do nothing: every event is reached."""
        self._require_open()

    def wait(self, event: Event) -> None:  # noqa: ARG002
        """Count the call; nothing is ever under way here."""
        self._require_open()
        self.counters.synchronisations += 1

    def synchronize(self) -> None:
        """Count the call; nothing is ever under way here."""
        self._require_open()
        self.counters.synchronisations += 1

    def measure(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Return the seconds of each of `repeats` calls of `work`."""
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return seconds

    def measure_back_to_back(self, work: Callable[[], None], repeats: int) -> float:
        """Return the seconds per call of `work`, called `repeats` times in a row."""
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - start) / repeats

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._heap.clear()
            self._constants.clear()
            self._pinned.clear()
            self._kernels.clear()
            self._workers = None

    def _built(self, kernel: Kernel) -> LoadedKernel:
        try:
            return self._kernels[kernel]
        except KeyError:
            raise KernelError(f"{kernel.label} of {kernel.source} is not built; call build first") from None

    def _require_memory(self, address: int, nbytes: int) -> None:
        """Raise DeviceError unless these bytes lie inside one allocation, or one constant array."""
        if not any(0 <= address - start <= size - nbytes for start, size in self._constants.items()):
            self._heap.require(address, nbytes)

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceError("the cpu device is closed")


_open_devices: weakref.WeakSet[CpuDevice] = weakref.WeakSet()


def _fresh_locks() -> None:
    """Replace locks in a forked child: one that another thread held at the fork would never be released."""
    global _checked_lock  # noqa: PLW0603
    _checked_lock = threading.Lock()
    for device in _open_devices:
        device._lock = _checked_lock if device._check else threading.Lock()


os.register_at_fork(after_in_child=_fresh_locks)


def threads_from_environment(cores: int) -> int:
    """Return VGG16GPU_THREADS, else one thread for each core. Raises DeviceError for any other value."""
    threads = named_threads()
    if threads is None:
        return min(cores, _MAX_OS_THREADS)
    if not threads:
        text = os.environ["VGG16GPU_THREADS"].strip()
        raise DeviceError(f"VGG16GPU_THREADS={shown(text)} is not a number of threads from 1 to {_MAX_OS_THREADS}")
    return threads


def named_threads() -> int | None:
    """Return VGG16GPU_THREADS; None where it is not set, 0 where it is not a number of threads."""
    text = os.environ.get("VGG16GPU_THREADS", "").strip()
    return (digits_value(text, _MAX_OS_THREADS) or 0) if text else None


def _order_from_environment() -> tuple[int, int]:
    """Return the order of the threads of a block, and the seed of a shuffle. Raises DeviceError."""
    text = os.environ.get("VGG16GPU_ORDER", "").strip() or "forward"
    if text in _ORDERS:
        return _ORDERS[text], 0
    if (seed := digits_value(text, 2**32 - 1)) is None:
        raise DeviceError(f"VGG16GPU_ORDER={shown(text)} is not forward, reverse or a seed below 2**32")
    return _SHUFFLED, seed


def _check_from_environment() -> Check | None:
    text = os.environ.get("VGG16GPU_SANITIZE", "").strip()
    for check in CHECKS:
        if text == check:
            return check
    if text:
        raise DeviceError(f"VGG16GPU_SANITIZE={shown(text)} is not one of {', '.join(CHECKS)}")
    return None


def _require_runtime(check: Check | None) -> None:
    """Raise DeviceError if the sanitizer's library was not the first in the process; loaded later it would end it."""
    symbol = _RUNTIME_SYMBOLS.get(check) if check else None
    if symbol and not hasattr(ctypes.CDLL(None), symbol):
        raise DeviceError(
            f"the {check} sanitizer must be in the process from its start: use python -m vgg16gpu.devices.sanitize"
        )
