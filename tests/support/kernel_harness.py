"""Kernels under test: a graph goes the production way onto a device on which every byte that is nobody's is watched.

`make_plan` -> `build` -> `Executor` (allocate, upload, pack, bind, run). What differs from production: buffers lie
GUARD bytes further apart, and all memory holds NaN before it is written. So a value that no thread stored is NaN, a
read beside a buffer gives NaN, and a store beside a buffer is found afterwards, whatever side it went over.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import numpy.typing as npt

from tests.support.closeness import assert_close, rms
from tests.support.reference import apply
from vgg16gpu.checks.accuracy import FLOAT32_EPSILON, tolerance
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, BatchNorm, Conv, Gemm, Identity, Op, Pool, Shape, Softmax
from vgg16gpu.compiler.op_kernels import base
from vgg16gpu.compiler.op_kernels.conv import conv_igemm
from vgg16gpu.compiler.op_kernels.conv.conv_igemm import LARGE_TILE, SMALL_TILE, WIDE_TILE, ConvTile
from vgg16gpu.compiler.op_kernels.gemm import gemm_splitk
from vgg16gpu.compiler.planner import memory, schedule
from vgg16gpu.compiler.planner.memory import LiveRange
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan
from vgg16gpu.program.types import Arena, DType, Layout, Pointer
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.outputs import decoded

GUARD = 4096  # bytes on both sides of every buffer
POISON = 0xFF  # four of them are a NaN
ROUNDING = 2 * FLOAT32_EPSILON  # relative: the last addition and the store
SMALLEST = 2.0**-149  # the spacing of denormal numbers
LOWEST_EXPONENT = 104.0  # exp of minus that is 0
FFMA = PlanOptions(kernels="ffma")  # float32 arithmetic, on every device

Extents: TypeAlias = dict[Arena, list[tuple[int, int]]]  # (offset, bytes) of the buffers of an arena

CONV_TILES: Mapping[str, ConvTile] = MappingProxyType({"large": LARGE_TILE, "wide": WIDE_TILE, "small": SMALL_TILE})
GEMM_TILES = tuple(dict.fromkeys(gemm_splitk.choose_tile(batch) for batch in (1, 2, 3, 5, 9)))


def seeded(name: str) -> np.random.Generator:
    """The random numbers of the case of that name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def normal(random: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """float32 numbers with a mean of 0."""
    return (scale * random.standard_normal(shape)).astype(np.float32)


def one_op(op: Op, input_shape: Sequence[int], *, inner: bool = False) -> Graph:
    """A graph of `op` alone, or with a copy behind it (`inner`): then its result stays in the device layout."""
    ops: tuple[Op, ...] = (op, Identity("y", "z", ("z",))) if inner else (op,)
    return Graph(GraphInput("x", (None, *input_shape[1:])), ops, (ops[-1].y,))


@dataclass(frozen=True, eq=False)
class Result:
    """What a run left on the device."""

    plan: CompiledModel
    outputs: tuple[Array, ...]
    nonfinite: npt.NDArray[np.bool_]  # the images that the status words accuse
    arenas: Mapping[Arena, npt.NDArray[np.uint8]]

    @property
    def program(self) -> LaunchPlan:
        """What ran."""
        return self.plan.programs[0]

    @property
    def status(self) -> npt.NDArray[np.int32]:
        """The status word of each image."""
        return self.at(self.program.control.status, (self.program.batch,), np.int32)

    def at(self, pointer: Pointer, shape: Sequence[int], dtype: type[np.generic] = np.float32) -> npt.NDArray[Any]:
        """An array as it lies on the device."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.arenas[pointer.arena][pointer.offset : pointer.offset + nbytes].view(dtype).reshape(shape)

    def value(self, name: str) -> Array:
        """A value in its ONNX shape, as float32, once the padding of its channels has been found to be zero."""
        value = next(value for value in self.program.values if value.name == name)
        stored = decoded(value, self.at(value.pointer, (value.nbytes,), np.uint8))
        if value.layout is Layout.PLAIN:
            return stored
        if value.scale is not None:
            stored = stored / self.at(value.scale, (value.pitch,))
        channels = value.shape[1]
        assert not np.any(stored[..., channels:]), f"{name}: channels {channels} and up are not zero"
        return np.moveaxis(stored, -1, 1)[:, :channels]


def run_graph(
    device: Device, graph: Graph, x: npt.NDArray[Any], options: PlanOptions = FFMA, *, keep_values: bool = True
) -> Result:
    """Run `graph` once on the images `x`; raises AssertionError where a byte beside a buffer has changed.

    Without `keep_values` the result has those values alone that nothing was stored over later.
    """
    batch = len(x)
    shape = x.shape if x.dtype == np.float32 else (batch, x.shape[3], *x.shape[1:3])
    plan_, extents = spaced_plan(graph, device, shape, replace(options, keep_values=keep_values))
    device.build(plan_.kernels)
    guarded = GuardedDevice(device, extents)
    resident = Executor(plan_, guarded)
    try:
        outputs, nonfinite, _ = resident.run(batch, x)
        return Result(plan_, outputs, nonfinite, {arena: guarded.check(arena) for arena in guarded.arenas})
    finally:
        resident.close()


def run_op(device: Device, op: Op, x: Array, *, inner: bool = False, of: str | None = None) -> Array:
    """op.y for `x`, stored as an output, or as a value inside a network. of: see `kernels_of`; None: as is planned."""
    with kernels_of(of) if of else nullcontext():
        result = run_graph(device, one_op(op, x.shape, inner=inner), x)
    y = result.value("y")
    np.testing.assert_array_equal(result.outputs[0], y)  # the way out changes nothing
    return y


def check_op(device: Device, op: Op, x: Array, *, inner: bool = False, of: str | None = None) -> Array:
    """The same, against float64 numpy."""
    y = run_op(device, op, x, inner=inner, of=of)
    assert_close(y, apply(op, x.astype(np.float64)), *bounds(op, x), label=type(op).__name__)
    return y


def largest(array: Array) -> float:
    """The largest magnitude: a scale that also holds where an array is large in one place."""
    return float(np.abs(array).max())


def bounds(op: Op, x: Array, scale: Callable[[Array], float] = rms) -> tuple[float, float]:
    """(atol, rtol) of one op on finite values. Where nothing is added up, nothing is lost: (0, 0)."""
    match op:
        case Conv() | Gemm():
            bias = 0.0 if op.bias is None else FLOAT32_EPSILON * scale(op.bias)
            return tolerance(op.weight[0].size, scale(x), scale(op.weight)) + bias, ROUNDING
        case Pool(kind="average"):
            length = op.window.kernel[0] * op.window.kernel[1]
            return tolerance(length, scale(x)) / length, ROUNDING
        case BatchNorm():
            factor = np.abs(op.scale) / np.sqrt(op.variance + op.epsilon)
            return tolerance(1, max(scale(x), scale(op.mean)), float(factor.max())), ROUNDING
        case Softmax():  # exp has the relative error of its argument (x - max is rounded) as it is
            spread = min(float(np.ptp(x[np.isfinite(x)])), LOWEST_EXPONENT)
            return SMALLEST, tolerance(1) + FLOAT32_EPSILON * spread
        case _:
            return 0.0, 0.0


def assert_same_bits(actual: Array, expected: Array, label: str = "") -> None:
    """Equal bit by bit: signs of zeros and all."""
    a, b = (np.ascontiguousarray(array).view(np.uint32) for array in (actual, expected))
    assert a.shape == b.shape, f"{label}: shape {a.shape}, expected {b.shape}"
    different = np.argwhere(a != b)
    where = tuple(int(i) for i in different[0]) if len(different) else ()
    assert not len(different), (
        f"{label}: {len(different)} of {a.size} values differ, first at {where}: "
        f"{actual[where]!r}, expected {expected[where]!r}"
    )


# ---- Plans with room between the buffers


def spaced_plan(graph: Graph, device: Device, shape: Shape, options: PlanOptions) -> tuple[CompiledModel, Extents]:
    """The plan for runs on `shape` in which no buffer touches another; where each lies."""
    extents: Extents = {Arena.WEIGHTS: [], Arena.ACTIVATIONS: [], Arena.STAGING: []}
    with _spaced_activations(extents), _spaced_weights(extents):
        made = make_plan(graph, device.facts, [shape], options)
    extents[Arena.STAGING] = [(0, made.weights.staging_nbytes)]
    return made, extents


@contextmanager
def _spaced_activations(extents: Extents) -> Iterator[None]:
    assign = schedule._Schedule._assign

    def spaced(made: schedule._Schedule, block_nbytes: int) -> tuple[dict[Any, Pointer], int]:
        lives: list[LiveRange] = []

        def offsets(given: Sequence[LiveRange]) -> tuple[tuple[int, ...], int]:
            lives.extend(given)
            return memory.assign_offsets([life._replace(nbytes=life.nbytes + GUARD) for life in given])

        with mock.patch.object(schedule, "assign_offsets", offsets):
            places, size = assign(made, block_nbytes)
        buffers = zip(places.values(), lives, strict=True)
        extents[Arena.ACTIVATIONS] += [(pointer.offset, life.nbytes) for pointer, life in buffers]
        return places, size

    with mock.patch.object(schedule._Schedule, "_assign", spaced):
        yield


@contextmanager
def _spaced_weights(extents: Extents) -> Iterator[None]:
    reserve = base.WeightPacker.reserve

    def spaced(arena: base.WeightPacker, nbytes: int) -> Pointer:
        pointer = reserve(arena, nbytes)
        arena.nbytes += GUARD
        extents[Arena.WEIGHTS].append((pointer.offset, nbytes))
        return pointer

    with mock.patch.object(base.WeightPacker, "reserve", spaced):
        yield


# ---- Devices that watch


class GuardedDevice:
    """Passes everything on to a device; allocations hold POISON at first and have GUARD bytes more on both sides.

    Under the address sanitizer a kernel must not even read what lies between the buffers.
    """

    def __init__(self, device: Device, extents: Extents) -> None:
        self._device = device
        self._extents = extents
        self._nbytes: dict[int, int] = {}  # by address
        self.arenas: list[Arena] = []  # those that live after the build, in the order in which they are allocated
        self._order = iter((Arena.WEIGHTS, Arena.ACTIVATIONS, Arena.STAGING))
        self._arena_of: dict[int, Arena] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, nbytes: int) -> int:
        """Address of guarded memory."""
        start = self._device.allocate(nbytes + 2 * GUARD)
        self._device.copy_in(start, np.full(nbytes + 2 * GUARD, POISON, np.uint8))
        address = start + GUARD
        self._nbytes[address], self._arena_of[address] = nbytes, next(self._order)
        self.arenas.append(self._arena_of[address])
        return address

    def free(self, address: int) -> None:
        """Give it back; the packing kernels must have left the staging arena as it was."""
        arena = self._arena_of[address]
        self.arenas.remove(arena)
        try:
            if arena is Arena.STAGING:
                self.check(arena)
        finally:
            self._device.free(address - GUARD)

    def check(self, arena: Arena) -> npt.NDArray[np.uint8]:
        """The bytes of an arena. Raises AssertionError when one that is in no buffer has been written."""
        address = next(address for address, other in self._arena_of.items() if other is arena)
        memory = np.empty(self._nbytes[address] + 2 * GUARD, np.uint8)
        self._device.copy_out(memory, address - GUARD)
        self._device.synchronize()
        free = np.ones(memory.size, np.bool_)
        for offset, nbytes in self._extents[arena]:
            free[GUARD + offset : GUARD + offset + nbytes] = False
        written = np.flatnonzero(free & (memory != POISON))
        assert not written.size, (
            f"{written.size} bytes outside the buffers of {arena.name} were written, "
            f"the first at offset {written[0] - GUARD}; buffers (offset, bytes): {self._extents[arena]}"
        )
        return memory[GUARD:-GUARD]

    def bind(self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], **how: bool) -> Callable[[], None]:
        """As the device does; while the steps run, the sanitizer knows what they may touch."""
        run = self._device.bind(steps, bases, **how)
        poison = _address_sanitizer()
        if poison is None:
            return run
        gaps = [gap for arena, address in bases.items() for gap in self._gaps(arena, address)]

        def fenced() -> None:
            for address, nbytes in gaps:
                poison(True, address, nbytes)
            try:
                run()
            finally:
                for address, nbytes in gaps:
                    poison(False, address, nbytes)

        return fenced

    def _gaps(self, arena: Arena, address: int) -> Iterator[tuple[int, int]]:
        end = -GUARD
        for offset, nbytes in [*sorted(self._extents[arena]), (self._nbytes[address] + GUARD, 0)]:
            if offset > end:
                yield address + end, offset - end
            end = max(end, offset + nbytes)


def _address_sanitizer() -> Callable[[bool, int, int], None] | None:
    """Its function that (un)poisons memory, if it is in the process."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "__asan_poison_memory_region"):
        return None

    def poison(forbidden: bool, address: int, nbytes: int) -> None:
        name = "__asan_poison_memory_region" if forbidden else "__asan_unpoison_memory_region"
        process[name](ctypes.c_void_p(address), ctypes.c_size_t(nbytes))

    return poison


# ---- Steps on their own


class Bench:
    """Device memory for a few steps: arrays are put down with poison between them, steps run, arrays are read back."""

    def __init__(self, device: Device, arena: Arena = Arena.WEIGHTS) -> None:
        self._device, self._arena = device, arena
        self._memory = np.full(GUARD, POISON, np.uint8)
        self._buffers: list[tuple[int, int]] = []  # (offset, bytes)

    def put(self, array: npt.NDArray[Any]) -> Pointer:
        """A place that holds this array at first."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        offset = self._memory.size
        room = np.full(memory.aligned(raw.size) + GUARD, POISON, np.uint8)
        room[: raw.size] = raw
        self._memory = np.concatenate([self._memory, room])
        self._buffers.append((offset, raw.size))
        return Pointer(self._arena, offset)

    def room(self, nbytes: int) -> Pointer:
        """A place that holds poison at first."""
        return self.put(np.full(nbytes, POISON, np.uint8))

    def run(self, *steps: KernelLaunch) -> None:
        """Run them in order. Raises AssertionError where a byte beside the arrays has changed."""
        self._device.build([step.kernel for step in steps])
        address = self._device.allocate(self._memory.size)
        try:
            self._device.copy_in(address, self._memory)
            self._device.bind(steps, {self._arena: address})()
            self._device.copy_out(self._memory, address)
            self._device.synchronize()
        finally:
            self._device.free(address)
        free = np.ones(self._memory.size, np.bool_)
        for offset, nbytes in self._buffers:
            free[offset : offset + nbytes] = False
        written = np.flatnonzero(free & (self._memory != POISON))
        assert not written.size, f"{written.size} bytes beside the arrays were written, the first at {written[0]}"

    def get(self, pointer: Pointer, shape: Sequence[int], dtype: Any = np.float32) -> npt.NDArray[Any]:
        """An array as it lies there now."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._memory[pointer.offset : pointer.offset + nbytes].copy().view(dtype).reshape(shape)


# ---- Choices that the planner leaves to the device


@contextmanager
def kernels_of(kind: str) -> Iterator[None]:
    """Convolutions and fully connected layers in float32 run on the kernels for devices of this kind, on any."""
    kinds = ("cpu", "cuda") if kind == "cpu" else ()
    with mock.patch.object(base, "FOR_CPUS", kinds):
        yield


@contextmanager
def conv_as(tile: ConvTile, splits: int = 1) -> Iterator[None]:
    """Convolutions run with this tile, their reductions shared by this many blocks (or one per group, if fewer)."""

    def choose_cut(_rows: int, _columns: int, groups: int, *_: object) -> tuple[ConvTile, int]:
        return tile, min(splits, groups)

    with kernels_of("cuda"), mock.patch.object(conv_igemm, "choose_cut", choose_cut):
        yield


@contextmanager
def gemm_as(tile: tuple[int, int, int]) -> Iterator[None]:
    """Fully connected layers run with this (TILE_OUT, TILE_N, UNROLL_K)."""
    with kernels_of("cuda"), mock.patch.object(gemm_splitk, "choose_tile", return_value=tile):
        yield


def stored(array: npt.NDArray[Any], element: DType = DType.F32) -> npt.NDArray[Any]:
    """(N, C, ...) in the order of the device: channels last, rounded up with zeros."""
    last = np.moveaxis(array, 1, -1)
    channels = last.shape[-1]
    return np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, element.padded(channels) - channels)])
