"""A stand-in of a Hopper GPU whose kernels run on the CPU, but for the convolutions that need it: these are numpy.

Plans are those of the GPU. A convolution finds its operands by what its launch says, tensor maps and all, and its sums
are float64; it stores pairs as the kernels do, and notes the largest magnitude of each image.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_signatures import arguments
from tests.support.traced_device import HOPPER
from vgg16gpu.compiler.op_kernels.conv.common import TAPS
from vgg16gpu.compiler.op_kernels.wgmma import has_wgmma
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import Kernel, KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import Arena, DType, Pointer

_SOURCES: Final = ("conv_wgmma.cu", "conv_wgmma_small.cu", "conv_first.cu")
_Places = Callable[[Pointer], int]


class HopperOnCpu:
    """The device. `multiplied`: how many such convolutions have run."""

    def __init__(self, device: Device) -> None:
        self._device, self.facts, self.multiplied = device, HOPPER, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def build(self, kernels: Iterable[Kernel]) -> None:
        self._device.build([kernel for kernel in kernels if kernel.source not in _SOURCES])

    def bind(self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], **_: bool) -> Callable[[], None]:
        runs = [self._run_of(step, bases) for step in steps]

        def run() -> None:
            for one in runs:
                one()

        return run

    def unbind(self, launch: Callable[[], None]) -> None:
        """Nothing to give back."""

    def _run_of(self, step: KernelLaunch, bases: Mapping[Arena, int]) -> Callable[[], None]:
        if step.kernel.source not in _SOURCES:
            return self._device.bind([step], bases)

        def place(pointer: Pointer) -> int:
            return bases[pointer.arena] + pointer.offset

        def run() -> None:
            self.multiplied += 1
            compute = _first if step.kernel.source == "conv_first.cu" else _inner
            with np.errstate(invalid="ignore", over="ignore"):  # numbers beyond float16, and what becomes of them
                compute(step, arguments(step), place)

        return run


def hopper_for(device: Device) -> Any:
    """The GPU itself where it is one, else what stands for it on this device of the CPU; skips on other GPUs."""
    if device.facts.kind == "cpu":
        return HopperOnCpu(device)
    if not has_wgmma(device.facts):
        pytest.skip("this GPU has no wgmma, which these tests are about")
    return device


def _array(address: int, shape: Sequence[int], dtype: Any) -> npt.NDArray[Any]:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype).reshape(shape)


def _map(tensor: TmaDescriptor, place: _Places) -> npt.NDArray[Any]:
    """What a tensor map shows, innermost last. Its strides are those of an array without gaps."""
    assert tensor.element is DType.F16_PAIR
    shape = tensor.dimensions[::-1]
    nbytes = np.cumprod([tensor.element.nbytes, *tensor.dimensions[:-1]]).tolist()[1:]
    assert list(tensor.strides) == nbytes
    return _array(place(tensor.pointer), shape, np.float16)


def _inner(step: KernelLaunch, given: Mapping[str, Any], place: _Places) -> None:
    """conv_wgmma, conv_wgmma_small."""
    images, blocks = given["images"], given["channel_blocks"]
    inp, packed = _map(given["inp"], place), _map(given["weight"], place)
    block, rows = packed.shape[2], packed.shape[1]
    assert packed.shape[0] == blocks * TAPS * 2
    assert inp.shape == (2 * images, given["height"], given["width"], blocks * block)
    x = inp.astype(np.float64).reshape(2, images, *inp.shape[1:]).sum(0)
    w = packed.astype(np.float64).reshape(blocks, TAPS, 2, rows, block).sum(2)
    w = w.transpose(2, 0, 3, 1).reshape(rows, blocks * block, 3, 3)
    _store(step, given, place, _convolved(x, w))


def _first(step: KernelLaunch, given: Mapping[str, Any], place: _Places) -> None:
    """conv_first; float32 images. Scales of weights and input cancel."""
    images, height, width, rows = (given[name] for name in ("images", "H", "W", "OCP"))
    channels = dict(step.kernel.defines)["IN_CHANNELS"]
    x = _array(place(given["source"]), (images, channels, height, width), np.float32)
    length = -(-TAPS * channels // 8) * 8
    w = _array(place(given["weight"]), (rows, length), np.float32)[:, : TAPS * channels].astype(np.float64)
    w = w.reshape(rows, 3, 3, channels).transpose(0, 3, 1, 2)
    status = _array(place(given["status"]), (images,), np.int32)
    status |= ~np.isfinite(x).reshape(images, -1).all(1)
    sums = _convolved(np.moveaxis(x, 1, -1).astype(np.float64), w)
    dequant = _array(place(given["dequant"]), (rows,), np.float32)
    _store(step, given, place, sums / np.where(dequant, dequant, 1))


def _convolved(x: npt.NDArray[np.float64], w: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """NHWC by (OC, C, 3, 3), padded by one pixel."""
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    height, width = x.shape[1:3]
    taps = (padded[:, i : i + height, j : j + width] @ w[:, :, i, j].T for i in range(3) for j in range(3))
    return reduce(np.add, taps)


def _store(step: KernelLaunch, given: Mapping[str, Any], place: _Places, sums: npt.NDArray[np.float64]) -> None:
    rows, out = sums.shape[-1], _map(given["out"], place)
    bias, dequant, scale = (
        _array(place(given[name]), (rows,), np.float32) for name in ("bias", "dequant", "out_scale")
    )
    value = (sums * dequant + bias).astype(np.float32)
    if given["activation"]:
        value = np.where(value < 0, np.float32(0), value)
    if dict(step.kernel.defines).get("POOL"):
        height, width = (side // 2 * 2 for side in value.shape[1:3])
        even = value[:, :height, :width]
        value = even.reshape(len(even), height // 2, 2, width // 2, 2, rows).max((2, 4))
    scaled = value * scale
    high = scaled.astype(np.float16)
    low = (scaled - high.astype(np.float32)).astype(np.float16)
    images, stored = len(value), out.shape[-1]
    assert out.shape == (2 * images, *value.shape[1:3], stored)
    assert not np.nan_to_num(high[..., stored:]).any()  # what the copy engine clips is nothing
    out[:images], out[images:] = high[..., :stored], low[..., :stored]
    maxima = _array(place(given["maxima"]), (images,), np.float32)
    largest = np.abs(high.astype(np.float32)).reshape(images, -1).max(1)
    bits = np.where(np.isnan(largest), np.float32(np.nan), largest).astype(np.float32).view(np.uint32) & 0x7FFFFFFF
    maxima.view(np.uint32)[...] = np.maximum(maxima.view(np.uint32), bits)
