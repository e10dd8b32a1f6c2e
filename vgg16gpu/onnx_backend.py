"""runtime/onnx_backend.py by the name that people know."""

from vgg16gpu.runtime.onnx_backend import (
    RefusedError,
    VggBackend,
    VggBackendRep,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = [
    "RefusedError",
    "VggBackend",
    "VggBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
