"""Versions of what lies under the kernels, for records of a measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vgg16gpu.devices.cuda.compiler import find_nvcc
from vgg16gpu.devices.cuda.probe import dotted, run_quietly


def cuda_versions(driver: Any) -> Mapping[str, str]:
    """What the driver, the packages and nvcc (which is started) say. "none" is not there, "unknown" does not say."""
    newest = driver.get_driver_version()
    major, minor, _ = driver.get_version()
    return {
        "driver": _driver_release(),
        "driver_cuda": dotted((newest // 1000, newest % 1000 // 10)),
        "cuda": dotted((major, minor)),  # that PyCUDA or cuda-bindings was built with
        "pycuda": _version("pycuda"),
        "cuda_bindings": _version("cuda-bindings"),
        "nvcc": _nvcc_release(),
    }


def _driver_release() -> str:
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)*)\s", text):
            return found[1]
    return "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _nvcc_release() -> str:
    nvcc = find_nvcc()
    return "none" if nvcc is None else nvcc_release(nvcc)


def nvcc_release(nvcc: Path) -> str:
    """The release of a compiler, which is started, such as "13.0.88"; "unknown" if it does not say."""
    found = re.search(r"V(\d+\.\d+\.\d+)", run_quietly([str(nvcc), "--version"]).stdout)
    return found[1] if found else "unknown"
