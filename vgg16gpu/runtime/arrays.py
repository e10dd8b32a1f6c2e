"""Arrays that an engine takes: what they are, which form they have, and what is wrong with them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable, shown
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.runtime.on_device import is_on_device
from vgg16gpu.runtime.outputs import image_shape


def tensor_fault(x: Any) -> str:
    """Return what is wrong with where a tensor has its numbers, and what to do; "" for plain memory of a CPU or GPU.

    It is the end of a message that begins with the tensor's name. x: a torch.Tensor.
    """
    if x.is_nested:
        return "is a nested tensor; give images of one size in one dense tensor: torch.stack(x.unbind())"
    if str(x.layout) != "torch.strided":
        return f"is a tensor of layout {x.layout}; give a dense one: x.to_dense()"
    if x.is_quantized:
        return f"is {x.dtype}; give floats: x.dequantize()"
    if x.is_meta:
        return "lies on meta, without numbers; make it on cpu or cuda"
    if not (x.is_cpu or x.is_cuda):
        return f"lies on {x.device}, and kernels run on cpu and cuda; bring it there: x.cpu()"
    kind = type(x)
    if getattr(kind.__torch_dispatch__, "__func__", None) is not None:  # a class method in place of torch's own
        return (
            f"is a {kind.__module__}.{kind.__qualname__}, whose numbers do not lie in plain memory; give a "
            "torch.Tensor that has them"
        )
    return ""


# What libraries raise where one of their arrays cannot become numpy's.
_PROBLEMS: Final = (AttributeError, BufferError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)


def as_array(x: Any, what: str = "the input", wanted: str = "float32, or uint8 pixels") -> npt.NDArray[Any]:
    """Return `x` as an array of numbers in this machine's byte order.

    A tensor of torch may require a gradient, which numpy does not see, and be bfloat16, which becomes float32.
    what: the subject of messages. wanted: element types that they advise. Raises InputError for what is no array of
    numbers, lies on a device, or hides some of its values.
    """
    masked = sys.modules.get("numpy.ma")  # importing it takes time, and who has a masked array has done so
    if masked and isinstance(x, masked.MaskedArray):
        raise InputError(f"{what} is a masked array; say what stands in the masked places: x.filled(value)")
    if isinstance(x, str | bytes | os.PathLike):
        raise InputError(
            f"{what} is {shown(x)}, and an engine takes arrays; vgg16gpu.classify(files, model) reads pictures, and "
            "numpy.load arrays"
        )
    try:
        array = np.asarray(_plain(x))
    except _PROBLEMS as error:
        if is_tensor(x):
            from vgg16gpu.runtime.arrays import tensor_fault  # noqa: PLC0415 - a start without a fault needs none

            if fault := tensor_fault(x):
                raise InputError(f"{what} {fault}") from error
        reason = printable(" ".join(str(error).split())).rstrip(".")
        raise InputError(
            f"{what}, {shown(x)}, is not an array: {reason}; give a dense array of {wanted} in the host's memory"
        ) from error
    if array.dtype.kind not in "biufc":
        raise InputError(f"{what} is {_kind_words(x, array)}; give an array of {wanted}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _plain(x: Any) -> Any:
    """Return a tensor of torch as one that numpy takes, as far as that keeps its numbers; all else as it is."""
    if not is_tensor(x):
        return x
    x = x.detach().resolve_neg()
    return x.float() if str(x.dtype) == "torch.bfloat16" else x


def is_tensor(x: object) -> bool:
    """Return whether `x` is a tensor of torch: who has one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def _kind_words(x: Any, array: npt.NDArray[Any]) -> str:
    """Return what is given that has no numbers: names of files, pictures, a list of arrays of several shapes."""
    if array.dtype.kind in "US":
        text = shown(array.reshape(-1)[0].item()) if array.size else "without any"
        return f"text ({text}), which vgg16gpu.classify(files, model) reads as files"
    return f"{shown(x)}, an array of {array.dtype} for numpy"


