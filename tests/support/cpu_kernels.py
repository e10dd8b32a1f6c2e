"""Run one kernel of tests/fixtures on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.program.launch import Argument, Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Arena, Pointer

FIXTURES = Path(__file__).parents[1] / "fixtures"

Array: TypeAlias = npt.NDArray[Any]


def fixture_kernel(name: str, file: str = "basics.cu", **defines: int) -> Kernel:
    """A kernel of tests/fixtures."""
    return Kernel(str(FIXTURES / file), name, tuple(defines.items()))


def launch(
    device: CpuDevice,
    kernel: Kernel,
    arguments: Sequence[Array | int | float],
    *,
    grid: tuple[int, ...] = (1,),
    block: tuple[int, ...] = (32,),
    shared: int = 0,
) -> None:
    """Run `kernel` on copies of the arrays, each in an allocation of its own, and copy them all back."""
    device.build([kernel])
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    addresses = [device.allocate(array.nbytes) for array in arrays]
    base = min(addresses, default=0)
    offsets = iter(addresses)
    bound: list[Argument] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            bound.append(Pointer(Arena.ACTIVATIONS, next(offsets) - base))
        else:
            bound.append(Scalar(argument, "f" if isinstance(argument, float) else "i"))
    step = KernelLaunch(kernel, Dim3(*grid), Dim3(*block), tuple(bound), shared)
    run = device.bind([step], {Arena.ACTIVATIONS: base})
    for array, address in zip(arrays, addresses, strict=True):
        device.copy_in(address, array)
    try:
        run()
        device.synchronize()
        for array, address in zip(arrays, addresses, strict=True):
            device.copy_out(array, address)
    finally:
        for address in addresses:
            device.free(address)
