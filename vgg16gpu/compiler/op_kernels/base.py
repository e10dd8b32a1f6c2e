"""What every op module in this folder offers the planner, and the few helpers that they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Conv, Limits, MultiOp, Op, Shape
from vgg16gpu.program.launch import Dim3, KernelLaunch, Scalar, StatusBlock, Upload, WeightItem
from vgg16gpu.program.types import Arena, DeviceFacts, DType, Pointer, TensorDesc, aligned

if TYPE_CHECKING:
    from vgg16gpu.compiler.quantization.scheme import QuantisedOp

BLOCK = 256  # threads of the simple kernels, as in their sources
_STAGING = Pointer(Arena.STAGING, 0)


class WeightPacker:
    """Collects the uploads that fill the weight arena, in order; hands out the place of each array."""

    def __init__(self) -> None:
        self.uploads: list[Upload] = []
        self.nbytes = 0
        self.staging_nbytes = 0
        self.finish: list[KernelLaunch] = []  # work of the build that needs calibrated scales
        self._shared: dict[Hashable, Pointer] = {}
        self._sizes: dict[int, int] = {}  # bytes of each piece, by its offset
        self._zeros: set[int] = set()  # offsets of pieces that `add_zeros` made

    @property
    def items(self) -> tuple[WeightItem, ...]:
        """The pieces of the arena. What is not uploaded, or as zeros, is for steps of the build to write."""
        uploaded = {upload.target.offset for upload in self.uploads if upload.target.arena is Arena.WEIGHTS}
        for step in (upload.pack for upload in self.uploads if upload.pack):
            uploaded |= {place.offset for place in step.arguments if isinstance(place, Pointer) and place != _STAGING}
        known = uploaded - self._zeros
        return tuple(WeightItem(offset, nbytes, offset not in known) for offset, nbytes in self._sizes.items())

    def once(self, key: Hashable, make: Callable[[], Pointer]) -> Pointer:
        """Return `make()`, called for the first use of this key alone; later uses share its pointer."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def reserve(self, nbytes: int) -> Pointer:
        """Reserve `nbytes` in the arena."""
        pointer = Pointer(Arena.WEIGHTS, self.nbytes)
        self.nbytes += aligned(nbytes)
        self._sizes[pointer.offset] = nbytes
        return pointer

    def add(self, array: npt.NDArray[np.generic]) -> Pointer:
        """Add an array that is stored unchanged."""
        pointer = self.reserve(array.nbytes)
        self.uploads.append(Upload(array, pointer))
        return pointer

    def add_zeros(self, words: int) -> Pointer:
        """Add 32-bit words of zero, which steps of the build write."""
        pointer = self.add(np.zeros(words, np.float32))
        self._zeros.add(pointer.offset)
        return pointer

    def add_channels(
        self, vector: npt.NDArray[np.float32] | None, channels: int, element: DType = DType.F32
    ) -> Pointer:
        """Add a float per channel (zeros for None), padded with zeros like the channels of an NHWC value."""
        return self.add_vector(vector, channels, element.padded(channels))

    def add_vector(self, vector: npt.NDArray[np.float32] | None, length: int, alignment: int) -> Pointer:
        """Add `length` floats (zeros for None), padded with zeros to a multiple of `alignment`."""
        stored = np.zeros(ceil_div(length, alignment) * alignment, np.float32)
        if vector is not None:
            stored[:length] = vector
        return self.add(stored)

    def add_packed(self, array: npt.NDArray[np.generic], pack: KernelLaunch) -> None:
        """Add an array that is copied to the start of the staging arena, from which the step `pack` reads it."""
        self.staging_nbytes = max(self.staging_nbytes, aligned(array.nbytes))
        self.uploads.append(Upload(array, _STAGING, pack))


Held = TypeVar("Held")  # what the weights of a kernel are held as: pointers; where a test makes numbers for it, arrays
NoWeights: TypeAlias = tuple[()]


class PlainWeights(NamedTuple):
    """What a float32 kernel reads beside its input."""

    weight: Pointer  # as it is packed for the kernel
    bias: Pointer  # a float for each stored output


FLOAT: Final = (DType.F32,)

OpT_co = TypeVar("OpT_co", bound=Op, covariant=True)
OpT = TypeVar("OpT", bound=Op)
MultiOpT = TypeVar("MultiOpT", bound=MultiOp)
ReadT = TypeVar("ReadT")  # what steps read: a TensorDesc, several, or a HostInput
HeldT = TypeVar("HeldT")  # the weights of a kernel


@dataclass(frozen=True)
class ActivationScale:
    """The scales of a value in float16 pairs: vectors of floats, one per stored channel, written by the build."""

    scale: Pointer  # powers of two
    observed: Pointer  # largest magnitude on the samples
    level: Pointer  # what the weights of its producer make of typical inputs
    channels: int  # stored
    uniform: bool  # one scale for all channels: a fully connected layer reads it


@dataclass(frozen=True)
class OpContext(Generic[OpT_co]):
    """An op where it stands: everything that an op kernel decides by."""

    op: OpT_co
    x_shape: Shape
    facts: DeviceFacts
    precision: str = "fp32"
    number: int = 1  # counts the ops of the graph; what a wait that ran out reports
    reads_input: bool = False  # x is the run-time input, which nobody else reads
    x_scaling: ActivationScale | None = None  # fp32 on tensor cores
    y_scaling: ActivationScale | None = None
    quantised: QuantisedOp | None = None  # int8
    parts: tuple[OpContext[Conv], ...] = ()  # of a FusedConvPair: its convolutions
    other_shapes: tuple[Shape, ...] = ()  # of a MultiOp's operands after x
    keeps_digits: bool = False  # fp16 whose features a loss compares: no image is rounded, and no feature that is read
    compared: bool = False  # a loss reads the result
    rescaled: bool = False  # on tensor cores each image of x gets a factor on the device, and y keeps it


