"""Where vgg16gpu runs: Linux on x86-64 or aarch64; and how much of a machine this process may use.

Standard library only, so that it runs in an environment that has nothing yet.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
from pathlib import Path

from vgg16gpu.errors import DeviceError

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def supported_machine() -> str:
    """The architecture, "x86_64" or "aarch64". Raises DeviceError anywhere else than on Linux on one of these."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine.lower() not in _MACHINES:
        raise DeviceError(
            f"{system} on {machine} is not supported: vgg16gpu runs on Linux, x86-64 or aarch64 (on Windows, in WSL 2)"
        )
    return _MACHINES[machine.lower()]


def usable_cores() -> int:
    """The cores that this process may use: its CPU affinity, and a container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, math.ceil(int(quota) / int(period)))) if quota.isdigit() else cores


def machine_memory() -> tuple[int, int]:
    """Bytes of memory that this process may use, and bytes that are free now."""
    total, free = mmap.PAGESIZE, mmap.PAGESIZE
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemTotal":
            total = int(amount.split()[0]) * 1024
        elif name == "MemAvailable":
            free = int(amount.split()[0]) * 1024
    for path in _CGROUP_LIMITS:  # a container's share
        limit = _read(path).strip()
        if limit.isdigit():
            total = min(total, int(limit))
    return total, min(free, total)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
