"""Where a measurement was made: machine, device, versions, commit, date, clocks. Looks, changes nothing."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from vgg16gpu import __version__
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu.compiler import cpu_name
from vgg16gpu.devices.cpu.device import named_threads
from vgg16gpu.program.types import HasFacts

_PACKAGES = (
    "numpy",
    "pillow",
    "simplejpeg",
    "onnx",
    "pycuda",
    "cuda-bindings",
    "pillow",
    "simplejpeg",
    "nvidia-nvjpeg",
    "nvidia-nvjpeg-cu12",
    "onnxruntime",
    "onnxruntime-gpu",
    "torch",
    "torchvision",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "jax",
    "jaxlib",
    "tensorrt",
)
_READINGS = ("index", "name", "clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
_TIMEOUT = 20  # seconds, for nvidia-smi and git


def environment(device: HasFacts) -> dict[str, Any]:
    """Return everything that a reader of a figure may ask about the place where it was taken."""
    return {
        **host(),
        "device": {name: value for name, value in vars(device.facts).items() if name not in ("shares_sums", "tuned")},
        "cuda": _cuda_versions(device),
    }


def host() -> dict[str, Any]:
    """Return the part of the environment that is not the device's."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"vgg16gpu": __version__, "python": platform.python_version(), **package_versions()},
        "commit": commit(Path(__file__).resolve().parents[3]),
    }


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages that matter; nothing is imported."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> dict[str, Any] | None:
    """Return the git commit of a checkout and whether tracked files differ from it; None without a checkout."""
    if not (folder / ".git").exists():
        return None
    head = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    changes = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"hash": head.strip(), "dirty": bool(changes.strip())} if head and changes is not None else None


def gpu_readings(kind: str) -> list[Mapping[str, str]]:
    """Return clocks (MHz), power (W) and temperature (°C) of every card from nvidia-smi; empty without it."""
    if kind != "cuda":
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(_READINGS)}", "--format=csv,noheader,nounits"]
    lines = (_output(command) or "").splitlines()
    rows = csv.reader(lines, skipinitialspace=True)
    return [dict(zip(_READINGS, row, strict=True)) for row in rows if len(row) == len(_READINGS)]


def worker_threads(device: Device) -> int:
    """Return the threads that the cpu device computes with: VGG16GPU_THREADS, else all cores."""
    return named_threads() or device.facts.multiprocessors


def _cuda_versions(device: HasFacts) -> dict[str, str]:
    versions = getattr(device, "versions", None)  # the cpu device has none
    return dict(versions()) if versions else {}


def _output(command: Sequence[str]) -> str | None:
    """Return a command's output; None if it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
