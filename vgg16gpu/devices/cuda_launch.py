"""Steps, resolved for PyCUDA: addresses filled in, arguments checked against the kernel's own signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgg16gpu.devices.base import KernelResources
from vgg16gpu.devices.cuda_compiler import Unit
from vgg16gpu.devices.cuda_graph import Graph, Signature
from vgg16gpu.errors import KernelError
from vgg16gpu.program import Arena, Pointer, Scalar, Step

MAX_GRID = (2**31 - 1, 65535, 65535)  # the same on every card
MAX_BLOCK = (1024, 1024, 64)

_PARAMETER_NBYTES = {"P": 8, "i": 4, "f": 4}


@dataclass
class BuiltKernel:
    """What is known of a loaded kernel. Its handle stays with its module; the driver has one per kernel."""

    unit: Unit
    resources: KernelResources
    max_threads: int  # per block, from its registers and launch bounds
    signature: Signature | None
    shared_limit: int = 0  # the dynamic shared memory that it has been told it may take


@dataclass(frozen=True)
class Launch:
    """A step, resolved: what one prepared call needs."""

    name: str
    function: Any  # pycuda.driver.Function, prepared
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int | float, ...]
    shared: int


@dataclass
class LaunchSequence:
    """Launches in order, one by one or as one graph."""

    driver: Any  # pycuda.driver
    stream: Any  # pycuda.driver.Stream
    launches: list[Launch]
    graph: Graph | None = None

    def launch(self) -> None:
        """Enqueue all of them. Raises KernelError."""
        if self.graph is not None:
            self.graph.launch()
        else:
            self.enqueue()

    def enqueue(self) -> None:
        """Enqueue them one by one. Raises KernelError, naming the step."""
        for launch in self.launches:
            try:
                launch.function.prepared_async_call(
                    launch.grid, launch.block, self.stream, *launch.arguments, shared_size=launch.shared
                )
            except self.driver.Error as error:
                raise KernelError(f"{launch.name}: the launch failed: {error}") from error

    def clear(self) -> None:
        """Let go of everything that belongs to the context."""
        if self.graph is not None:
            self.graph.destroy()
        self.launches.clear()
        self.stream = None


def step_name(step: Step) -> str:
    """How messages call a step."""
    return f"{step.label} ({step.kernel.label})" if step.label else step.kernel.label


def resolve(step: Step, function: Any, built: BuiltKernel, bases: Mapping[Arena, int]) -> Launch:
    """The prepared launch of a step. Raises KernelError for arguments or a block that the kernel cannot take."""
    name = step_name(step)
    formats = ["P" if isinstance(argument, Pointer) else argument.kind for argument in step.arguments]
    check_signature(name, formats, built.signature)
    grid, block = _plain(step.grid), _plain(step.block)
    _check_shape(name, grid, block, built.max_threads)
    values = tuple(_value(name, argument, bases) for argument in step.arguments)
    function.prepare(formats)
    return Launch(name, function, grid, block, values, int(step.shared))


def check_signature(name: str, formats: Sequence[str], signature: Signature | None) -> None:
    """Compare a format ("P", "i", "f") with what a kernel takes, as far as known: a prepared call trusts its format.

    Raises KernelError if they differ in number, size or place.
    """
    if signature is None:
        return
    places: list[tuple[int, int]] = []
    end = 0
    for kind in formats:
        nbytes = _PARAMETER_NBYTES[kind]
        offset = -(-end // nbytes) * nbytes  # each aligned to its own size, as C does and PyCUDA packs
        places.append((offset, nbytes))
        end = offset + nbytes
    if tuple(places) != signature:
        raise KernelError(
            f"{name}: the step has {len(places)} arguments ({_sizes(places)} bytes), "
            f"the kernel takes {len(signature)} ({_sizes(signature)} bytes)"
        )


def _check_shape(name: str, grid: tuple[int, ...], block: tuple[int, ...], max_threads: int) -> None:
    """Refuse here, by name, what the driver would refuse without one, perhaps only when a whole graph is made."""
    for what, dimensions, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(dimensions, limits, strict=True)):
            raise KernelError(f"{name}: a {what} of {dimensions}; each from 1 to {limits}")
    threads = block[0] * block[1] * block[2]
    if threads > max_threads:
        raise KernelError(f"{name}: a block of {threads} threads; this kernel runs with {max_threads} at most")


def _sizes(places: Iterable[tuple[int, int]]) -> str:
    return " ".join(str(nbytes) for _, nbytes in places) or "0"


def _plain(dimensions: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, z = dimensions  # PyCUDA takes no numpy integers
    return int(x), int(y), int(z)


def _value(name: str, argument: Pointer | Scalar, bases: Mapping[Arena, int]) -> int | float:
    if isinstance(argument, Pointer):
        if argument.arena not in bases:
            raise KernelError(f"{name}: it uses the arena '{argument.arena.value}', which has no address")
        return int(bases[argument.arena] + argument.offset)
    if argument.kind == "f":
        return float(argument.value)
    if not -(2**31) <= argument.value < 2**31 or argument.value != int(argument.value):
        raise KernelError(f"{name}: the argument {argument.value} is not an int of 32 bits")
    return int(argument.value)
