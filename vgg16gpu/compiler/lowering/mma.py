"""What the kernels on the tensor cores of any card since Turing share: which device has them, elements, the finish."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op
from vgg16gpu.compiler.lowering.base import OpContext, WeightPacker
from vgg16gpu.program.types import DType, Pointer

ELEMENTS: Final = {"fp16": DType.F16, "bf16": DType.BF16}
FIRST_WITH_BFLOAT16: Final = (8, 0)
FIRST_WITH_MMA: Final = (7, 5)
FINISH_ALIGNMENT: Final = 64  # floats of the vectors that the kernels finish with


class MmaWeights(NamedTuple):
    """What the kernels read beside their input, in their order; the vectors have a float for each output."""

    weight: Pointer  # (outputs, K) of the element
    dequant: Pointer  # what takes the scales of weights and input out of a sum
    bias: Pointer
    out_scale: Pointer  # what outputs are multiplied by before they are stored


def x_element(layer: OpContext[Op]) -> DType:
    """What x is multiplied as."""
    if layer.quantised is None:
        return ELEMENTS[layer.precision]
    return DType.S8 if layer.quantised.x.signed else DType.U8


def gives(layer: OpContext[Op], wanted: tuple[DType, ...]) -> DType:
    """float32 where the reader takes it, or nobody wants integers."""
    if DType.F32 in wanted and not layer.rescaled:  # with a factor it is converted for whom does not take it out
        return DType.F32
    if layer.quantised is None:
        return ELEMENTS[layer.precision]
    stored = layer.quantised.y
    return DType.F32 if stored is None else DType.S8 if stored.signed else DType.U8


def supports(layer: OpContext[Op]) -> bool:
    """Whether the device's tensor cores know the precision; the CPU emulates them."""
    if layer.quantised is None and layer.precision not in ELEMENTS:
        return False
    capability = layer.facts.compute_capability
    if layer.facts.kind == "cpu":
        return True
    return capability >= (FIRST_WITH_BFLOAT16 if layer.precision == "bf16" else FIRST_WITH_MMA)


def with_finish(weight: Pointer, layer: OpContext[Conv | Gemm], arena: WeightPacker) -> MmaWeights:
    """Packed weights and the vectors that go with them."""
    op, quantised = layer.op, layer.quantised
    outputs = op.weight.shape[0]
    ones = np.ones(outputs, np.float32)
    inverse = ones if quantised is None or quantised.y is None else ones * quantised.y.inverse
    vectors = (ones if quantised is None else quantised.dequant, op.bias, inverse)
    return MmaWeights(weight, *(arena.add_vector(vector, outputs, FINISH_ALIGNMENT) for vector in vectors))
