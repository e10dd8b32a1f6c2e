"""The convolutions that have kernels for Hopper's tensor cores: what these kernels share."""

from __future__ import annotations

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.graph.window import Pads
from vgg16gpu.compiler.lowering.base import Layer
from vgg16gpu.compiler.lowering.wgmma import computes, y_element
from vgg16gpu.program.values import Element


def is_same_3x3(op: Conv) -> bool:
    """A 3x3 window, stride 1, one pixel of padding: the output is as large as the input."""
    return op.window.kernel == (3, 3) and op.window.strides == (1, 1) and op.window.pads == Pads(1, 1, 1, 1)


def computes_3x3(layer: Layer[Conv]) -> bool:
    """Whether Hopper's tensor cores compute it: same-size 3x3, and a quantised result that is wanted as integers."""
    return is_same_3x3(layer.op) and computes(layer) and y_element(layer) is not Element.F32
