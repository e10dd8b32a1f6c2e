"""Where vgg16gpu runs: Linux on x86-64 or aarch64; and how much of a machine this process may use.

Standard library only, so that it runs in an environment that has nothing yet.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from vgg16gpu.errors import DeviceError

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")


class _Memory(NamedTuple):
    """Where a version of control groups tells of memory: a folder of `_CGROUPS`, files of each group, a line."""

    folder: str
    limit: str
    usage: str
    cache: str  # of memory.stat: file pages that nobody has used of late, which go when memory is needed


_VERSION_1: Final = _Memory("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2: Final = _Memory("", "memory.max", "memory.current", "inactive_file")


def supported_machine() -> str:
    """Return the architecture, "x86_64" or "aarch64". Raises DeviceError except on Linux on one of these."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine.lower() not in _MACHINES:
        raise DeviceError(
            f"{system} on {machine} is not supported: vgg16gpu runs on Linux, x86-64 or aarch64 (on Windows, in WSL 2)"
        )
    return _MACHINES[machine.lower()]


def usable_cores() -> int:
    """Return the cores that this process may use: its CPU affinity, and a container's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, math.ceil(int(quota) / int(period)))) if quota.isdigit() else cores


def machine_memory() -> tuple[int, int]:
    """Return the memory that this process may use, and what is free of it, of machine and container, in bytes."""
    total, free = mmap.PAGESIZE, mmap.PAGESIZE
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemTotal":
            total = int(amount.split()[0]) * 1024
        elif name == "MemAvailable":
            free = int(amount.split()[0]) * 1024
    for limit, left in _shares():
        total, free = min(total, limit), min(free, left)
    return total, min(free, total)


def _shares() -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes left of it) of each control group that this process is in and that has a limit.

    A container sees its own group as the outermost one. Limits of all groups around a process hold.
    """
    groups = {(_VERSION_1, "/"): None, (_VERSION_2, "/"): None}
    for line in _read(_OWN_CGROUPS).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers or "memory" in controllers.split(","):
            version = _VERSION_1 if controllers else _VERSION_2
            groups |= {(version, str(place)): None for place in (Path(path), *Path(path).parents)}
    for version, path in groups:
        group = _CGROUPS / version.folder / path.lstrip("/")
        limit, usage = _read(group / version.limit).strip(), _read(group / version.usage).strip()
        if limit.isdigit():
            used = int(usage) - _statistic(group, version.cache) if usage.isdigit() else 0
            yield int(limit), max(0, int(limit) - max(0, used))


def _statistic(group: Path, name: str) -> int:
    for line in _read(group / "memory.stat").splitlines():
        key, _, number = line.partition(" ")
        if key == name and number.strip().isdigit():
            return int(number)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
