"""What the device can do at most, measured on it by two small kernels: a copy and independent chains of FFMA."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError
from vgg16gpu.ops.ceiling import copy_step, ffma_step
from vgg16gpu.program import Arena, Pointer, Step

DESCRIPTION = (
    "kernels/ceiling.cu: a 16-byte streaming copy of a buffer several times the last-level cache (bytes read plus "
    "bytes written), and independent chains of fmaf; median of {samples}"
)

_SAMPLES = 10
_COPY_NBYTES = {"cuda": 512 << 20, "cpu": 256 << 20}  # several times the last-level cache of today's devices
_SMALLEST_COPY = 1 << 20
_CHUNK_NBYTES = 16 << 20
_FFMA_BLOCKS = 64  # per multiprocessor: full waves
_FFMA_ROUNDS = {"cuda": 1024, "cpu": 512}
_LAUNCHES = {"cuda": 10, "cpu": 1}  # in one sample, so that the time to launch does not count


@dataclass(frozen=True)
class Ceilings:
    """The roofline of a device."""

    bytes_per_s: float  # read + written
    flop_per_s: float
    copy_nbytes: int  # of the buffer that was copied
    description: str

    def floor(self, flop: int, nbytes: int) -> float:
        """The least seconds that this much work takes."""
        return max(flop / self.flop_per_s, nbytes / self.bytes_per_s)


def measure_ceilings(device: Device) -> Ceilings:
    """Copy bandwidth and FFMA rate. Needs memory on the device, which is given back; raises DeviceError without it."""
    nbytes = min(_COPY_NBYTES[device.facts.kind], device.facts.memory_free // 8 // 16 * 16)
    if nbytes < _SMALLEST_COPY:
        raise DeviceError(f"{device.facts.name} has too little free memory to measure its bandwidth; free some")
    address = device.allocate(2 * nbytes)
    out, inp = Pointer(Arena.ACTIVATIONS, nbytes), Pointer(Arena.ACTIVATIONS, 0)
    copy = copy_step(out, inp, nbytes)
    blocks = _FFMA_BLOCKS * device.facts.multiprocessors
    ffma = ffma_step(inp, blocks, _FFMA_ROUNDS[device.facts.kind])
    try:
        device.build([copy.kernel, ffma.kernel])
        _fill(device, address, nbytes)
        bandwidth = copy.nbytes / _seconds(device, copy, address)
        rate = ffma.flop / _seconds(device, ffma, address)
    finally:
        device.free(address)
    return Ceilings(bandwidth, rate, nbytes, DESCRIPTION.format(samples=_SAMPLES))


def _fill(device: Device, address: int, nbytes: int) -> None:
    """Random numbers: memory that was never written may all be one page of zeros."""
    chunk = np.random.default_rng(0).random(_CHUNK_NBYTES // 4, dtype=np.float32)
    for offset in range(0, nbytes, _CHUNK_NBYTES):
        device.copy_in(address + offset, chunk[: (nbytes - offset) // 4])
    device.synchronize()


def _seconds(device: Device, step: Step, address: int) -> float:
    launches = _LAUNCHES[device.facts.kind]
    work = device.bind((step,) * launches, {Arena.ACTIVATIONS: address})
    device.measure(work, 2)
    return statistics.median(device.measure(work, _SAMPLES)) / launches
