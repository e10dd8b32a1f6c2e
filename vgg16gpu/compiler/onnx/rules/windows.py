"""Rules of operators on feature maps: convolution, pooling, normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from vgg16gpu.compiler.graph.ops import (
    BatchNorm,
    Conv,
    Flatten,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    Identity,
    LocalResponseNorm,
    Op,
    Pool,
)
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.onnx.folding.fold import OpenShape
from vgg16gpu.compiler.onnx.node import (
    EXPORT_AGAIN,
    NodeView,
    Rule,
    UnknownShapeError,
    UnsupportedNodeError,
    positive_axis,
)

_LARGEST: Final = 1 << 20  # elements of a window, a stride or padding; so kernels can count in 32 bits
_PARAMETERS: Final = ("scale", "shift", "mean", "variance")


def conv(node: NodeView) -> Op:
    """Import Conv: 2-D; dense with constant weights, or of any group, dilation and weights."""
    weight = node.shape_of(1)
    if len(weight) != 4:
        raise UnsupportedNodeError(
            f"its weight has shape {weight}, only 2-D convolution, (OC, C, KH, KW), is supported",
            "rewrite it as 2-D (a 1-D one has maps of one row) and export again",
        )
    if None in weight:
        raise UnsupportedNodeError(f"its weight '{node.names[1]}' has an open shape", "export it with a fixed one")
    kernel = (weight[2] or 0, weight[3] or 0)
    if tuple(node.attributes.get("kernel_shape", kernel)) != kernel:
        raise UnsupportedNodeError(
            f"kernel_shape {node.attributes['kernel_shape']} differs from its weight's", EXPORT_AGAIN
        )
    group = node.attributes.get("group", 1)
    if group < 1 or (weight[0] or 0) % group:
        raise UnsupportedNodeError(f"group is {group} for {weight[0]} output channels", EXPORT_AGAIN)
    constants = [node.weight(index, what) for index, what in ((1, "weight"), (2, "bias")) if node.is_constant(index)]
    bias = constants[-1] if node.is_constant(2) else None
    if bias is not None and bias.shape != weight[:1]:
        raise UnsupportedNodeError(f"its bias has shape {bias.shape} for {weight[0]} output channels", EXPORT_AGAIN)
    window = _window(node, kernel)
    run_time = any(node.operand(index) is not None and not node.is_constant(index) for index in (1, 2))
    if group == 1 and window.is_plain and not run_time and not node.is_constant(0):
        return Conv(node.x, node.y, (node.y,), constants[0], bias, window, weight_steps=node.weight_steps(1))
    others = (node.value(1),) if node.operand(2) is None else (node.value(1), node.value(2))
    return GeneralConv(node.x, node.y, (node.y,), others, window, group)


def max_pool(node: NodeView) -> Op:
    """Import MaxPool: 2-D, without indices."""
    if node.used_outputs:
        raise UnsupportedNodeError(f"its indices '{node.used_outputs[0]}' are used", "only the maxima are computed")
    return _pool(node, "max", count_include_pad=False)


def average_pool(node: NodeView) -> Op:
    """Import AveragePool: 2-D; a 1x1 window with stride 1 (torch's AdaptiveAvgPool at 224) changes nothing."""
    return _pool(node, "average", count_include_pad=node.flag("count_include_pad"))


def _pool(node: NodeView, kind: Literal["max", "average"], *, count_include_pad: bool) -> Op:
    kernel = _pair(node, "kernel_shape", None)
    window = _window(node, kernel)
    pads, (rows, columns) = window.pads, window.extent
    auto = node.attributes.get("auto_pad", b"")
    if auto.startswith(b"SAME") and (window.strides[0] > rows or window.strides[1] > columns):
        raise UnsupportedNodeError(
            f"strides {window.strides} leap over elements", "export with explicit pads, not auto_pad"
        )
    if auto.startswith(b"SAME") and window.dilations != (1, 1):
        reason = f"dilations {window.dilations} and auto_pad mean other pads to onnxruntime than to ONNX"
        raise UnsupportedNodeError(reason, "export with explicit pads, not auto_pad")
    if max(pads.top, pads.bottom) >= rows or max(pads.left, pads.right) >= columns:
        raise UnsupportedNodeError(
            f"pads {tuple(pads)} are not smaller than its kernel {(rows, columns)}", EXPORT_AGAIN
        )
    if kernel == window.strides == (1, 1):
        return Identity(node.x, node.y, (node.y,))
    return Pool(node.x, node.y, (node.y,), kind, window, count_include_pad)


def global_average_pool(node: NodeView) -> Op:
    """Import GlobalAveragePool of (N, C, H, W)."""
    return GlobalPool(node.x, node.y, (node.y,), "average")


def global_max_pool(node: NodeView) -> Op:
    """Import GlobalMaxPool of (N, C, H, W)."""
    return GlobalPool(node.x, node.y, (node.y,), "max")


def reduce_mean(node: NodeView) -> Op | tuple[Op, ...]:
    """Import ReduceMean over height and width of (N, C, H, W); axes: an attribute before opset 18, an operand since."""
    axes, rank = node.axes(1, 18), len(node.shape)
    if not axes and node.flag("noop_with_empty_axes"):
        return Identity(node.x, node.y, (node.y,))
    found = sorted(positive_axis(axis, rank) for axis in axes or range(rank))
    if rank != 4 or found != [2, 3]:
        raise UnsupportedNodeError(
            f"it takes the mean over axes {found} of {rank} dimensions",
            "only that over height and width of (N, C, H, W) is supported: export it as GlobalAveragePool",
        )
    if node.attributes.get("keepdims", 1):
        return global_average_pool(node)
    pooled = node.scope.fresh(node.y)
    return GlobalPool(node.x, pooled, (pooled,), "average"), Flatten(pooled, node.y, (node.y,))


def lrn(node: NodeView) -> Op:
    """Import LRN over the channels of (N, C, H, W)."""
    size = node.attributes.get("size", 0)
    if size < 1:
        raise UnsupportedNodeError(f"size is {size}", "a positive number of channels is needed")
    alpha, beta, bias = (node.attributes.get(*item) for item in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    return LocalResponseNorm(node.x, node.y, (node.y,), size, float(alpha), float(beta), float(bias))


def batch_norm(node: NodeView) -> Op:
    """Import BatchNormalization at inference, one set of parameters per channel; of any rank, and run-time ones."""
    node.only("training_mode", 0, 0, "export with model.eval()")
    used = node.used_outputs or (node.extra_outputs if node.opset < 14 else ())  # more outputs mean training there
    if used:
        reason = f"it has '{used[0]}', an output that only training_mode computes"
        raise UnsupportedNodeError(reason, "export with model.eval()")
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    constant = {index: node.weight(index, what) for index, what in enumerate(_PARAMETERS, 1) if node.is_constant(index)}
    shapes = {array.shape for array in constant.values()}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        raise UnsupportedNodeError(
            f"its parameters have shapes {sorted(shapes)}", "only one value per channel is supported"
        )
    if 4 in constant:
        node.scope.memory.take(constant[4].shape, np.dtype(np.float64))
    if 4 in constant and not (constant[4].astype(np.float64) + epsilon > 0).all():
        raise UnsupportedNodeError(
            "a variance plus epsilon is not above zero", "the model is broken: train or export it again"
        )
    if len(constant) == 4 and node.rank in (None, 4) and not node.is_constant(0):
        return BatchNorm(node.x, node.y, (node.y,), constant[1], constant[2], constant[3], constant[4], epsilon)
    others = tuple(node.value(index, what) for index, what in enumerate(_PARAMETERS, 1))
    return GeneralBatchNorm(node.x, node.y, (node.y,), others, epsilon)


def _window(node: NodeView, kernel: tuple[int, int]) -> Window:
    """Return the window, in explicit pads and rounded down where that is the same for every possible map."""
    if min(kernel) < 1:
        raise UnsupportedNodeError(f"its kernel is {kernel}", "two positive numbers (2-D) are needed")
    auto = node.attributes.get("auto_pad", b"NOTSET").decode("utf-8", "replace")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedNodeError(f"auto_pad is '{auto}'", "NOTSET, VALID, SAME_UPPER and SAME_LOWER are known")
    given = tuple(node.attributes.get("pads", (0, 0, 0, 0)))
    pads = given if auto == "NOTSET" else (0, 0, 0, 0)
    if pads != given and any(given):
        node.scope.remarks.append(f"its auto_pad {auto} takes the place of its pads {list(given)}, as ONNX has it")
    if len(pads) != 4 or min(pads) < 0 or max(pads) > _LARGEST:
        raise UnsupportedNodeError(f"pads are {list(pads)}", "four numbers, none negative, are needed")
    window = Window(
        kernel,
        _pair(node, "strides", (1, 1)),
        Pads(*pads),
        _pair(node, "dilations", (1, 1)),
        "upper" if auto == "SAME_UPPER" else "lower" if auto == "SAME_LOWER" else "",
        node.flag("ceil_mode") and not auto.startswith("SAME"),
    )
    try:
        return _resolved(window, node.shape)
    except UnknownShapeError:
        return window


def _resolved(window: Window, shape: OpenShape) -> Window:
    size = shape[2:] if len(shape) == 4 else (None, None)
    known = size[0] is not None and size[1] is not None
    height, width = size[0] or 1, size[1] or 1
    if window.same and (known or window.strides == (1, 1)):  # with stride 1 it is the same for all maps
        return replace(window, same="", pads=window.padding(height, width))
    down = replace(window, ceil=False)
    if window.ceil and (
        window.strides == (1, 1) or (known and down.output_size(height, width) == window.output_size(height, width))
    ):
        return down
    return window


def _pair(node: NodeView, name: str, default: tuple[int, int] | None) -> tuple[int, int]:
    value = tuple(node.attributes.get(name, default or ()))
    if len(value) != 2 or min(value) < 1 or max(value) > _LARGEST:
        raise UnsupportedNodeError(f"{name} is {list(value)}", "two positive numbers (2-D) are needed")
    return value[0], value[1]


RULES: Final[Mapping[str, Rule]] = {
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Conv": conv,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "LRN": lrn,
    "MaxPool": max_pool,
    "ReduceMean": reduce_mean,
}
