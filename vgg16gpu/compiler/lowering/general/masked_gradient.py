"""What a ReLU, and the pool behind it, hand back in one pass: the Python side of kernels/general/masked_gradient.cu."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from vgg16gpu.compiler.graph.gradient_ops import MaskedGradient
from vgg16gpu.compiler.lowering import mma, wgmma
from vgg16gpu.compiler.lowering.base import (
    BLOCK,
    Layer,
    MultiLowering,
    NoWeights,
    Places,
    ceil_div,
    no_weights,
)
from vgg16gpu.compiler.lowering.strided import view
from vgg16gpu.program.launches import Dim3, Kernel, Step, Walk
from vgg16gpu.program.values import Element, Layout, Value

SOURCE: Final = "masked_gradient.cu"
WIDTH: Final = 4  # channels of a thread
MAX_GRADIENTS: Final = 4
_F32: Final = Element.F32
_FORMS: Final = ((_F32, _F32), (Element.F16, _F32), (Element.BF16, _F32), (Element.BF16, Element.BF16))
VARIANTS = tuple(
    (("ELEMENT", element.number), ("OUT", out.number), ("POOL", pool), *(("PARTS", 1) for _ in range(found)))
    for found, forms in ((0, (*_FORMS, (Element.F16_PAIR, _F32))), (1, ((_F32, _F32), (Element.F16_PAIR, _F32))))
    for element, out in forms
    for pool in (0, 1)
)  # tools/ptxas.py


def steps(
    layer: Layer[MaskedGradient], x: tuple[Value, ...], y: Value, held: NoWeights, places: Places
) -> tuple[Step, ...]:
    """One launch. x: what the ReLU has given, then gradients."""
    del held
    op, gradients = layer.op, x[1:]
    batch, channels, height, width = y.shape
    stored = y.pitch if y.layout is Layout.NHWC else channels
    element = next((value.element for value in (*x, y) if value.element is not Element.F32), Element.F32)
    missing = MAX_GRADIENTS - len(gradients)
    macros = {"ELEMENT": element.number, "OUT": y.element.number, "POOL": int(op.pools)}
    if places.parts:
        macros["PARTS"] = 1
    floats = _bits(value.element is Element.F32 for value in x)
    vectors = _bits(_lies_in_vectors(value) for value in (y, *x))
    rows = [_strides(value) for value in (y, *x)]
    return (
        Step(
            kernel=Kernel(SOURCE, "masked_gradient", tuple(macros.items())),
            grid=Dim3(_blocks(op, height, width, stored), batch),
            block=Dim3(BLOCK),
            arguments=(
                *(value.pointer for value in (y, *x, *missing * x[:1])),
                *(value.factor or value.pointer for value in (*gradients, *missing * x[:1])),
                places.parts or y.pointer,
                Walk(
                    (
                        (batch, height, width, stored, channels),
                        *(*rows, *missing * rows[:1]),
                        (len(gradients), floats, vectors),
                    )
                ),
            ),
            flop=(len(gradients) + 3 * op.pools) * math.prod(y.shape),
            nbytes=sum(value.nbytes for value in (y, *x)),
            names=op.names,
            label="gradient of relu" + " and pool" * op.pools,
        ),
    )


def _blocks(op: MaskedGradient, height: int, width: int, stored: int) -> int:
    """Of an image whose pixels have so many channels as they are stored."""
    side = 2 if op.pools else 1
    return ceil_div(ceil_div(height, side) * ceil_div(width, side) * ceil_div(stored, WIDTH), BLOCK)


def parts(layer: Layer[MaskedGradient]) -> int:
    """A block has one, where channels lie last."""
    _, channels, height, width = layer.x_shape
    return _blocks(layer.op, height, width, _F32.padded(channels))


def _supports_wgmma(layer: Layer[MaskedGradient]) -> bool:
    return mma.supports(layer) or wgmma.stores_pairs(layer)


def _takes(layer: Layer[MaskedGradient]) -> tuple[Element, ...]:
    return (wgmma.ELEMENTS[layer.precision], Element.F32)


def _gives(layer: Layer[MaskedGradient], wanted: tuple[Element, ...]) -> Element:
    """bfloat16 where that is multiplied; a float16 of a gradient needs a factor of its image first."""
    return Element.BF16 if layer.precision == "bf16" and Element.BF16 in wanted else Element.F32


def _strides(value: Value) -> tuple[int, ...]:
    """Of (n, h, w, c), in elements."""
    image, channel, row, column = view(value).strides
    return image, row, column, channel


def _lies_in_vectors(value: Value) -> bool:
    """Whether four neighbouring channels are one access: pitches are multiples of 4, and buffers are aligned."""
    return value.layout is Layout.NHWC


def _bits(flags: Iterable[bool]) -> int:
    return sum(bit << k for k, bit in enumerate(flags))


LOWERINGS = (
    MultiLowering(MaskedGradient, steps, no_weights, any_layout=True),
    *(
        MultiLowering(
            MaskedGradient,
            steps,
            no_weights,
            parts=parts,
            family=family,
            supports=supports,
            takes=_takes,
            gives=_gives,
            any_layout=True,
        )
        for family, supports in (("wgmma", _supports_wgmma), ("mma", mma.supports))
    ),
)