class Rescaling(NamedTuple):
    """How a float16 value is brought to its range by a power of two for each image: see image_factor.cuh.

    bounds: of each value that it is the sum of, words with the largest magnitude stored of each image. exponent: what
    is stored is below 2^exponent. growth: what results are divided by, as a power of two.
    """

    bounds: tuple[Pointer, ...]
    exponent: int
    growth: int


@dataclass(frozen=True)
class OpMemory:
    """What the steps of an op use beside values and weights."""

    workspace: Pointer
    control: StatusBlock
    counters: Pointer
    maxima: Pointer  # where the largest magnitudes of a float16 y go, a word per image
    further: tuple[TensorDesc, ...] = ()  # the op's results after y
    bound: Pointer | None = None  # words for the largest magnitudes of the last result, if they are wanted
    rescaling: Rescaling | None = None  # of a y with a factor for each image


@dataclass(frozen=True)
class HostInput:
    """The run-time input as the host left it: float32 (N, C, H, W) or (N, F), or uint8 (N, H, W, C)."""

    pointer: Pointer
    element_type: str
    normalisation: tuple[Pointer, Pointer] | None = None  # uint8: scale and shift of each channel
    limits: Limits | None = None  # what values, those that bytes mean, too, are clipped to as they are taken in


@dataclass(frozen=True)
class BaseOpKernel(Generic[OpT, ReadT, HeldT]):
    """How the planner turns ops of one type into steps, which read x in the form that a subclass says.

    steps(layer, x, y, held, places): the launches that compute y from x and the weights that `weights` gave.
    weights(layer, arena): puts the constants of the op into the weight arena; must not depend on the batch.
    workspace_nbytes(layer): scratch memory that these steps use. counters(layer): words of it that are zero at first.
    family: "ffma", "mma" (tensor cores of any card) or "wgmma" (of Hopper).
    priority: of two of a family that support an op the one with the higher is taken; no two of an op type are equal.
    supports(layer): whether it can compute this op; must not depend on the batch.
    takes(layer): elements of x that the steps can read, the best first.
    gives(layer, wanted): the element of y; `wanted` is what its reader takes.
    rescales: the steps can store y with a factor for each image, from bounds of what they read. finds_bound: they can
    find the largest magnitudes of the last result on the way. reads_factors: they take factors of images out.
    output_alignment: y may be the plain output itself where its rows are a multiple of so many floats.
    keeps: the steps store the map before a pool, too, as they store y, where `Conv.kept` asks for it.
    any_layout: the steps read and write float32 values of any layout and rank; else they know the NHWC layout alone.
    """

    op_type: type[OpT]
    steps: Callable[[OpContext[OpT], ReadT, TensorDesc, HeldT, OpMemory], tuple[KernelLaunch, ...]]
    weights: Callable[[OpContext[OpT], WeightPacker], HeldT]
    workspace_nbytes: Callable[[OpContext[OpT]], int] = lambda *_: 0
    counters: Callable[[OpContext[OpT]], int] = lambda *_: 0
    family: str = "ffma"
    priority: int = 0
    supports: Callable[[OpContext[OpT]], bool] = lambda *_: True
    input_dtypes: Callable[[OpContext[OpT]], tuple[DType, ...]] = lambda *_: FLOAT
    output_dtype: Callable[[OpContext[OpT], tuple[DType, ...]], DType] = lambda *_: DType.F32
    output_alignment: int = 1
    keeps: bool = False
    any_layout: bool = False
    rescales: bool = False
    finds_bound: bool = False
    reads_factors: bool = False


class OpKernel(BaseOpKernel[OpT, TensorDesc, HeldT]):
    """The steps read one value."""


class MultiOpKernel(BaseOpKernel[MultiOpT, tuple[TensorDesc, ...], HeldT]):
    """The steps read all operands of a MultiOp, in order."""


class InputKernel(BaseOpKernel[OpT, HostInput, HeldT]):
    """The steps read the run-time input as the host left it; nobody else reads that."""


AnyOpKernel: TypeAlias = BaseOpKernel[Any, Any, Any]  # what an op, its steps and its weights are, each knows itself


def no_weights(layer: OpContext[Op], arena: WeightPacker) -> NoWeights:
    """Return (), for ops without weights."""
    del layer, arena
    return ()


FOR_CPUS: Final = ("cpu",)  # kinds of devices where kernels for CPUs are planned; they run on any


def for_cpus(layer: OpContext[Op]) -> bool:
    """Return whether a device computes with kernels for CPUs: the `supports` of these."""
    return layer.facts.kind in FOR_CPUS


def ceil_div(a: int, b: int) -> int:
    """Return the quotient, rounded up."""
    return -(-a // b)


def scalars(*values: int) -> tuple[Scalar, ...]:
    """Return integer kernel arguments."""
    return tuple(Scalar(value) for value in values)


def linear(threads: int) -> tuple[Dim3, Dim3]:
    """Return grid and block of a kernel with one thread per item."""
    return Dim3(ceil_div(threads, BLOCK)), Dim3(BLOCK)
