"""Launch kernels: packed arguments, TMA descriptors, launch attributes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from vgg16gpu.devices.base import KernelResources, Transfer
from vgg16gpu.devices.cuda.compiler import CubinUnit
from vgg16gpu.devices.cuda.graph import CudaGraph, Signature, conditional_node, is_capturing, start_early
from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import Argument, KernelLaunch, Scalar, StridedIndexer, TmaDescriptor
from vgg16gpu.program.types import Arena, DType, Pointer

_DATA_TYPES = {
    DType.F32: "FLOAT32",
    DType.F16: "FLOAT16",
    DType.F16_PAIR: "FLOAT16",  # the planes follow each other along the outermost dimension
    DType.BF16: "BFLOAT16",
    DType.U8: "UINT8",
    DType.S8: "UINT8",  # moved, not read: the sign does not matter
}
_SWIZZLES = {128: "128B", 64: "64B", 32: "32B"}


def encode(bindings: Any, name: str, tensor: TmaDescriptor, address: int) -> bytes:
    """The 128 bytes that a kernel takes by value. Raises KernelError, naming the step, for a map that cannot be."""
    data_types = bindings.CUtensorMapDataType
    swizzle = _SWIZZLES.get(tensor.swizzle_nbytes, "NONE")
    rank = len(tensor.dimensions)
    error, made = bindings.cuTensorMapEncodeTiled(
        getattr(data_types, f"CU_TENSOR_MAP_DATA_TYPE_{_DATA_TYPES[tensor.element]}"),
        rank,
        address,
        [bindings.cuuint64_t(size) for size in tensor.dimensions],
        [bindings.cuuint64_t(stride) for stride in tensor.strides],
        [bindings.cuuint32_t(size) for size in tensor.box],
        [bindings.cuuint32_t(1)] * rank,
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != bindings.CUresult.CUDA_SUCCESS:
        raise KernelError(f"{name}: no tensor map of {tensor.dimensions} in boxes of {tensor.box}: {error}")
    return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)


MAX_GRID = (2**31 - 1, 65535, 65535)  # the same on every card
MAX_BLOCK = (1024, 1024, 64)


@dataclass
class BuiltKernel:
    """What is known of a loaded kernel. Its handle stays with its module; the driver has one per kernel."""

    unit: CubinUnit
    resources: KernelResources
    max_threads: int  # per block, from its registers and launch bounds
    signature: Signature | None
    shared_limit: int = 0  # the dynamic shared memory that it has been told it may take


@dataclass(frozen=True)
class CudaLaunch:
    """A step, resolved: what one prepared call needs."""

    name: str
    function: Any  # pycuda.driver.Function, prepared
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int | float | bytes, ...]
    shared: int
    guard: int  # address of a word: where it is 0 the launch does nothing; 0: there is none
    programmatic: bool = False  # may start before the launch before it has ended, where a stream captures both


@dataclass(eq=False)
class LaunchSequence:
    """Launches in order, one by one or as one graph, with a copy in before and a copy out behind them if wanted."""

    driver: Any  # pycuda.driver
    bindings: Any | None  # cuda.bindings.driver
    stream: Any  # pycuda.driver.Stream
    launches: list[CudaLaunch]
    upload: Transfer | None = None
    download: Transfer | None = None
    graph: CudaGraph | None = None
    branch: Any = None  # a stream that captures what conditional nodes hold, where there are such
    decide: CudaLaunch | None = None  # of decide.cu, without arguments, likewise

    def make_graph(self) -> None:
        """From now on `launch` is one call: needs `bindings`. Raises KernelError, naming the step that is refused."""
        self.graph = CudaGraph(self.bindings, self.stream.handle, self._enqueue)

    def launch(self) -> None:
        """Enqueue all of it. Raises KernelError."""
        if self.stream is None:
            raise KernelError("these launches have been given back to the device; bind their steps again")
        if self.graph is not None:
            self.graph.launch()
        else:
            self._enqueue()

    def _enqueue(self) -> None:
        if self.upload:
            self.driver.memcpy_htod_async(self.upload.address, self.upload.host, self.stream)
        self._enqueue_launches()
        if self.download:
            self.driver.memcpy_dtoh_async(self.download.host, self.download.address, self.stream)

    def _enqueue_launches(self) -> None:
        for guard, launches in groupby(self.launches, lambda launch: launch.guard):
            if guard and self.decide is not None and is_capturing(self.bindings, self.stream.handle):
                decide = partial(self._decide, guard)
                with conditional_node(self.bindings, self.stream.handle, self.branch.handle, decide):
                    self._enqueue_on(self.branch, launches)
            else:
                self._enqueue_on(self.stream, launches)

    def _enqueue_on(self, stream: Any, launches: Iterable[CudaLaunch]) -> None:
        for launch in launches:
            if launch.programmatic and self.bindings is not None:
                start_early(self.bindings, stream.handle)
            try:
                launch.function.prepared_async_call(
                    launch.grid, launch.block, stream, *launch.arguments, shared_size=launch.shared
                )
            except self.driver.Error as error:
                raise KernelError(f"{launch.name}: the launch failed: {error}") from error

    def _decide(self, guard: int, condition: int) -> None:
        """Enqueue what sets a condition, by its handle, where the word at an address is not 0."""
        assert self.decide is not None
        self._enqueue_on(self.stream, [replace(self.decide, arguments=(condition, guard))])

    def clear(self) -> None:
        """Let go of everything that belongs to the context."""
        if self.graph is not None:
            self.graph.destroy()
        self.launches.clear()
        self.stream = self.branch = self.decide = self.upload = self.download = None


def step_name(step: KernelLaunch) -> str:
    """How messages call a step."""
    return f"{step.label} ({step.kernel.label})" if step.label else step.kernel.label


def resolve(
    step: KernelLaunch, function: Any, built: BuiltKernel, bases: Mapping[Arena, int], bindings: Any | None = None
) -> CudaLaunch:
    """The prepared launch of a step. Raises KernelError for arguments or a block that the kernel cannot take."""
    name = step_name(step)
    grid, block = _plain(step.grid), _plain(step.block)
    _check_shape(name, grid, block, built.max_threads)
    values = [_value(name, argument, bases, bindings) for argument in step.arguments]
    arguments: tuple[int | float | bytes, ...]
    if built.signature is None:
        function.prepare([_format(name, argument) for argument in step.arguments])
        arguments = tuple(values)
    else:
        packed = [_packed(argument, value) for argument, value in zip(step.arguments, values, strict=True)]
        buffer = pack(name, packed, built.signature)
        function.prepare([f"{len(buffer)}s"] if buffer else [])
        arguments = (buffer,) if buffer else ()
    guard = _address(name, step.guard, bases) if step.guard else 0
    return CudaLaunch(name, function, grid, block, arguments, int(step.shared), guard, step.programmatic)


def pack(name: str, arguments: Sequence[bytes], signature: Signature) -> bytes:
    """The argument buffer of a kernel: each argument at its place. Raises KernelError if they are not the kernel's."""
    if [len(argument) for argument in arguments] != [nbytes for _, nbytes in signature]:
        raise KernelError(
            f"{name}: the step has {len(arguments)} arguments ({_sizes(map(len, arguments))} bytes), "
            f"the kernel takes {len(signature)} ({_sizes(nbytes for _, nbytes in signature)} bytes)"
        )
    buffer = bytearray(max((offset + nbytes for offset, nbytes in signature), default=0))
    for argument, (offset, nbytes) in zip(arguments, signature, strict=True):
        buffer[offset : offset + nbytes] = argument
    return bytes(buffer)


