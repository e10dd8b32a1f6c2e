"""Numbers as they are stored: how images lie on the host, and what the memory of a value stands for."""

from __future__ import annotations

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Dim
from vgg16gpu.devices.base import Bytes
from vgg16gpu.program.types import DType, TensorDesc


def image_shape(shape: tuple[Dim, ...], element_type: str) -> tuple[Dim, ...]:
    """How images of a shape (N, C, H, W) lie on the host: bytes have the channels last."""
    return shape[:1] + shape[2:] + shape[1:2] if element_type == "uint8" else shape


def decoded(value: TensorDesc, stored: Bytes) -> Array:
    """The numbers in the memory of a value, in its stored shape, as float32; scales of pairs are left in."""
    planes = stored.reshape(value.element.planes, -1)
    numbers: Array
    match value.element:
        case DType.F32:
            numbers = planes[0].view(np.float32)
        case DType.BF16:
            numbers = (planes[0].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case DType.F16 | DType.F16_PAIR:
            with np.errstate(invalid="ignore"):  # halves of what float16 cannot hold: infinities of both signs
                numbers = planes.view(np.float16).astype(np.float32).sum(axis=0)
        case DType.U8:
            numbers = planes[0].astype(np.float32) * np.float32(value.step)
        case DType.S8:
            numbers = planes[0].view(np.int8).astype(np.float32) * np.float32(value.step)
    return numbers.reshape(value.stored_shape)
