"""What a ReLU, and the pool behind it, hand back in one pass: the Python side of kernels/general/masked_gradient.cu."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from vgg16gpu.compiler.graph.gradient_ops import MaskedGradient
from vgg16gpu.compiler.op_kernels import mma, mma_pairs, wgmma
from vgg16gpu.compiler.op_kernels.activation import CLIPS, ends
from vgg16gpu.compiler.op_kernels.base import (
    MultiOpKernel,
    NoWeights,
    OpContext,
    OpMemory,
    ceil_div,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.op_kernels.strided import view
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar, StridedIndexer
from vgg16gpu.program.types import DType, Layout, TensorDesc

SOURCE: Final = "masked_gradient.cu"
THREADS: Final = 128
PIXELS: Final = 4  # of a thread
VECTOR: Final = 8  # channels of a thread, at most
MAX_GRADIENTS: Final = 4
_F32: Final = DType.F32


def kernel(x: Sequence[DType], y: DType, pools: bool, width: int, *, factors: int = 0, clips: bool = False) -> Kernel:
    """Return the kernel for a map and gradients of elements `x`, and a result of element `y`.

    factors: a bit for each gradient that has one for each image. clips: whether the map is a Clip's result.
    """
    map_, *gradients = x
    element = next((each for each in (*gradients, y, map_) if each is not DType.F32), DType.F32)
    macros = {"ELEMENT": element.number, "OUT": y.number, "POOL": int(pools), "GRADIENTS": len(x) - 1}
    floats = sum(1 << k for k, each in enumerate(x) if each is DType.F32 and element is not DType.F32)
    further = [(name, number) for name, number in (("FACTORS", factors), ("SCALED", _is_scaled(y))) if number]
    further += [("MAP", map_.number)] if map_ not in (element, DType.F32) else []
    further += [CLIPS] if clips else []
    return Kernel(SOURCE, "masked_gradient", (*macros.items(), ("FLOATS", floats), ("VECTOR", width), *further))


def _is_scaled(y: DType) -> int:
    """Return 1 if a result of this element has a factor for each image, which float16 needs for gradients."""
    return int(y in (DType.F16, DType.F16_PAIR))


def _variants(element: DType, out: DType, width: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield the macros of a perceptual loss: one or two gradients in the map's element or in float32."""
    for pools in (False, True):
        for gradients in ((element,), (_F32,), (element, _F32), (_F32, _F32)):
            factors = int(element in (DType.F16, DType.F16_PAIR) and gradients[0] is element)
            yield kernel((element, *gradients), out, pools, width, factors=factors).defines


def _clip_variants() -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield the macros for a Clip's map, as each precision stores it, with two gradients."""
    for element, out, width in ((_F32, _F32, 4), (DType.F16, _F32, 8), (DType.BF16, DType.BF16, 8)):
        for pools in (False, True):
            yield kernel((element, _F32, _F32), out, pools, width, clips=True).defines


VARIANTS = tuple(
    dict.fromkeys(
        defines
        for element, out, width in (
            *((_F32, _F32, width) for width in (1, 4)),
            *((DType.F16, _F32, width) for width in (1, 4, 8)),
            (DType.F16, DType.F16, 8),
            (DType.BF16, _F32, 8),
            (DType.BF16, DType.BF16, 8),
            *((DType.F16_PAIR, _F32, width) for width in (1, 4, 8)),
            (DType.F16_PAIR, DType.F16_PAIR, 8),
        )
        for defines in _variants(element, out, width)
    )
)
VARIANTS += tuple(_clip_variants())
VARIANTS += tuple(
    kernel((DType.F16_PAIR, *gradients), DType.F16, True, 8, factors=1).defines
    for gradients in ((DType.F16,), (DType.F16, _F32))
)  # tools/ptxas.py


