"""Where vgg16gpu runs: Linux on x86-64 or aarch64."""

from __future__ import annotations

import platform

from vgg16gpu.errors import DeviceError

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def supported_machine() -> str:
    """The architecture, "x86_64" or "aarch64". Raises DeviceError anywhere else than on Linux on one of these."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine.lower() not in _MACHINES:
        raise DeviceError(
            f"{system} on {machine} is not supported: vgg16gpu runs on Linux, x86-64 or aarch64 (on Windows, in WSL 2)"
        )
    return _MACHINES[machine.lower()]
