"""What several kernels of convolutions share."""

from __future__ import annotations

from vgg16gpu.compiler.graph.ops import Conv


def label(op: Conv) -> str:
    """What the step computes, for tables."""
    kernel = f"conv {op.window.kernel[0]}x{op.window.kernel[1]} {op.weight.shape[1]}->{op.weight.shape[0]}"
    return kernel + " + relu" * op.relu + " + pool" * op.pool
