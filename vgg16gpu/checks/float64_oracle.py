"""ONNX's own reference evaluator in float64: the judge where two float32 libraries differ by their rounding.

It reads the file, not the compiler's graph, so a mistake of the compiler is not made on both sides. Convolutions and
max-pools are computed here, in place of the evaluator's: one product of matrices for each place of the kernel. They
take a copy of their input as memory, and a fifth of the evaluator's time: VGG16 at 244 pixels takes some 5 s on two
cores, and 8 bytes for each of its weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_conv, op_max_pool

from vgg16gpu.checks.quantised_file import Edit
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.onnx.file import Constant, OnnxFile
from vgg16gpu.compiler.onnx.folding.budget import FoldingBudget
from vgg16gpu.compiler.onnx.folding.sparse import array_of
from vgg16gpu.compiler.onnx.initializers import Stored, initializers
from vgg16gpu.errors import ModelError

_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16)


class Float64Oracle:
    """A model computed in float64.

    values: the ONNX values that are wanted, by name; none: the first output. edit: what is changed in the model before
    (see `quantised_file.py`). Raises ModelError for a model that the evaluator does not take.
    """

    def __init__(self, file: OnnxFile, values: Sequence[str] = (), edit: Edit | None = None) -> None:
        try:
            model, self._weights = _widened(file, edit)
            self._evaluator = ReferenceEvaluator(model, new_ops=[Conv, MaxPool])
        except Exception as error:  # the evaluator is written in Python and raises what numpy does
            raise _unknown(file, error) from error
        stored = {name for name, _ in initializers(file.model.graph)}
        self._input = next(item for item in file.model.graph.input if item.name not in stored)
        self._names = list(values or [file.model.graph.output[0].name])
        self._file = file

    def values(self, x: Array) -> tuple[npt.NDArray[np.float64], ...]:
        """Return the values for one (1, ...) input. Raises ModelError where the evaluator cannot compute them.

        A model with a fixed batch size gets zeros as further rows; their results are in the values.
        """
        dims = self._input.type.tensor_type.shape.dim
        rows = dims[0].dim_value if dims and dims[0].dim_value > 0 else 1
        padded = np.zeros((rows, *x.shape[1:]))
        padded[:1] = x[:1]
        try:
            with np.errstate(all="ignore"):
                found = self._evaluator.run(self._names, {**self._weights, self._input.name: padded})
        except Exception as error:
            raise _unknown(self._file, error) from error
        return tuple(np.asarray(value, np.float64) for value in found)


def _unknown(file: OnnxFile, error: Exception) -> ModelError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return file.error(f"its values in float64 are not known: {reason}")


def _widened(file: OnnxFile, edit: Edit | None) -> tuple[onnx.ModelProto, dict[str, Constant]]:
    """Return the model with float64 in place of float32 and float16 (constants, and what is cast), and its weights.

    The weights are inputs of that model: as arrays they need no second copy.
    """
    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    if edit:
        edit(model, file.array)
    graph = model.graph
    weights = {name: _wide(array_of(file, stored, FoldingBudget())) for name, stored in initializers(graph)}
    del graph.initializer[:], graph.sparse_initializer[:], graph.value_info[:]
    known = {item.name for item in graph.input}
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in weights if name not in known)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in (*graph.node, *(node for function in model.functions for node in function.node)):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                attribute.t.CopyFrom(_tensor(file, attribute.t))
            elif attribute.type == AttributeProto.SPARSE_TENSOR:
                attribute.CopyFrom(onnx.helper.make_attribute("value", _tensor(file, attribute.sparse_tensor)))
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
    return model, weights


def _tensor(file: OnnxFile, stored: Stored) -> TensorProto:
    return numpy_helper.from_array(_wide(array_of(file, stored, FoldingBudget())))


def _wide(array: Constant) -> Constant:
    return array.astype(np.float64 if array.dtype in (np.float32, np.float16) else array.dtype, order="C")


class _Axis(NamedTuple):
    """A sliding window along one axis."""

    size: int
    step: int
    spread: int  # between the numbers that a window reads
    before: int  # padding
    after: int
    windows: int

    def reads(self, place: int) -> slice:
        """Return where in the padded axis all windows read their number at `place`."""
        first = place * self.spread
        return slice(first, first + (self.windows - 1) * self.step + 1, self.step)


class _Windows(NamedTuple):
    """The windows of a convolution or a pool."""

    axes: tuple[_Axis, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Windows along each axis."""
        return tuple(axis.windows for axis in self.axes)

    def padded(self, x: Constant, value: float) -> Constant:
        """Return (N, C, ...) numbers with padding of that value."""
        return np.pad(x, ((0, 0), (0, 0), *((axis.before, axis.after) for axis in self.axes)), constant_values=value)

    def taps(self) -> Iterator[tuple[slice, ...]]:
        """Yield for each place of a window, row by row, where in the padded axes all windows read there."""
        return itertools.product(*(map(axis.reads, range(axis.size)) for axis in self.axes))


