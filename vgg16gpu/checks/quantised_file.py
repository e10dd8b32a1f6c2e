"""A file that rounds values, without its rounding and with noise of that size: what judges engines that do not round.

Such a file has QuantizeLinear and DequantizeLinear between its operators. Without rounding they still saturate: they
are a Clip to what the smallest and the largest integer stand for. This is read off ONNX's definition of the two
operators alone, and shares nothing with what the compiler makes of such files: no mistake is made on both sides.

How far rounding may move a score is found by moving each rounded value by up to half a step (`add_noise`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.errors import ModelError

Numbers: TypeAlias = npt.NDArray[Any]
Read: TypeAlias = Callable[[TensorProto], Numbers]  # a tensor of the model, wherever its numbers lie
Edit: TypeAlias = Callable[[onnx.ModelProto, Read], None]  # changes a model in place

_CLIP_WITH_OPERANDS: Final = 11  # the opset from which limits of Clip are operands
_REMEDY: Final = "check it with --references"


def rounds_values(model: onnx.ModelProto) -> bool:
    """Return whether a model quantises what it computes, beside weights."""
    return bool(_quantised(model))


def without_rounding(model: onnx.ModelProto, read: Read) -> None:
    """Turn each QuantizeLinear of a run-time value into a Clip, and the DequantizeLinear behind it into an Identity.

    Weights stay as the integers make them. Raises ModelError for scales that are no constants, or one for each channel,
    and for a DequantizeLinear with other numbers than the QuantizeLinear before it.
    """
    constants = _Constants(model, read)
    integers: dict[str, QuantisedRange] = {}
    for node in _quantised(model):
        if node.op_type == "QuantizeLinear":
            integers[node.output[0]] = found = constants.integers(node)
            _clip(model, node, found)
        elif node.op_type == "DequantizeLinear":
            if not integers[node.input[0]].means_same(constants.integers(node)):
                raise ModelError(
                    f"DequantizeLinear '{node.output[0]}' has another scale or zero point than the QuantizeLinear "
                    f"before it: the model without rounding is not known; {_REMEDY}"
                )
            _replace(node, "Identity", node.input[:1])
        else:  # an operator that integers pass through
            integers[node.output[0]] = found = integers[node.input[0]]
            if node.op_type == "Clip":
                _clip(model, node, constants.narrower(node, found))
    del model.graph.value_info[:]  # types of integers that are none now


def add_noise(model: onnx.ModelProto, read: Read) -> None:
    """Add noise of the size of rounding, uniform within half a step, to every run-time value that was rounded.

    Raises ModelError.
    """
    constants = _Constants(model, read)
    behind: dict[str, list[onnx.NodeProto]] = {}
    for number, node in enumerate(_quantised(model)):
        if node.op_type != "DequantizeLinear":
            continue
        half, name = float(constants.integers(node).scale) / 2, node.output[0]
        rounded, noise = f"{name}/rounded", f"{name}/noise"
        node.output[0] = rounded
        behind[rounded] = [
            helper.make_node("RandomUniformLike", [rounded], [noise], low=-half, high=half, seed=float(number)),
            helper.make_node("Add", [rounded, noise], [name]),
        ]
    nodes = [made for node in model.graph.node for made in (node, *behind.get(next(iter(node.output), ""), ()))]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


class QuantisedRange(NamedTuple):
    """What integers mean: (q - zero) * scale, q from `low` to `high`."""

    scale: Any  # of the numpy type of what is quantised
    zero: int
    low: int
    high: int

    def means_same(self, other: QuantisedRange) -> bool:
        """Return whether the same integers stand for the same numbers."""
        return bool(self.scale == other.scale) and self.zero == other.zero


class _Constants:
    """The constant operands of a model's nodes."""

    def __init__(self, model: onnx.ModelProto, read: Read) -> None:
        self._read = read
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._copies: dict[str, str] = {}
        for node in model.graph.node:
            if node.op_type == "Constant":
                told = {each.name: each.t for each in node.attribute}
                self._tensors |= {node.output[0]: told["value"]} if "value" in told else {}
            elif node.op_type == "Identity":
                self._copies[node.output[0]] = node.input[0]

    def integers(self, node: onnx.NodeProto) -> QuantisedRange:
        """Return what the integers of a QuantizeLinear or DequantizeLinear mean. Raises ModelError."""
        scale = self._number(node, node.input[1])
        if len(node.input) > 2 and node.input[2]:
            zero = self._number(node, node.input[2])
        else:
            told = {each.name: each.i for each in node.attribute}.get("output_dtype", 0)
            quantises = node.op_type == "QuantizeLinear" and told
            zero = np.zeros((), helper.tensor_dtype_to_np_dtype(told if quantises else TensorProto.UINT8))[()]
        limits = np.iinfo(zero.dtype)
        return QuantisedRange(scale, int(zero), int(limits.min), int(limits.max))

    def narrower(self, node: onnx.NodeProto, found: QuantisedRange) -> QuantisedRange:
        """Return the integers that a Clip of integers leaves. Raises ModelError."""
        given = [self._number(node, name) if name else None for name in (*node.input[1:], "", "")[:2]]
        low, high = (other if limit is None else int(limit) for limit, other in zip(given, found[2:], strict=True))
        return found._replace(low=low, high=high)

    def _number(self, node: onnx.NodeProto, name: str) -> Any:
        while name in self._copies:
            name = self._copies[name]
        if name not in self._tensors:
            raise ModelError(f"{node.op_type} '{node.output[0]}' reads '{name}', which is no constant; {_REMEDY}")
        array = self._read(self._tensors[name])
        if array.size != 1:
            raise ModelError(
                f"{node.op_type} '{node.output[0]}' has scales or zero points of shape {array.shape}, and one is known "
                f"for all channels; {_REMEDY}"
            )
        return array.reshape(-1)[0]


def _quantised(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that make, pass on and read integers of run-time values, in order."""
    stored = {tensor.name for tensor in model.graph.initializer}
    run_time = {item.name for item in model.graph.input} - stored
    integers: set[str] = set()
    found = []
    for node in model.graph.node:
        if not run_time.isdisjoint(node.input):
            run_time.update(node.output)
            is_first = node.op_type == "QuantizeLinear"
            if is_first or not integers.isdisjoint(node.input[:1]):
                found.append(node)
                if node.op_type not in ("DequantizeLinear", "Shape"):
                    integers.update(node.output[:1])
    return found


def _clip(model: onnx.ModelProto, node: onnx.NodeProto, found: QuantisedRange) -> None:
    """Turn a node into the Clip to what the integers can mean."""
    kind = type(found.scale)
    limits = [kind(limit - found.zero) * found.scale for limit in (found.low, found.high)]
    opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _CLIP_WITH_OPERANDS:
        _replace(node, "Clip", node.input[:1])
        node.attribute.extend(
            helper.make_attribute(name, float(limit)) for name, limit in zip(("min", "max"), limits, strict=True)
        )
        return
    names = [f"{node.output[0]}/{end}" for end in ("low", "high")]
    _replace(node, "Clip", [node.input[0], *names])
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(limit, kind), name) for limit, name in zip(limits, names, strict=True)
    )


def _replace(node: onnx.NodeProto, op_type: str, operands: Any) -> None:
    operands = list(operands)
    node.op_type = op_type
    del node.input[:], node.attribute[:]
    node.input.extend(operands)
