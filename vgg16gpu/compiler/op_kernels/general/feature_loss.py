"""Losses between features and their gradients: the Python side of kernels/general/feature_loss.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.loss import THREADS, FeatureLoss, blocks, lanes, pixels_and_channels
from vgg16gpu.compiler.op_kernels import mma, mma_pairs, wgmma
from vgg16gpu.compiler.op_kernels.base import MultiOpKernel, NoWeights, OpContext, OpMemory, no_weights, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import DType, Layout, TensorDesc

SOURCE = "feature_loss.cu"
_STORED = tuple(mma.ELEMENTS.values())


def target_elements(precision: str) -> tuple[DType, ...]:
    """Return the dtypes that the target of a map may have."""
    return (DType.F32, *((mma.ELEMENTS[precision],) if precision in mma.ELEMENTS else ()))


def _macros(feature: DType, target: DType, *, largest: bool = False) -> tuple[tuple[str, int], ...]:
    pairs = {"FEATURE": feature, "TARGET": target}
    elements = tuple((name, element.number) for name, element in pairs.items() if element is not DType.F32)
    return (*elements, *((("LARGEST", 1),) if largest else ()))


VARIANTS = (
    (),
    *(_macros(*pair) for e in _STORED for pair in ((e, DType.F32), (DType.F32, e), (e, e))),
    *(
        _macros(DType.F16_PAIR, element, largest=largest)
        for element in (DType.F32, DType.F16_PAIR)
        for largest in (False, True)
    ),
    _macros(DType.F16, DType.F16, largest=True),
)  # tools/ptxas.py


def steps(
    layer: OpContext[FeatureLoss], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch. x: the feature, its target and, for unit vectors, a weight for each channel."""
    del held
    op, (feature, target, *weights) = layer.op, x
    pixels, channels = pixels_and_channels(feature.shape)
    is_unit, is_absolute = op.distance == "unit", op.distance == "absolute"
    cotangent = places.further[0] if places.further else None
    flags = (() if is_unit else (int(is_absolute),), (int(cotangent is not None),))
    return (
        KernelLaunch(
            kernel=Kernel(
                SOURCE,
                "unit_loss_f32" if is_unit else "feature_loss_f32",
                _macros(feature.element, target.element, largest=places.bound is not None),
            ),
            grid=Dim3(blocks(op, feature.shape), feature.shape[0]),
            block=Dim3(THREADS),
            arguments=(
                *(y.pointer, (cotangent or y).pointer, feature.pointer, feature.scale or feature.pointer),
                *(target.pointer, target.scale or target.pointer, *(value.pointer for value in weights)),
                places.bound or y.pointer,
                *scalars(pixels, channels, _pitch(feature), _pitch(target, channels), _pitch(cotangent or feature)),
                *scalars(*((lanes(channels),) if is_unit else ())),
                *(Scalar(op.weight, "f"), Scalar(op.weight if is_absolute else 2 * op.weight, "f")),
                *scalars(*(flag for group in flags for flag in group)),
            ),
            flop=(12 if is_unit else 3) * math.prod(feature.shape),
            nbytes=feature.nbytes + target.nbytes + y.nbytes + sum(value.nbytes for value in places.further),
            names=op.names,
            label=f"{op.distance} loss",
        ),
    )


def _pitch(value: TensorDesc, channels: int | None = None) -> int:
    """Return the elements from a pixel, or a row of a matrix, to the next. channels: of a target from outside."""
    return value.pitch if value.layout is Layout.NHWC else channels or pixels_and_channels(value.shape)[1]


def _supports_stored(layer: OpContext[FeatureLoss]) -> bool:
    """Return whether x is a map as tensor cores store it; a Gram matrix is float32."""
    return len(layer.x_shape) == 4 and (mma.supports(layer) or mma_pairs.stores_pairs(layer))


def _supports_wgmma(layer: OpContext[FeatureLoss]) -> bool:
    """Return whether x is a map as Hopper's tensor cores store it, pairs included."""
    return len(layer.x_shape) == 4 and (mma.supports(layer) or wgmma.stores_pairs(layer))


def _input_dtypes(layer: OpContext[FeatureLoss]) -> tuple[DType, ...]:
    """Return the dtypes that tensor cores store, for fp16 pairs too, and float32."""
    rest = (DType.F16_PAIR,) if layer.precision == "fp16" else ()
    return (wgmma.ELEMENTS[layer.precision], *rest, DType.F32)


OP_KERNELS = (
    MultiOpKernel(FeatureLoss, steps, no_weights, finds_bound=True),
    *(
        MultiOpKernel(
            FeatureLoss,
            steps,
            no_weights,
            family=family,
            supports=supports,
            input_dtypes=_input_dtypes,
            finds_bound=True,
        )
        for family, supports in (("wgmma", _supports_wgmma), ("mma", _supports_stored))
    ),
)
