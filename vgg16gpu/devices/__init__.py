"""The hardware: what a device is (`base`), the GPU (`cuda`), the processor (`cpu`), and the choice between them.

Importing this package imports no device, hence neither PyCUDA nor a compiler's output.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from vgg16gpu.devices.platforms import supported_machine
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.io.shown import shown

if TYPE_CHECKING:
    from vgg16gpu.devices.base import Device
    from vgg16gpu.devices.picture_decoder import PictureCodec

_log = logging.getLogger(__name__)
_CUDA_NAME = re.compile(r"cuda(?::(\d{1,4}))?", re.ASCII)
_ACCEPTED = "auto, cpu, cuda, cuda:N (N the number of a GPU)"


def is_device_name(name: str) -> bool:
    """Return whether `open_device` takes this name, be there such a device or not."""
    return name in ("auto", "cpu") or _CUDA_NAME.fullmatch(name) is not None


def opening_ahead(name: str) -> AbstractContextManager[object]:
    """Start the GPU that `open_device(name)` will open in a thread, while the block runs.

    Nothing is raised, and nothing is done for a name that means no GPU, or without PyCUDA. Leave it when the device is
    closed.
    """
    found = _CUDA_NAME.fullmatch("cuda" if name == "auto" else name)
    if not found or not expects_gpu(name):
        return nullcontext()
    from vgg16gpu.devices.cuda.ahead import ContextAhead  # noqa: PLC0415 - a CPU does without

    return ContextAhead(int(found[1] or 0))


def widen_queues() -> None:
    """Have the driver, which has not started yet, keep streams apart: for who decodes on a card beside an engine.

    nvJPEG has 14 streams, and a driver 8 queues: copies of a microsecond would wait behind whole layers. Queues cost
    0.1 to 0.2 s of a start. A number that the user has set stays.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "16")


def expects_gpu(name: str) -> bool:
    """Return whether `open_device(name)` opens a GPU, as far as is known before: if there is one, for "auto"."""
    if name == "cpu":
        return False
    if find_spec("pycuda") is not None:
        return True
    from vgg16gpu.devices.cuda.driver import has_bindings  # noqa: PLC0415 - only a machine without PyCUDA asks

    return has_bindings()


class Opened(NamedTuple):
    """A device that is open, and one line on which it is and why."""

    device: Device
    choice: str


def open_device(name: str = "auto", threads: int | None = None, *, needs_gpu: bool = False) -> Opened:
    """Open a device; return it with one line on which it is and why.

    threads: of the CPU device that is asked for by name; None: one for each core, or as the environment says.
    needs_gpu: for messages alone: nothing else than a GPU would do.

    "auto" takes the GPU if one works, else the processor. That is logged, as a warning on a machine that has a GPU.
    "cpu", "cuda" and "cuda:N" have no fallback. Raises DeviceError for another name, another kind of machine, or a
    device that does not work.
    """
    supported_machine()
    if not isinstance(name, str):
        raise DeviceError(f"unknown device {shown(name)}; accepted: {_ACCEPTED}")
    if name == "auto":
        return _open_any()
    if name == "cpu":
        return _open_cpu("as asked", threads)
    if found := _CUDA_NAME.fullmatch(name):
        return _open_asked_cuda(name, int(found[1] or 0), "" if needs_gpu else "; 'cpu' needs no GPU")
    raise DeviceError(f"unknown device {shown(name)}; accepted: {_ACCEPTED}")


def codec_problem(name: str) -> str | None:
    """Return why the device that `open_device(name)` opens cannot decode pictures, and what to do.

    Checked without opening it; None: it probably can.
    """
    if name == "cpu":
        return "pictures are decoded by NVIDIA GPUs alone, and the device is the CPU; decode on the CPU"
    from vgg16gpu.devices.cuda.nvjpeg import packages_problem  # noqa: PLC0415 - as above

    return packages_problem()


def open_codec(device: Device) -> PictureCodec:
    """Return the decoder of pictures of an open device. Raises DeviceError, with what to do, if it has none."""
    if device.foreign is None:
        raise DeviceError(f"pictures are decoded by NVIDIA GPUs alone, and the device is {device.facts.name}")
    from vgg16gpu.devices.cuda.nvjpeg import NvJpeg, load_nvjpeg  # noqa: PLC0415 - as above

    return NvJpeg(load_nvjpeg(), device.foreign)


def _open_any() -> Opened:
    try:
        return _open_working_cuda()
    except DeviceError as error:
        _log_fallback(str(error))
        return _open_cpu(str(error))


def _log_fallback(reason: str) -> None:
    """Log that the CPU is used: as information without a GPU, as a warning on a machine that has one."""
    from vgg16gpu.devices.cuda.probe import NO_GPU, probe_driver  # noqa: PLC0415 - as above

    driver = probe_driver()
    if driver is None or driver.problem == NO_GPU:
        _log.info("device auto: the CPU: %s", reason)
    else:
        _log.warning("there is a GPU, and the CPU is used: %s (`python -m vgg16gpu doctor` says more)", reason)


def _open_working_cuda() -> Opened:
    from vgg16gpu.devices.copy_kernel import BUS_GROUPS, transfer_kernel  # noqa: PLC0415 - of benchmarks alone
    from vgg16gpu.devices.cuda.device import CudaDevice  # noqa: PLC0415 - imports are for who opens the device

    device = CudaDevice()
    try:
        # A small kernel tells whether there is an nvcc (or its work in the cache) that goes with card and driver.
        with stage("kernels"):
            device.build([transfer_kernel(BUS_GROUPS)])
    except KernelError as error:
        device.close()
        reason = " ".join(str(error).splitlines()[:2])  # a compiler's message is longer; its first line says what
        raise DeviceError(f"{device.facts.name} is there, but {reason}") from error
    return Opened(device, f"cuda: {device.facts.name}")


def _open_asked_cuda(name: str, ordinal: int, otherwise: str) -> Opened:
    from vgg16gpu.devices.cuda.device import CudaDevice  # noqa: PLC0415 - a CPU does without

    try:
        device = CudaDevice(ordinal)
    except DeviceError as error:
        raise DeviceError(
            f"device {shown(name)} cannot be used: {error} (`python -m vgg16gpu doctor` says more{otherwise})"
        ) from error
    return Opened(device, f"{name}: {device.facts.name}, as asked")


def _open_cpu(reason: str, threads: int | None = None) -> Opened:
    from vgg16gpu.devices.cpu.device import CpuDevice  # noqa: PLC0415 - a GPU does without

    return Opened(CpuDevice(threads=threads), f"cpu: {reason}")
