"""What the device can do at most: a copy and FFMA, measured on it by two small kernels; tensor cores by data sheet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vgg16gpu.compiler.op_kernels.general.ceiling import ffma_step
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.copy_kernel import transfer_step
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, DeviceFacts, Pointer

DESCRIPTION = (
    "transfer.cu: a 16-byte streaming copy of a buffer several times the last-level cache (bytes read plus "
    "bytes written); ceiling.cu: independent chains of fmaf; median of {samples}; tensor cores: the data "
    "sheet's dense rate by multiprocessors x clock; fp32 there is three fp16 products"
)

_SAMPLES = 10
_COPY_NBYTES = {"cuda": 512 << 20, "cpu": 256 << 20}  # several times the last-level cache of today's devices
_SMALLEST_COPY = 1 << 20
_CHUNK_NBYTES = 16 << 20
_FFMA_BLOCKS = 64  # per multiprocessor: full waves
_FFMA_ROUNDS = {"cuda": 1024, "cpu": 512}
_LAUNCHES = {"cuda": 10, "cpu": 1}  # in one sample, so that the time to launch does not count

# Tensor cores by compute capability: (operations of 16-bit products per clock and multiprocessor, boost clock in Hz
# that the data sheet counts with). 132 multiprocessors of 9.0 come to its 989 TFLOP/s; a card whose clock goes higher
# can exceed that. Integer products of 8 bits run at twice the rate.
_TENSOR_CORES = {(8, 0): (2048, 1.41e9), (9, 0): (4096, 1.83e9)}
_PRODUCTS_OF_FP32 = 3  # fp16 products for one of two float32


@dataclass(frozen=True)
class Ceilings:
    """The roofline of a device. `tensor_flop_per_s` has the precisions that its tensor cores are known to compute."""

    bytes_per_s: float  # read + written
    flop_per_s: float  # FFMA
    copy_nbytes: int  # of the buffer that was copied
    description: str
    tensor_flop_per_s: Mapping[str, float] = field(default_factory=dict)

    def rate(self, precision: str) -> float | None:
        """Return the most operations per second in a precision; None where it is not known."""
        if precision == "fp32":
            return max(self.flop_per_s, self.tensor_flop_per_s.get(precision, 0.0))
        return self.tensor_flop_per_s.get(precision)

    def floor(self, flop: int, nbytes: int, precision: str = "fp32") -> float:
        """Return the least seconds for this work; by its bytes alone where the rate is not known."""
        rate = self.rate(precision)
        return max(flop / rate if rate else 0.0, nbytes / self.bytes_per_s)


def tensor_flops(facts: DeviceFacts) -> dict[str, float]:
    """Return the tensor cores' dense rate by precision, as the data sheet counts; empty for an unknown device."""
    if facts.compute_capability not in _TENSOR_CORES:
        return {}
    per_clock, clock = _TENSOR_CORES[facts.compute_capability]
    half = per_clock * clock * facts.multiprocessors
    return {"fp32": half / _PRODUCTS_OF_FP32, "fp16": half, "bf16": half, "int8": 2 * half}


def measure_ceilings(device: Device) -> Ceilings:
    """Copy bandwidth and FFMA rate. Needs memory on the device, which is given back; raises DeviceError without it."""
    nbytes = min(_COPY_NBYTES[device.facts.kind], device.facts.memory_free // 8 // 16 * 16)
    if nbytes < _SMALLEST_COPY:
        raise DeviceError(f"{device.facts.name} has too little free memory to measure its bandwidth; free some")
    address = device.allocate(2 * nbytes)
    out, inp = Pointer(Arena.ACTIVATIONS, nbytes), Pointer(Arena.ACTIVATIONS, 0)
    copy = transfer_step(out, inp, nbytes)
    blocks = _FFMA_BLOCKS * device.facts.multiprocessors
    ffma = ffma_step(inp, blocks, _FFMA_ROUNDS[device.facts.kind], device.facts.kind)
    try:
        device.build([copy.kernel, ffma.kernel])
        _fill(device, address, nbytes)
        bandwidth = copy.nbytes / _seconds(device, copy, address)
        rate = ffma.flop / _seconds(device, ffma, address)
    finally:
        device.free(address)
    return Ceilings(bandwidth, rate, nbytes, DESCRIPTION.format(samples=_SAMPLES), tensor_flops(device.facts))


def _fill(device: Device, address: int, nbytes: int) -> None:
    """Write random numbers: memory that was never written may all be one page of zeros."""
    chunk = np.random.default_rng(0).random(_CHUNK_NBYTES // 4, dtype=np.float32)
    for offset in range(0, nbytes, _CHUNK_NBYTES):
        device.copy_in(address + offset, chunk[: (nbytes - offset) // 4])
    device.synchronize()


def _seconds(device: Device, step: KernelLaunch, address: int) -> float:
    launches = _LAUNCHES[device.facts.kind]
    work = device.bind((step,) * launches, {Arena.ACTIVATIONS: address})
    device.measure(work, 2)
    times = device.measure(work, _SAMPLES)
    device.unbind(work)
    return statistics.median(times) / launches
