"""Max and average pooling: the Python side of kernels/pool.cu."""

from __future__ import annotations

import math

from vgg16gpu.graph import Pool
from vgg16gpu.ops.base import Constants, Layer, Lowering, Places, linear, scalars
from vgg16gpu.program import Kernel, Step, Value

SOURCE = "pool.cu"
VARIANTS = ((("AVERAGE", 0),), (("AVERAGE", 1),))  # tools/ptxas.py


def steps(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    """One launch."""
    del constants, places
    op: Pool = layer.op
    batch, height, width, channels = y.stored_shape
    window = op.window
    grid, block = linear(math.prod(y.stored_shape) // 4)
    return (
        Step(
            kernel=Kernel(SOURCE, "pool_f32", (("AVERAGE", int(op.kind == "average")),)),
            grid=grid,
            block=block,
            arguments=(
                *(y.pointer, x.pointer),
                *scalars(batch * height * width, x.shape[2], x.shape[3], channels, height, width),
                *scalars(*window.kernel, *window.strides, window.pads.top, window.pads.left, int(op.count_include_pad)),
            ),
            flop=math.prod(y.shape) * math.prod(window.kernel),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label=f"{op.kind} pool {window.kernel[0]}x{window.kernel[1]}",
        ),
    )


LOWERING = Lowering(Pool, steps)