def steps(
    layer: OpContext[MaskedGradient], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch. x: the result of the ReLU or the Clip, then gradients."""
    del held
    op, gradients = layer.op, x[1:]
    batch, channels, height, width = y.shape
    stored = y.pitch if y.layout is Layout.NHWC else channels
    missing = MAX_GRADIENTS - len(gradients)
    vector = _vector((y, *x))
    grid, block = _launch(op, height, width, ceil_div(stored, vector))
    how = places.rescaling
    rows = [_strides(value) for value in (y, *x)]
    return (
        KernelLaunch(
            kernel=kernel(
                [value.element for value in x],
                y.element,
                op.pools,
                vector,
                factors=sum(1 << k for k, value in enumerate(gradients) if value.factor),
                clips=op.range is not None,
            ),
            grid=grid._replace(z=batch),
            block=block,
            arguments=(
                *(value.pointer for value in (y, *x, *missing * x[:1])),
                *(value.factor or value.pointer for value in (*gradients, *missing * x[:1])),
                *(how.bounds if how else ()),
                *(MAX_GRADIENTS - len(how.bounds if how else ())) * (y.pointer,),
                *(y.factor or y.pointer, places.maxima),
                StridedIndexer(((batch, height, width, stored, channels), *rows)),
                *scalars(how.exponent if how else 0, how.growth if how else 0),
                *(Scalar(end, "f") for end in (ends(op.range, layer.precision) if op.range else ())),
            ),
            flop=(len(gradients) + 3 * op.pools) * math.prod(y.shape),
            nbytes=sum(value.nbytes for value in (y, *x)),
            names=op.names,
            label=f"gradient of {'clip' if op.range else 'relu'}" + " and pool" * op.pools,
        ),
    )


def _launch(op: MaskedGradient, height: int, width: int, vectors: int) -> tuple[Dim3, Dim3]:
    """Return the grid of one image with `vectors` vectors a pixel, and a block."""
    side, columns = (2, 1) if op.pools else (1, PIXELS)  # of a thread's pixels
    places_across = ceil_div(width, side * columns)
    lanes = min(vectors, THREADS)
    block = Dim3(lanes, min(THREADS // lanes, places_across))
    return Dim3(ceil_div(places_across, block.y), ceil_div(height, side)), block


def _supports_wgmma(layer: OpContext[MaskedGradient]) -> bool:
    return mma.supports(layer) or wgmma.stores_pairs(layer)


def _supports_mma(layer: OpContext[MaskedGradient]) -> bool:
    return mma.supports(layer) or mma_pairs.stores_pairs(layer)


def _input_dtypes(layer: OpContext[MaskedGradient]) -> tuple[DType, ...]:
    element = wgmma.ELEMENTS[layer.precision]
    if element is DType.F16 and layer.op.pools:  # equal maxima differ in what rounding left
        return element, DType.F16_PAIR, DType.F32
    # Limits are compared with what maps mean: pairs, which hold it times a scale, are converted.
    return (DType.F32,) if layer.op.range and element is DType.F16_PAIR else (element, DType.F32)


def _output_dtype(layer: OpContext[MaskedGradient], wanted: tuple[DType, ...]) -> DType:
    """Return bfloat16 if a reader multiplies it, else float32; for float16's factors the planner decides."""
    return DType.BF16 if layer.precision == "bf16" and DType.BF16 in wanted else DType.F32


def _strides(value: TensorDesc) -> tuple[int, ...]:
    """Return strides of (n, h, w, c), in elements."""
    image, channel, row, column = view(value).strides
    return image, row, column, channel


def _vector(values: Sequence[TensorDesc]) -> int:
    """Return how many neighbouring channels a thread takes; 1 where they do not all lie side by side."""
    if any(value.layout is not Layout.NHWC for value in values):
        return 1
    width = 4 if all(value.element is DType.F32 for value in values) else VECTOR
    return width if all(value.pitch % width == 0 for value in values) else 4


OP_KERNELS = (
    MultiOpKernel(MaskedGradient, steps, no_weights, any_layout=True, reads_factors=True),
    *(
        MultiOpKernel(
            MaskedGradient,
            steps,
            no_weights,
            family=family,
            supports=supports,
            input_dtypes=_input_dtypes,
            output_dtype=_output_dtype,
            any_layout=True,
            rescales=True,
            reads_factors=True,
        )
        for family, supports in (("wgmma", _supports_wgmma), ("mma", _supports_mma))
    ),
)
