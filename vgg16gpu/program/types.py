"""Where values lie, what they are made of, and the facts of a device that a plan may know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

ALIGNMENT = 256  # bytes; every buffer starts on such a boundary


def aligned(nbytes: int) -> int:
    """Round `nbytes` up to the alignment of buffers."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena(Enum):
    """The device allocations of an engine."""

    WEIGHTS = "weights"  # written once, shared by all batch sizes
    ACTIVATIONS = "activations"  # input, control words, intermediate values, workspace, outputs
    STAGING = "staging"  # raw weights on their way through a packing kernel; freed after the build
    GIVEN = "given"  # none of the engine's: arrays of whoever calls, each at an address that a run gets to know


@dataclass(frozen=True)
class Pointer:
    """A place in an arena, in bytes."""

    arena: Arena
    offset: int


class DType(Enum):
    """What a stored value is made of: (number in the kernels, bytes, planes, channels that it is padded to)."""

    F32 = 0, 4, 1, 4
    F16 = 1, 2, 1, 64
    BF16 = 2, 2, 1, 64
    F16_PAIR = 3, 2, 2, 64  # two float16 planes, all of `hi` before all of `lo`: value * scale[channel] = hi + lo
    U8 = 4, 1, 1, 64  # value = number * step
    S8 = 5, 1, 1, 64

    def __init__(self, number: int, nbytes: int, planes: int, channel_alignment: int) -> None:
        self.number = number  # the macro ELEMENT
        self.nbytes = nbytes  # of one element of one plane
        self.planes = planes
        self.channel_alignment = channel_alignment

    def padded(self, channels: int) -> int:
        """Return channels, or features, as stored. Few channels, an image's say, are padded to 16 bytes alone."""
        if channels * self.nbytes <= 16:
            return 16 // self.nbytes
        return -(-channels // self.channel_alignment) * self.channel_alignment


class Layout(Enum):
    """How a value lies in device memory."""

    PLAIN = "plain"  # the ONNX shape, row-major
    NHWC = "NHWC"  # (N, H, W, C) or (N, F), the last dimension padded as the element says, the excess zero


def padded_channels(channels: int) -> int:
    """Return the channels of a float32 NHWC value as stored."""
    return DType.F32.padded(channels)


@dataclass(frozen=True)
class TensorDesc:
    """A value on the device. `shape` is the ONNX shape, whatever the layout."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    pointer: Pointer
    element: DType = DType.F32
    scale: Pointer | None = None  # F16_PAIR: a float per stored channel, a power of two
    step: float = 1.0  # U8, S8
    factor: Pointer | None = (
        None  # in place of `scale`: a float for each image, a power of two, that it is stored times
    )

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of a plane in memory: the ONNX shape, or (N, H, W, padded C), or (N, padded F)."""
        if self.layout is Layout.PLAIN:
            return self.shape
        batch, channels, *spatial = self.shape
        return batch, *spatial, self.element.padded(channels)

    @property
    def pitch(self) -> int:
        """Elements from one row of channels or features to the next."""
        return self.stored_shape[-1]

    @property
    def plane_nbytes(self) -> int:
        """Bytes of a plane."""
        return self.element.nbytes * math.prod(self.stored_shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the device."""
        return self.element.planes * self.plane_nbytes


@dataclass(frozen=True)
class TensorFormat:
    """How somebody wants an output: of which element (F32, F16 or BF16), and in what order.

    pitch: None for the ONNX order, row-major; else channels lie last, and from one pixel (of a matrix: one row) to the
    next there are so many elements.
    """

    element: DType = DType.F32
    pitch: int | None = None

    @classmethod
    def of(cls, value: TensorDesc) -> TensorFormat:
        """Return the format of a stored value; for elements that no caller knows float32, without padding."""
        if value.element not in OUTPUT_ELEMENTS:
            return cls(pitch=value.shape[1])
        return cls(value.element, None if value.layout is Layout.PLAIN else value.pitch)

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides of each dimension of the ONNX shape, in elements."""
        if self.pitch is None:
            return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        spatial = shape[2:]
        inner = [self.pitch * math.prod(spatial[dim + 1 :]) for dim in range(len(spatial))]
        return (self.pitch * math.prod(spatial), 1, *inner)

    def extent(self, shape: tuple[int, ...]) -> int:
        """Return the elements that an array of this shape takes, padding included."""
        if self.pitch is None:
            return math.prod(shape)
        return shape[0] * math.prod(shape[2:]) * self.pitch

    def has_padding(self, shape: tuple[int, ...]) -> bool:
        """Return whether there is anything between the elements of an array of this shape."""
        return self.extent(shape) != math.prod(shape)

    def is_that_of(self, value: TensorDesc) -> bool:
        """Return whether the value takes the same memory in this very form, padding included."""
        stored = TensorFormat.of(value)
        if value.element is not self.element or stored.extent(value.shape) != self.extent(value.shape):
            return False
        pairs = zip(value.shape, stored.strides(value.shape), self.strides(value.shape), strict=True)
        return all(dim <= 1 or kept == wanted for dim, kept, wanted in pairs)


OUTPUT_ELEMENTS = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16"}  # as libraries call them


TileEntry: TypeAlias = Mapping[str, int | str]  # the tile of a problem, as a table holds it
Tiles: TypeAlias = Mapping[str, TileEntry]  # by the name of the problem


@dataclass(frozen=True)
class DeviceFacts:
    """The properties of a device that a plan may depend on."""

    kind: str  # "cuda" or "cpu"
    name: str
    multiprocessors: int  # CPU: cores
    compute_capability: tuple[int, int]  # CPU: (0, 0)
    shared_nbytes: int  # largest shared memory of a block
    memory_total: int  # bytes
    memory_free: int  # bytes
    tensor_maps: bool = False  # whether the bulk copy engine of compute capability 9.0 can be used
    shares_sums: bool = True  # whether blocks may share a sum (split-K): the ladder takes it away to show what it gains
    float32_kernels: str | None = None  # "mma" (pairs of float16) or "ffma": measured to be faster; None: not measured
    tuned: Tiles = field(default_factory=dict, compare=False, repr=False)  # the tiles that were measured to be fastest


class HasFacts(Protocol):
    """A device of this process or of another one, as far as what is told of it depends on its properties."""

    @property
    def facts(self) -> DeviceFacts:
        """These."""
