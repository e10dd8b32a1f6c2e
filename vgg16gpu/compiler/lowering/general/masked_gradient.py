"""What a ReLU, and the pool behind it, hand back in one pass: the Python side of kernels/general/masked_gradient.cu."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from vgg16gpu.compiler.graph.gradient_ops import MaskedGradient
from vgg16gpu.compiler.lowering import mma
from vgg16gpu.compiler.lowering.base import (
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
THREADS: Final = 128
PIXELS: Final = 4  # of a thread
MAX_GRADIENTS: Final = 4
_F32: Final = Element.F32


def kernel(x: Sequence[Element], y: Element, pools: bool, width: int) -> Kernel:
    """The kernel compiled for a map and gradients of these elements, and a result of that."""
    element = next((each for each in (*x, y) if each is not Element.F32), Element.F32)
    macros = {"ELEMENT": element.number, "OUT": y.number, "POOL": int(pools), "GRADIENTS": len(x) - 1}
    floats = sum(1 << k for k, each in enumerate(x) if each is Element.F32 and element is not Element.F32)
    return Kernel(SOURCE, "masked_gradient", (*macros.items(), ("FLOATS", floats), ("VECTOR", width)))


def _variants(element: Element, out: Element, width: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Those of a perceptual loss, one or two gradients in the map's element or in float32."""
    for pools in (False, True):
        for gradients in ((element,), (_F32,), (element, _F32), (_F32, _F32)):
            yield kernel((element, *gradients), out, pools, width).defines


VARIANTS = tuple(
    dict.fromkeys(
        defines
        for element, out, width in (
            *((_F32, _F32, width) for width in (1, 4)),
            *((Element.F16, _F32, width) for width in (1, 4, 8)),
            (Element.BF16, _F32, 8),
            (Element.BF16, Element.BF16, 8),
        )
        for defines in _variants(element, out, width)
    )
)  # tools/ptxas.py


def steps(
    layer: Layer[MaskedGradient], x: tuple[Value, ...], y: Value, held: NoWeights, places: Places
) -> tuple[Step, ...]:
    """One launch. x: what the ReLU has given, then gradients."""
    del held, places
    op = layer.op
    batch, channels, height, width = y.shape
    stored = y.pitch if y.layout is Layout.NHWC else channels
    missing = MAX_GRADIENTS + 1 - len(x)
    vector = _vector((y, *x))
    side, columns = (2, 1) if op.pools else (1, PIXELS)  # of a thread's pixels
    places_across = ceil_div(width, side * columns)
    lanes = min(ceil_div(stored, vector), THREADS)
    block = Dim3(lanes, min(THREADS // lanes, places_across))
    rows = [_strides(value) for value in (y, *x)]
    return (
        Step(
            kernel=kernel([value.element for value in x], y.element, op.pools, vector),
            grid=Dim3(ceil_div(places_across, block.y), ceil_div(height, side), batch),
            block=block,
            arguments=(
                *(value.pointer for value in (y, *x, *missing * x[:1])),
                Walk(((batch, height, width, stored, channels), *rows)),
            ),
            flop=(len(x) - 1 + 3 * op.pools) * math.prod(y.shape),
            nbytes=sum(value.nbytes for value in (y, *x)),
            names=op.names,
            label="gradient of relu" + " and pool" * op.pools,
        ),
    )


def _takes(layer: Layer[MaskedGradient]) -> tuple[Element, ...]:
    return (mma.ELEMENTS[layer.precision], Element.F32)


def _gives(layer: Layer[MaskedGradient], wanted: tuple[Element, ...]) -> Element:
    """bfloat16 where that is multiplied; a float16 of a gradient needs a factor of its image first."""
    return Element.BF16 if layer.precision == "bf16" and Element.BF16 in wanted else Element.F32


def _strides(value: Value) -> tuple[int, ...]:
    """Of (n, h, w, c), in elements."""
    image, channel, row, column = view(value).strides
    return image, row, column, channel


def _vector(values: Sequence[Value]) -> int:
    """How many neighbouring channels a thread takes; 1 where they do not all lie side by side."""
    if any(value.layout is not Layout.NHWC for value in values):
        return 1
    width = 4 if all(value.element is Element.F32 for value in values) else 8
    return width if all(value.pitch % width == 0 for value in values) else 4


LOWERINGS = (
    MultiLowering(MaskedGradient, steps, no_weights, any_layout=True),
    *(
        MultiLowering(
            MaskedGradient,
            steps,
            no_weights,
            family=family,
            supports=mma.supports,
            takes=_takes,
            gives=_gives,
            any_layout=True,
        )
        for family in ("wgmma", "mma")
    ),
)
