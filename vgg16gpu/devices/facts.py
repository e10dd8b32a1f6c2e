"""What is known of a device to plan for, without bringing anything to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vgg16gpu.devices.cache import cache_dir
from vgg16gpu.devices.platforms import machine_memory, usable_cores
from vgg16gpu.devices.tuned import table
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.types import DeviceFacts

# NVIDIA H200 SXM, compute capability 9.0: 132 multiprocessors, 227 KB of shared memory a block, 141 GB (data sheet and
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
H200: Final = DeviceFacts(
    "cuda", "NVIDIA H200 (documented)", 132, (9, 0), 227 * 1024, 141 * 10**9, 141 * 10**9, tensor_maps=True
)


def device_facts(name: str) -> DeviceFacts:
    """Return facts of the device "cpu", "cuda" or "auto", without a compiler and, for the CPU, without a GPU.

    Where there is no GPU "auto" is the CPU, and "cuda" is an H200 as its data sheet has it, with the tiles that were
    measured on one. "cuda:N" is the card of that number. Raises DeviceError where it cannot be used.
    """
    if name.startswith("cuda:"):
        return _gpu_facts(int(name.removeprefix("cuda:")))
    if name != "cpu":
        try:
            return _gpu_facts()
        except DeviceError:
            if name == "cuda":
                return replace(H200, tuned=table("NVIDIA H200", cache_dir()))
    return _cpu_facts()


def _gpu_facts(ordinal: int = 0) -> DeviceFacts:
    from vgg16gpu.devices.cuda.device import CudaDevice  # noqa: PLC0415 - PyCUDA is for who has it

    device = CudaDevice(ordinal)
    try:
        return device.facts
    finally:
        device.close()


def _cpu_facts() -> DeviceFacts:
    from vgg16gpu.devices.cpu.library import MAX_SHARED_NBYTES  # noqa: PLC0415 - ctypes is for who runs on a CPU

    cores = usable_cores()
    return DeviceFacts(
        "cpu", f"this machine's processor, {cores} cores", cores, (0, 0), MAX_SHARED_NBYTES, *machine_memory()
    )
