"""What each ONNX operator means here: one small function per operator, from a node to a canonical op.

A rule accepts every spelling of opsets 7 to 25 that means the canonical op and raises `RefusalError` for all else.
Operator definitions: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np

from vgg16gpu.errors import ModelError
from vgg16gpu.graph import (
    Array,
    BatchNorm,
    Conv,
    Flatten,
    Gemm,
    Identity,
    Op,
    Pads,
    Pool,
    Relu,
    Softmax,
    Window,
)
from vgg16gpu.onnx_file import Constant
from vgg16gpu.onnx_fold import OPEN_BATCH, OPEN_SIZE, OpenShape
from vgg16gpu.shapes import output_shape

FLOAT32_REMEDY: Final = "export the model in float32"
EXPORT_AGAIN: Final = "the file is broken, export the model again"


class RefusalError(Exception):
    """Why a node is not supported, and what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")


@dataclass(frozen=True, eq=False)
class Node:
    """An ONNX node as the rules see it: its first operand is a run-time value, all others are constants."""

    opset: int
    attributes: Mapping[str, Any]
    x: str
    y: str
    shape: OpenShape | None  # of x; None when the node that computes x is refused itself
    constants: tuple[Constant | None, ...]  # the operands after x; None where one is left out
    extra_outputs: tuple[str, ...]  # outputs after y that the model uses

    def constant(self, index: int) -> Constant | None:
        """Operand `index` (the first one is x), or None when it is left out."""
        return self.constants[index - 1] if index <= len(self.constants) else None

    def weight(self, index: int, what: str) -> Array:
        """A float32 operand that must be there."""
        array = self.constant(index)
        if array is None:
            raise RefusalError(f"it has no {what}", EXPORT_AGAIN)
        if array.dtype != np.float32:
            raise RefusalError(f"its {what} has element type {array.dtype}", FLOAT32_REMEDY)
        if array.size == 0:
            raise RefusalError(f"its {what} of shape {array.shape} is empty", EXPORT_AGAIN)
        return cast(Array, array)

    def only(self, name: str, accepted: object, default: object, remedy: str) -> None:
        """Refuse any value of an attribute but the accepted one."""
        value = self.attributes.get(name, default)
        if value != accepted:
            raise RefusalError(f"{name} is {value}, only {accepted} is supported", remedy)


Rule: TypeAlias = Callable[[Node], Op]


def conv(node: Node) -> Op:
    """Conv: 2-D, one group, no dilation; any kernel, strides and pads; the bias may be absent."""
    weight = node.weight(1, "weight")
    if weight.ndim != 4:
        raise RefusalError(
            f"its weight has shape {weight.shape}", "only 2-D convolution, (OC, C, KH, KW), is supported"
        )
    node.only("group", 1, 1, "rewrite grouped convolutions as dense ones")
    kernel = (weight.shape[2], weight.shape[3])
    if tuple(node.attributes.get("kernel_shape", kernel)) != kernel:
        raise RefusalError(f"kernel_shape {node.attributes['kernel_shape']} differs from its weight's", EXPORT_AGAIN)
    bias = None if node.constant(2) is None else node.weight(2, "bias")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RefusalError(f"its bias has shape {bias.shape} for {weight.shape[0]} output channels", EXPORT_AGAIN)
    return Conv(node.x, node.y, (node.y,), weight, bias, _window(node, kernel))


def max_pool(node: Node) -> Op:
    """MaxPool: 2-D, rounded down, without indices."""
    if node.extra_outputs:
        raise RefusalError(f"its indices '{node.extra_outputs[0]}' are used", "only the maxima are computed")
    return _pool(node, "max", count_include_pad=False)


def average_pool(node: Node) -> Op:
    """AveragePool: 2-D, rounded down; a 1x1 window with stride 1 (torch's AdaptiveAvgPool at 224) changes nothing."""
    return _pool(node, "average", count_include_pad=bool(node.attributes.get("count_include_pad", 0)))


def _pool(node: Node, kind: Literal["max", "average"], *, count_include_pad: bool) -> Op:
    kernel = _pair(node, "kernel_shape", None)
    node.only("ceil_mode", 0, 0, "export with ceil_mode=False")
    window = _window(node, kernel)
    if max(window.pads.top, window.pads.bottom) >= kernel[0] or max(window.pads.left, window.pads.right) >= kernel[1]:
        raise RefusalError(f"pads {tuple(window.pads)} are not smaller than its kernel {kernel}", EXPORT_AGAIN)
    if kernel == window.strides == (1, 1):
        return Identity(node.x, node.y, (node.y,))
    return Pool(node.x, node.y, (node.y,), kind, window, count_include_pad)


