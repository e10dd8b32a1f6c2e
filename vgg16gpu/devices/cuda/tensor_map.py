"""Tensor maps of the bulk copy engine (CUDA driver API, "Tensor Map Object Management"), through cuda-bindings."""

from __future__ import annotations

from typing import Any

from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import TmaDescriptor
from vgg16gpu.program.types import DType

_DATA_TYPES = {
    DType.F32: "FLOAT32",
    DType.F16: "FLOAT16",
    DType.F16_PAIR: "FLOAT16",  # the planes follow each other along the outermost dimension
    DType.BF16: "BFLOAT16",
    DType.U8: "UINT8",
    DType.S8: "UINT8",  # moved, not read: the sign does not matter
}
_SWIZZLES = {128: "128B", 64: "64B", 32: "32B"}


def encode(bindings: Any, name: str, tensor: TmaDescriptor, address: int) -> bytes:
    """The 128 bytes that a kernel takes by value. Raises KernelError, naming the step, for a map that cannot be."""
    data_types = bindings.CUtensorMapDataType
    swizzle = _SWIZZLES.get(tensor.swizzle_nbytes, "NONE")
    rank = len(tensor.dimensions)
    error, made = bindings.cuTensorMapEncodeTiled(
        getattr(data_types, f"CU_TENSOR_MAP_DATA_TYPE_{_DATA_TYPES[tensor.element]}"),
        rank,
        address,
        [bindings.cuuint64_t(size) for size in tensor.dimensions],
        [bindings.cuuint64_t(stride) for stride in tensor.strides],
        [bindings.cuuint32_t(size) for size in tensor.box],
        [bindings.cuuint32_t(1)] * rank,
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != bindings.CUresult.CUDA_SUCCESS:
        raise KernelError(f"{name}: no tensor map of {tensor.dimensions} in boxes of {tensor.box}: {error}")
    return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)
