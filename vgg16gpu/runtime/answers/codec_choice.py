"""Who decodes the files of a run: the device, or the CPU."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

from vgg16gpu.devices import codec_problem, open_codec
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.pictures.choices import DECODE, GPU, chosen

if TYPE_CHECKING:
    from vgg16gpu.devices.base import Device
    from vgg16gpu.devices.picture_decoder import PictureCodec
    from vgg16gpu.pictures.inputs import InputSpec


def decodes_on_device(wanted: str, device: str, spec: InputSpec) -> bool:
    """Return whether `wanted`, one of `DECODE`, comes to decoding on the device that `open_device(device)` will open.

    Raises InputError for another word; InputError or DeviceError, with what to do, where "gpu" is wanted and cannot be.
    """
    if wanted not in DECODE:
        raise InputError(f"decode '{wanted}' is not one of {', '.join(DECODE)}")
    if chosen(wanted) != GPU:
        return False
    if problem := _network_problem(spec):
        if wanted == GPU:
            raise InputError(f"decode gpu: {problem}")
        return False
    if problem := codec_problem(device):
        if wanted == GPU:
            raise DeviceError(f"decode gpu: {problem}")
        return False
    return True


def codec_for(device: Device, wanted: str) -> PictureCodec | None:
    """What decodes on an open device. Where nothing does: DeviceError if "gpu" is wanted, else None."""
    try:
        return open_codec(device)
    except DeviceError as error:
        if wanted == GPU:
            raise DeviceError(f"decode gpu: {error}") from error
        return None


class CodecAhead:
    """`codec_for` in a thread, beside whatever else is done with the device: it takes half a second."""

    def __init__(self, device: Device, wanted: str) -> None:
        """Begin. `close` it before the device."""
        self._found: Future[PictureCodec | None] = Future()
        self._thread = Thread(target=self._open, args=(device, wanted), name="vgg16gpu-codec")
        self._thread.start()

    def result(self) -> PictureCodec | None:
        """Wait for it. Raises what `codec_for` does."""
        return self._found.result()

    def close(self) -> None:
        """Wait for it, whatever it is, and give it back."""
        self._thread.join()
        if self._found.exception() is None and (codec := self._found.result()):
            codec.close()

    def _open(self, device: Device, wanted: str) -> None:
        try:
            self._found.set_result(codec_for(device, wanted))
        except BaseException as error:
            self._found.set_exception(error)


def _network_problem(spec: InputSpec) -> str | None:
    """Why pictures for this network are not decoded on a device."""
    from vgg16gpu.runtime.answers.fitting import fit_of  # noqa: PLC0415 - who decodes on the CPU does without

    shape = spec.shape
    if len(shape) != 3 or spec.preprocess is None or shape[0] != 3:
        return f"GPUs decode to RGB, and the network takes inputs of shape {shape}; give --decode cpu"
    if fit_of(spec.preprocess, (shape[1], shape[2])) is None:
        return "the GPU cannot resize as this version of Pillow does; give --decode cpu, or install another one"
    return None