def gemm(node: Node) -> Op:
    """Gemm with constant B and C; transB, alpha and beta go into the weights."""
    weight = node.weight(1, "weight")
    if weight.ndim != 2:
        raise RefusalError(f"its weight has shape {weight.shape}", "only matrices are supported")
    node.only("transA", 0, 0, "only (N, F) inputs are supported, transpose the other operand instead")
    if not node.attributes.get("transB", 0):
        weight = np.ascontiguousarray(weight.T)
    alpha, beta = node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)
    if alpha != 1:
        weight = _scaled(weight, alpha)
    bias = None if node.constant(2) is None or beta == 0 else node.weight(2, "bias")
    if bias is not None:
        bias = _gemm_bias(bias, weight.shape[0])
        bias = bias if beta == 1 else _scaled(bias, beta)
    return Gemm(node.x, node.y, (node.y,), weight, bias)


def _scaled(array: Array, factor: float) -> Array:
    with np.errstate(all="ignore"):  # weights that are not finite show in the scores, as in any other engine
        return array * np.float32(factor)


def _gemm_bias(bias: Array, features: int) -> Array:
    if bias.ndim > 2 or math.prod(bias.shape[:-1]) != 1 or bias.size not in (1, features):
        raise RefusalError(
            f"its bias has shape {bias.shape} for {features} outputs", "only one bias per output is supported"
        )
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (features,)))


def batch_norm(node: Node) -> Op:
    """BatchNormalization at inference, one set of parameters per channel."""
    node.only("training_mode", 0, 0, "export with model.eval()")
    if node.extra_outputs:
        raise RefusalError(f"its training output '{node.extra_outputs[0]}' is used", "export with model.eval()")
    scale, shift = node.weight(1, "scale"), node.weight(2, "shift")
    mean, variance = node.weight(3, "mean"), node.weight(4, "variance")
    shapes = {array.shape for array in (scale, shift, mean, variance)}
    if len(shapes) != 1 or scale.ndim != 1:
        raise RefusalError(f"its parameters have shapes {sorted(shapes)}", "only one value per channel is supported")
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    if not (variance.astype(np.float64) + epsilon > 0).all():
        raise RefusalError("a variance plus epsilon is not above zero", "the model is broken: train or export it again")
    return BatchNorm(node.x, node.y, (node.y,), scale, shift, mean, variance, epsilon)


def relu(node: Node) -> Op:
    """Relu."""
    return Relu(node.x, node.y, (node.y,))


def identity(node: Node) -> Op:
    """Identity."""
    return Identity(node.x, node.y, (node.y,))


def dropout(node: Node) -> Op:
    """Dropout at inference: x. The mask and the ratio mean nothing then."""
    training = node.constant(2)
    if training is not None and training.any():
        raise RefusalError("training_mode is true", "export with model.eval()")
    if node.extra_outputs:
        raise RefusalError(f"its mask '{node.extra_outputs[0]}' is used", "export with model.eval()")
    return identity(node)


def softmax(node: Node) -> Op:
    """Softmax over the features of (N, F): the default axis is 1 before opset 13 and -1 since."""
    axis = node.attributes.get("axis", 1 if node.opset < 13 else -1)
    if axis not in (1, -1):
        raise RefusalError(f"axis is {axis}", "only the last axis of (N, F), 1 or -1, is supported")
    if node.shape is not None and len(node.shape) != 2:
        raise RefusalError(f"its input has {len(node.shape)} dimensions", "only (N, F) is supported, flatten it first")
    return Softmax(node.x, node.y, (node.y,))


def flatten(node: Node) -> Op:
    """Flatten from axis 1."""
    axis = node.attributes.get("axis", 1)
    rank = None if node.shape is None else len(node.shape)
    if axis != 1 and (rank is None or axis != 1 - rank):
        raise RefusalError(f"axis is {axis}", "only axis 1, which keeps the batch, is supported")
    return Flatten(node.x, node.y, (node.y,))


def reshape(node: Node) -> Op:
    """Reshape, as long as it means Flatten: (N, ...) -> (N, F)."""
    target = node.constant(1)
    if target is None or target.ndim != 1 or target.dtype != np.int64:
        raise RefusalError("its shape operand is not a list of int64", EXPORT_AGAIN)
    shape = [int(dim) for dim in target]
    if node.shape is not None and not _flattens(shape, node.shape, bool(node.attributes.get("allowzero", 0))):
        raise RefusalError(
            f"it turns {_readable(node.shape)} into {_readable(shape)}, which is not one row per image",
            "use torch.flatten(x, 1), or export with the batch and the image size fixed",
        )
    return Flatten(node.x, node.y, (node.y,))


