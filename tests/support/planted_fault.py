"""Run one kernel of fixtures/faults.cu on the cpu device that the environment asks for; see test_sanitize.py."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from tests.support.cpu_kernels import Array, fixture_kernel, launch
from vgg16gpu.devices.cpu.device import CpuDevice

ARGUMENTS: dict[str, Callable[[Array, Array], list[Array | int | float]]] = {
    "missing_barrier": lambda y, x: [y, x[:64]],
    "global_overrun": lambda y, x: [y, x[:64], 64],
    "shared_overrun": lambda y, x: [y, x[:64]],
    "dynamic_overrun": lambda y, _: [y],
    "misaligned": lambda y, x: [y, x],
    "integer_overflow": lambda y, _: [y.view(np.int32), 40_000],
}


def main(name: str) -> None:
    """Run the kernel; a sanitizer ends the process before the last line."""
    x, y = np.ones(260, np.float32), np.zeros(64, np.float32)
    device = CpuDevice()
    shared = 256 if name == "dynamic_overrun" else 0
    launch(device, fixture_kernel(name, "faults.cu"), ARGUMENTS[name](y, x), block=(64,), shared=shared)
    print("nobody noticed")


if __name__ == "__main__":
    main(sys.argv[1])
