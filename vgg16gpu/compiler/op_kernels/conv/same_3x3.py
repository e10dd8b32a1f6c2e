"""The convolutions that have kernels for Hopper's tensor cores: what these kernels share."""

from __future__ import annotations

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.compiler.op_kernels.conv.common import is_same_3x3
from vgg16gpu.compiler.op_kernels.wgmma import computes, y_element
from vgg16gpu.program.types import DType


def computes_3x3(layer: OpContext[Conv]) -> bool:
    """Return whether Hopper's tensor cores compute it: same-size 3x3, and a quantised result only as integers."""
    return is_same_3x3(layer.op) and computes(layer) and y_element(layer) is not DType.F32