Images: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
Input: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]
OpenShape: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True)
class InputForm:
    """The one input of an engine: how a caller gives it.

    accepted: the shape of one sample, by element type; None for a side that may be any. whole: by its name, the shape
    of the first output that has no row for each image, if there is one. why_fixed: says what fixes the size.
    """

    given: GraphInput
    accepted: Mapping[np.dtype[Any], OpenShape]
    whole: tuple[str, Shape] | None
    why_fixed: Callable[[], str] | None = None

    @classmethod
    def of(cls, given: GraphInput, program: LaunchPlan, why_fixed: Callable[[], str] | None = None) -> InputForm:
        """That of a program and of its input as the file has it."""
        whole = next(((y.name, y.shape) for y in program.outputs if program.is_whole(y)), None)
        return cls(given, _accepted(given, program, program.input.shape), whole, why_fixed)

    @classmethod
    def of_any_size(cls, given: GraphInput, program: LaunchPlan, shape: OpenShape) -> InputForm:
        """That of programs for any size; `shape` of a batch says what is open. It knows no outputs."""
        return cls(given, _accepted(given, program, shape), None)

    def sides(self, element_type: str, shape: Shape) -> tuple[int, int]:
        """Height and width of a batch of images in the order that the kernels read."""
        return (shape[1], shape[2]) if element_type == "uint8" else (shape[2], shape[3])

    def only(self, x: Any) -> Any:
        """The array itself, which may come in a dict from the input's name."""
        if isinstance(x, Mapping):
            if set(x) != {self.given.name}:
                raise InputError(f"inputs {shown(sorted(map(str, x)))}: this model has one input, '{self.given.name}'")
            return x[self.given.name]
        return x

    def checked(self, x: Input) -> Images:
        """An array on the host in the order that the kernels read. Raises InputError."""
        given = self.only(x)
        images = as_array(given)
        if images.dtype == np.float16:
            images = images.astype(np.float32)  # exact
        self.check(images.dtype, images.shape, "x.float()" if is_tensor(given) else "x.astype(np.float32)")
        return self.given.from_file(images) if images.dtype == np.float32 else images

    def checked_or_foreign(self, x: Any) -> Any:
        """The same, of an item of a stream; an array on the GPU as it is, for who runs it to check."""
        given = self.only(x)
        return given if is_on_device(given) else self.checked(given)

    def check(self, dtype: np.dtype[Any], shape: Shape, conversion: str) -> None:
        """Raise InputError for an element type or shape that is not taken; `conversion`: how to mend the type."""
        expected = self.accepted.get(dtype)
        if expected is None or not _fits(shape[1:], expected):
            accepted = " or ".join(f"{name} (N, {_listed(dims)})" for name, dims in self.accepted.items())
            remedy = f"; convert it with {conversion}" if expected is None else ""
            if expected is not None and self.why_fixed and self._has_channels(dtype, shape[1:], expected):
                remedy = f"; {self.why_fixed()}"
            raise InputError(f"input '{self.given.name}' is {dtype} {shape}; this model takes {accepted}{remedy}")
        self.check_rows(dtype, shape)

    def _has_channels(self, dtype: np.dtype[Any], sample: Shape, expected: OpenShape) -> bool:
        """Return whether a sample is an image of so many channels, so that only its size is wrong."""
        axis = -1 if dtype == np.uint8 or self.given.channels_last else 0
        return len(sample) == len(expected) and sample[axis] == expected[axis]

    def check_rows(self, dtype: np.dtype[Any], shape: Shape) -> None:
        """Raise InputError for more or less than one image where an output has no row for each."""
        if self.whole and shape[0] != 1:
            name, whole = self.whole
            raise InputError(
                f"input '{self.given.name}' is {dtype} {shape}; output '{name}' has shape {whole}, without a row for "
                "each image, so they come one by one: N = 1"
            )


def _accepted(given: GraphInput, program: LaunchPlan, shape: OpenShape) -> dict[np.dtype[Any], OpenShape]:
    """The shape of a sample as a user gives it, by element type. shape: of a batch."""
    return {
        np.dtype(name): (given.in_file(shape) if name == "float32" else image_shape(shape, name))[1:]
        for name in program.input.entries
    }


def _fits(sample: Shape, expected: OpenShape) -> bool:
    """Return whether a sample has this shape; a side that may be any has a pixel at least."""
    return sample == expected or (
        len(sample) == len(expected)
        and all(dim == want or (want is None and dim > 0) for dim, want in zip(sample, expected, strict=True))
    )


def _listed(dims: OpenShape) -> str:
    """A shape for a message."""
    return ", ".join("any" if dim is None else str(dim) for dim in dims)


_log = logging.getLogger(__name__)


class AssumedPixels:
    """What an engine that was built with this mean and std assumes of bytes; told with the first of them, once."""

    def __init__(
        self, model: Model, graph: Graph, shape: Shape, mean: Sequence[float] | None, std: Sequence[float] | None
    ) -> None:
        """shape: of the input of a run, (N, C, H, W) where it takes pictures."""
        self._model, self._graph, self._shape = model, graph, shape
        self._may_assume = len(shape) == 4 and (mean is None or std is None)

    def warn(self, dtype: np.dtype[Any]) -> None:
        """Log a warning if inputs of this type are the first bytes, and what is done to them is assumed."""
        if self._may_assume and dtype == np.uint8:
            self._may_assume = False
            preprocess = self._model.preprocess(self._graph, self._shape)
            if told := preprocess.assumption(*self._shape[2:], pictures=False):
                _log.warning("%s: %s; mean= and std= say how", self._model.name, told)