def _packed(argument: Argument, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return struct.pack("<Q" if isinstance(argument, Pointer) else "<" + _kind(argument), value)


def _kind(argument: Argument) -> str:
    return argument.kind if isinstance(argument, Scalar) else "P"


def _format(name: str, argument: Argument) -> str:
    if isinstance(argument, TmaDescriptor):
        raise KernelError(f"{name}: tensor maps need cuda-bindings and a driver of CUDA 12.4; install or update them")
    if isinstance(argument, StridedIndexer):
        return f"{4 * len(argument.words)}s"
    return _kind(argument)


def _check_shape(name: str, grid: tuple[int, ...], block: tuple[int, ...], max_threads: int) -> None:
    """Refuse here, by name, what the driver would refuse without one, perhaps only when a whole graph is made."""
    for what, dimensions, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(dimensions, limits, strict=True)):
            raise KernelError(f"{name}: a {what} of {dimensions}; each from 1 to {limits}")
    threads = block[0] * block[1] * block[2]
    if threads > max_threads:
        raise KernelError(f"{name}: a block of {threads} threads; this kernel runs with {max_threads} at most")


def _sizes(sizes: Iterable[int]) -> str:
    return " ".join(map(str, sizes)) or "0"


def _plain(dimensions: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, z = dimensions  # PyCUDA takes no numpy integers
    return int(x), int(y), int(z)


def _value(name: str, argument: Argument, bases: Mapping[Arena, int], bindings: Any | None) -> int | float | bytes:
    if isinstance(argument, TmaDescriptor):
        return encode(bindings, name, argument, _address(name, argument.pointer, bases)) if bindings else b""
    if isinstance(argument, StridedIndexer):
        return struct.pack(f"<{len(argument.words)}i", *argument.words)
    if isinstance(argument, Pointer):
        return _address(name, argument, bases)
    if argument.kind == "f":
        return float(argument.value)
    if not -(2**31) <= argument.value < 2**31 or argument.value != int(argument.value):
        raise KernelError(f"{name}: the argument {argument.value} is not an int of 32 bits")
    return int(argument.value)


def _address(name: str, pointer: Pointer, bases: Mapping[Arena, int]) -> int:
    if pointer.arena not in bases:
        raise KernelError(f"{name}: it uses the arena '{pointer.arena.value}', which has no address")
    return int(bases[pointer.arena] + pointer.offset)