def _readable(shape: Sequence[int | None]) -> str:
    words = {None: "open", OPEN_SIZE: "open", OPEN_BATCH: "batch"}
    return f"({', '.join(str(words.get(dim, dim)) for dim in shape)})"


def _flattens(target: list[int], shape: OpenShape, allowzero: bool) -> bool:
    """Whether a reshape of `shape` to `target` is (N, ...) -> (N, F) at every size that the model leaves open."""
    if len(target) != 2 or target.count(-1) > 1 or (allowzero and 0 in target):
        return False
    features = None if None in shape[1:] else math.prod(dim for dim in shape[1:] if dim is not None)
    rows, columns = target
    # 0 copies the input's dimension: the batch in the first place, only one of several in the second.
    same_rows = rows in (0, OPEN_BATCH if shape[0] is None else shape[0])
    same_columns = (columns == 0 and len(shape) == 2) or (features is not None and columns == features)
    return (same_rows and (same_columns or columns == -1)) or (rows == -1 and same_columns)


RULES: Final[Mapping[str, Rule]] = {
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Conv": conv,
    "Dropout": dropout,
    "Flatten": flatten,
    "Gemm": gemm,
    "Identity": identity,
    "MaxPool": max_pool,
    "Relu": relu,
    "Reshape": reshape,
    "Softmax": softmax,
}


def open_shape(op: Op, shape: OpenShape) -> OpenShape:
    """Shape of op.y as far as it is known. Raises RefusalError when the op does not fit its input at any size."""
    if None not in shape[1:]:
        try:
            known = output_shape(op, (1, *cast(tuple[int, ...], shape[1:])))
        except ModelError as error:
            # The list of refused nodes names the node itself.
            raise RefusalError(str(error).partition(": ")[2], "export the model for another input size") from error
        return shape[0], *known[1:]
    rank = 2 if isinstance(op, Gemm | Softmax) else 4 if isinstance(op, Conv | Pool | BatchNorm) else len(shape)
    if len(shape) != rank:
        raise RefusalError(f"its input has {len(shape)} dimensions, it needs {rank}", EXPORT_AGAIN)
    channels = op.weight.shape[1] if isinstance(op, Conv) else op.scale.size if isinstance(op, BatchNorm) else None
    if None not in (channels, shape[1]) and channels != shape[1]:
        raise RefusalError(f"weights for {channels} channels, input has {shape[1]}", EXPORT_AGAIN)
    match op:
        case Conv():
            return shape[0], op.weight.shape[0], None, None
        case Pool():
            return shape[0], shape[1], None, None
        case Gemm():
            return shape[0], op.weight.shape[0]
        case Flatten():
            return shape[0], None
        case _:
            return shape


def _window(node: Node, kernel: tuple[int, int]) -> Window:
    strides = _pair(node, "strides", (1, 1))
    if _pair(node, "dilations", (1, 1)) != (1, 1):
        raise RefusalError(f"dilations are {node.attributes['dilations']}", "only undilated windows are supported")
    return Window(kernel, strides, _pads(node, kernel, strides))


def _pads(node: Node, kernel: tuple[int, int], strides: tuple[int, int]) -> Pads:
    auto = node.attributes.get("auto_pad", b"NOTSET").decode("utf-8", "replace")
    if auto == "VALID":
        return Pads()
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        if strides != (1, 1):
            raise RefusalError(f"auto_pad is {auto} with strides {strides}", "export with explicit pads")
        small = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
        large = (kernel[0] // 2, kernel[1] // 2)
        return Pads(*small, *large) if auto == "SAME_UPPER" else Pads(*large, *small)
    if auto != "NOTSET":
        raise RefusalError(f"auto_pad is '{auto}'", "NOTSET, VALID, SAME_UPPER and SAME_LOWER are known")
    pads = tuple(node.attributes.get("pads", (0, 0, 0, 0)))
    if len(pads) != 4 or min(pads) < 0:
        raise RefusalError(f"pads are {list(pads)}", "four numbers, none negative, are needed")
    return Pads(*pads)


def _pair(node: Node, name: str, default: tuple[int, int] | None) -> tuple[int, int]:
    value = tuple(node.attributes.get(name, default or ()))
    if len(value) != 2 or min(value) < 1:
        raise RefusalError(f"{name} is {list(value)}", "two positive numbers (2-D) are needed")
    return value[0], value[1]
