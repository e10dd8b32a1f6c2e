"""Which package drives a card: PyCUDA, or cuda-bindings where PyCUDA, which must be compiled, cannot be had.

With PyCUDA nvcc compiles kernels, where there is one; with cuda-bindings NVRTC does. The environment variable
VGG16GPU_CUDA chooses: `pycuda` or `bindings`; without it PyCUDA is taken where it is installed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vgg16gpu.devices.cuda.probe import DRIVER_LIBRARY
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import DeviceError
from vgg16gpu.io.shown import shown

CudaDriver: TypeAlias = Any  # pycuda.driver, which has no annotations, or `bindings_driver`, which has its names
Package: TypeAlias = Literal["pycuda", "bindings"]

VARIABLE = "VGG16GPU_CUDA"


def chosen_package() -> Package:
    """Return what VGG16GPU_CUDA names, else the package that is installed. Raises DeviceError for another name."""
    text = os.environ.get(VARIABLE, "").strip()
    if text in ("pycuda", "bindings"):
        return "pycuda" if text == "pycuda" else "bindings"
    if text:
        raise DeviceError(f"{VARIABLE}={shown(text)} is not pycuda or bindings; correct it or unset it")
    return "bindings" if find_spec("pycuda") is None and has_bindings() else "pycuda"


def has_bindings() -> bool:
    """Tell whether cuda-bindings is installed; it is not imported."""
    found = find_spec("cuda")  # a namespace of several packages
    return any((Path(folder) / "bindings").is_dir() for folder in (found and found.submodule_search_locations) or ())


def load_driver() -> CudaDriver:
    """Return the driver's functions, initialised. Raises DeviceError: what is missing, and what to do, in a line."""
    package = chosen_package()
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError as error:
        raise DeviceError(f"no NVIDIA driver ({DRIVER_LIBRARY}) found") from error
    driver = _import_pycuda() if package == "pycuda" else _import_bindings()
    try:
        with stage("driver"):
            driver.init()
    except driver.Error as error:
        raise DeviceError(f"the NVIDIA driver does not start: {error}") from error
    return driver


def _import_pycuda() -> CudaDriver:
    try:
        with stage("import of PyCUDA"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyCUDA warns before it raises
            driver = importlib.import_module("pycuda.driver")  # only who opens a GPU pays, and needs it
            importlib.import_module("pycuda.compiler")  # used later; what it needs may be missing, which is said now
    except ImportError as error:
        raise DeviceError(import_problem(error)) from error
    return driver


def _import_bindings() -> CudaDriver:
    try:
        with stage("import of cuda-bindings"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("vgg16gpu.devices.cuda.bindings_driver")
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f"cuda-bindings does not load: {error} (python -m pip install cuda-bindings, in a version for the driver)"
        ) from error


def import_problem(error: ImportError) -> str:
    """Say why PyCUDA cannot be imported, and what to do."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "pycuda":
        return "PyCUDA is not installed (python -m vgg16gpu.cuda_setup installs what fits the driver)"
    if re.search(r"undefined symbol: cu[A-Z]", str(error)):
        return (
            f"PyCUDA is there but the NVIDIA driver is too old for it ({error}); "
            "update the driver, or build PyCUDA to fit it: python -m vgg16gpu.cuda_setup"
        )
    return f"PyCUDA does not load: {error} (python -m vgg16gpu.cuda_setup installs what is missing)"


def load_module(driver: CudaDriver, cubin: bytes) -> Any:
    """Load a cubin into the current context. Raises the driver's Error."""
    if driver.__name__ == "pycuda.driver":
        from vgg16gpu.devices.cuda.module import CachedModule  # noqa: PLC0415 - needs PyCUDA to import

        return CachedModule(cubin)
    return driver.module_from_buffer(cubin)