def _windows(lengths: Sequence[int], kernel: Sequence[int], told: dict[str, Any]) -> _Windows:
    """Return the windows that ONNX's attributes tell, over axes of these lengths."""
    rank = len(lengths)
    steps, spreads = told["strides"] or [1] * rank, told["dilations"] or [1] * rank
    pads = list(told["pads"] or [0] * 2 * rank)
    axes = []
    for i, (length, size) in enumerate(zip(lengths, kernel, strict=True)):
        reach = (size - 1) * spreads[i] + 1
        before, after = pads[i], pads[i + rank]
        if told["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            missing = max(0, (math.ceil(length / steps[i]) - 1) * steps[i] + reach - length)
            before, after = missing // 2, missing - missing // 2
            if told["auto_pad"] == "SAME_LOWER":
                before, after = after, before
        elif told["auto_pad"] == "VALID":
            before = after = 0
        count = (length + before + after - reach) // steps[i] + 1
        axes.append(_Axis(size, steps[i], spreads[i], before, after, count))
    return _Windows(tuple(axes))


class Conv(op_conv.Conv):
    """Conv, summed over the places of its kernel. The evaluator knows it by the name of this class."""

    def _run(
        self,
        X: Constant,
        W: Constant,
        B: Constant | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Constant]:
        told = {"auto_pad": auto_pad, "dilations": dilations, "pads": pads, "strides": strides}
        windows = _windows(X.shape[2:], kernel_shape or W.shape[2:], told)
        groups = group or 1
        x = windows.padded(X, 0)
        y = np.zeros((X.shape[0], groups, W.shape[0] // groups, math.prod(windows.counts)))
        w = W.reshape(groups, W.shape[0] // groups, W.shape[1], -1)
        for tap, reads in enumerate(windows.taps()):
            read = x[(slice(None), slice(None), *reads)].reshape(X.shape[0], groups, W.shape[1], y.shape[-1])
            y += w[..., tap] @ read
        y = y.reshape(X.shape[0], W.shape[0], *windows.counts)
        return (y if B is None else y + B.reshape(-1, *[1] * len(windows.axes)),)


class MaxPool(op_max_pool.MaxPool):
    """MaxPool, over the places of its window; the evaluator's own with `ceil_mode` and for places of maxima."""

    def _run(  # type: ignore[override]
        self,
        x: Constant,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> Any:
        told = {"auto_pad": auto_pad, "dilations": dilations, "pads": pads, "strides": strides}
        if ceil_mode or len(self.onnx_node.output) > 1:
            options = {"ceil_mode": ceil_mode, "kernel_shape": kernel_shape, "storage_order": storage_order}
            return super()._run(x, **told, **options)  # type: ignore[no-untyped-call]
        windows = _windows(x.shape[2:], kernel_shape or (), told)
        padded = windows.padded(x, -math.inf)
        y = np.full((*x.shape[:2], *windows.counts), -math.inf)
        for reads in windows.taps():
            y = np.maximum(y, padded[(slice(None), slice(None), *reads)])
        return (y,)
