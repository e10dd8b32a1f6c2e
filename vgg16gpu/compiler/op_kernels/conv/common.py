"""What several kernels of convolutions share."""

from __future__ import annotations

from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.graph.window import Pads
from vgg16gpu.compiler.op_kernels.activation import activation_label

TAPS: Final = 9  # of a 3x3 window
# Rows of float32 weights in pack_conv's order are padded to a multiple of this: every TILE_K of conv_igemm divides it.
GROUP_ALIGNMENT: Final = 32


def is_same_3x3(op: Conv) -> bool:
    """Return whether it has a 3x3 window, stride 1, one pixel of padding: the output is as large as the input."""
    return op.window.kernel == (3, 3) and op.window.strides == (1, 1) and op.window.pads == Pads(1, 1, 1, 1)


def label(op: Conv) -> str:
    """Return the step's label in tables."""
    kernel = f"conv {op.window.kernel[0]}x{op.window.kernel[1]} {op.weight.shape[1]}->{op.weight.shape[0]}"
    return kernel + activation_label(op) + " + pool" * op.pool
