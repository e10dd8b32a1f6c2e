"""Losses between features and their gradients: the Python side of kernels/general/feature_loss.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.loss_ops import MAX_ROWS, FeatureLoss, RowSum, blocks, pixels_and_channels
from vgg16gpu.compiler.lowering.base import BLOCK, Layer, MultiLowering, NoWeights, Places, no_weights, scalars
from vgg16gpu.program.launches import Dim3, Kernel, Scalar, Step
from vgg16gpu.program.values import Layout, Value

SOURCE = "feature_loss.cu"


def steps(
    layer: Layer[FeatureLoss], x: tuple[Value, ...], y: Value, held: NoWeights, places: Places
) -> tuple[Step, ...]:
    """One launch. x: the feature, its target and, for unit vectors, a weight for each channel."""
    del held
    op, (feature, target, *weights) = layer.op, x
    pixels, channels = pixels_and_channels(feature.shape)
    pitch = feature.pitch if feature.layout is Layout.NHWC else channels
    is_unit, is_absolute = op.distance == "unit", op.distance == "absolute"
    cotangent = places.further[0] if places.further else y
    flags = (() if is_unit else (int(is_absolute),), (int(bool(places.further)),))
    return (
        Step(
            kernel=Kernel(SOURCE, "unit_loss_f32" if is_unit else "feature_loss_f32"),
            grid=Dim3(blocks(op, feature.shape), feature.shape[0]),
            block=Dim3(BLOCK),
            arguments=(
                *(value.pointer for value in (y, cotangent, feature, target, *weights)),
                *scalars(pixels, channels, pitch),
                *(Scalar(op.weight, "f"), Scalar(op.weight if is_absolute else 2 * op.weight, "f")),
                *scalars(*(flag for group in flags for flag in group)),
            ),
            flop=(12 if is_unit else 3) * math.prod(feature.shape),
            nbytes=feature.nbytes + target.nbytes + y.nbytes + sum(value.nbytes for value in places.further),
            names=op.names,
            label=f"{op.distance} loss",
        ),
    )


def sum_steps(
    layer: Layer[RowSum], x: tuple[Value, ...], y: Value, held: NoWeights, places: Places
) -> tuple[Step, ...]:
    """One launch."""
    del held, places
    missing = MAX_ROWS - len(x)
    return (
        Step(
            kernel=Kernel(SOURCE, "row_sum_f32"),
            grid=Dim3(y.shape[0]),
            block=Dim3(BLOCK),
            arguments=(
                *(value.pointer for value in (y, *x, *missing * x[:1])),
                *scalars(*(math.prod(value.shape[1:]) for value in x), *(0,) * missing),
            ),
            flop=sum(math.prod(value.shape) for value in x),
            nbytes=sum(value.nbytes for value in x) + y.nbytes,
            names=layer.op.names,
            label="sum of losses",
        ),
    )


LOWERINGS = (MultiLowering(FeatureLoss, steps, no_weights), MultiLowering(RowSum, sum_steps, no_weights))
