"""`__constant__` arrays: their addresses, what kernels read there, and what is said of those that are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Arena, Pointer

SOURCE = str(Path(__file__).parents[1] / "fixtures" / "constants.cu")
KERNEL = Kernel(SOURCE, "scale_and_shift")
LONGER = Kernel(SOURCE, "scale_and_shift", (("LENGTH", 6),))
COPY = Kernel(SOURCE, "copy_factors")
COUNT = 1000


def run(device: Device, kernel: Kernel, x: np.ndarray | None = None) -> np.ndarray:
    """What the kernel makes of x; without x, one that takes y alone, of 32 threads."""
    count = 32 if x is None else len(x)
    y = np.full(count, np.nan, np.float32)
    address = device.allocate(2 * 4096)
    try:
        device.copy_in(address, y)
        arguments: tuple[Pointer | Scalar, ...] = (Pointer(Arena.ACTIVATIONS, 0),)
        if x is not None:
            device.copy_in(address + 4096, x)
            arguments += (Pointer(Arena.ACTIVATIONS, 4096), Scalar(count))
        step = KernelLaunch(kernel, Dim3(-(-count // 32)), Dim3(32), arguments)
        launch = device.bind([step], {Arena.ACTIVATIONS: address})
        launch()
        device.copy_out(y, address)
        device.synchronize()
        device.unbind(launch)
        return y
    finally:
        device.free(address)


def fill(device: Device, kernel: Kernel, factors: np.ndarray, shifts: np.ndarray) -> None:
    device.build([kernel])
    device.copy_in(device.constant(kernel, "factors"), factors)
    device.copy_in(device.constant(kernel, "shifts"), shifts)


@pytest.mark.sanitize
def test_kernels_read_what_was_copied_there(device: Device) -> None:
    """And again what was copied later; arrays of other macros are other arrays."""
    x, shifts = np.arange(COUNT, dtype=np.float32), np.array([[1, 2], [3, 4]], np.int32)
    fill(device, LONGER, np.full(6, -1, np.float32), -shifts)
    for factors in (np.array([1, 2, 3, 4], np.float32), np.array([5, 6, 7, 8], np.float32)):
        fill(device, KERNEL, factors, shifts)
        assert np.array_equal(run(device, KERNEL, x), np.tile(factors, COUNT // 4) * x + 10)
        device.build([COPY])
        assert device.constant(COPY, "factors") == device.constant(KERNEL, "factors")
        assert np.array_equal(run(device, COPY), np.tile(factors, 8))
    assert np.array_equal(run(device, LONGER, x), -x - 10)


@pytest.mark.sanitize
def test_copies_on_the_device_and_back(device: Device) -> None:
    device.build([KERNEL])
    place, factors = device.allocate(16), np.array([2, 3, 5, 7], np.float32)
    device.copy_in(place, factors)
    constant = device.constant(KERNEL, "factors")
    device.copy_on_device(constant, place, 16)
    device.zero(constant + 12, 4)
    back = np.empty_like(factors)
    device.copy_out(back, constant)
    device.synchronize()
    device.free(place)
    assert back.tolist() == [2, 3, 5, 0]


def test_an_unknown_name_is_refused_with_what_to_write(device: Device) -> None:
    device.build([KERNEL])
    for name in ("missing", "scale_and_shift"):
        remedy = rf"constants\.cu has no __constant__ array '{name}'.*: __constant__ float {name}\[LENGTH\];"
        with pytest.raises(KernelError, match=remedy):
            device.constant(KERNEL, name)


def test_a_kernel_that_is_not_built_is_refused(device: Device) -> None:
    with pytest.raises(KernelError, match="not built"):
        device.constant(Kernel(SOURCE, "scale_and_shift", (("LENGTH", 7),)), "factors")


def test_copies_beyond_the_array_are_refused() -> None:
    device = CpuDevice()
    device.build([KERNEL])
    address = device.constant(KERNEL, "factors")
    with pytest.raises(DeviceError, match="do not lie inside device memory"):
        device.copy_in(address + 4, np.zeros(4, np.float32))
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.constant(KERNEL, "factors")
