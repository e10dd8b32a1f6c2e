"""A process that has a device: an engine, and a loop that makes batches of what front ends ask for."""

from __future__ import annotations

import logging
import mmap
import os
import socket
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from vgg16gpu.devices import widen_queues
from vgg16gpu.errors import DeviceError, Error, InputError, KernelError
from vgg16gpu.io.foreign.numbers import whole_number
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.choices import GPU
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.runtime.answers.codec_choice import codec_for
from vgg16gpu.runtime.answers.decoding import ROOM_NBYTES
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.outputs import image_shape
from vgg16gpu_serving.children import failed, ignore_signals, ignore_warnings, keep_for_good
from vgg16gpu_serving.device.loop import DeviceLoop, Pictures
from vgg16gpu_serving.device.pictures import PictureLane
from vgg16gpu_serving.served import Description, EngineChoice, Tensor, Warm

_log = logging.getLogger(__name__)
_DEFAULT_BATCH = {"cpu": 8, "cuda": 64}


def main(choice: EngineChoice, number: int, listener: socket.socket, metrics: str, status: Connection) -> None:
    """Build, warm up, tell `status` that it is Warm or the Error, and serve until the other end of `status` closes.

    number: of the device. metrics: the folder of what /metrics tells.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
    from vgg16gpu_serving.metrics import DeviceMetrics  # noqa: PLC0415 - after the folder is known

    if choice.decodes:
        widen_queues()
    ignore_signals()
    ignore_warnings()
    try:
        engine = built(choice)
    except Error as error:
        failed(status, error)
    with closing(engine):
        told = DeviceMetrics(number)
        try:
            is_gpu = engine.device.facts.kind == "cuda"  # a CPU is no faster by the kernel than by Pillow
            pictures = _pictures(engine, choice.fits, decodes=choice.decodes) if choice.fits and is_gpu else None
            description = describe(engine, choice.outputs, ROOM_NBYTES if pictures else 0, decodes=choice.decodes)
            loop = DeviceLoop(engine, description, choice.max_delay, lambda: told.used(_used_nbytes(engine)), pictures)
        except Error as error:
            failed(status, error)
        with closing(loop):
            slowest = loop.warm_up()
            keep_for_good()
            foreign = engine.device.foreign
            with suppress(OSError):  # who started this one may be gone; `serve` ends then
                status.send(Warm(description, slowest, _resident_nbytes(), foreign.used_nbytes() if foreign else 0))
            try:
                loop.serve(listener, status)
            except (DeviceError, KernelError) as error:
                _log.error("the device failed, its process is started again: %s", error)
                raise SystemExit(1) from error


def _used_nbytes(engine: Engine) -> int:
    """Return the used bytes of the card's memory; without a card those of this process."""
    foreign = engine.device.foreign
    return foreign.used_nbytes() if foreign else _resident_nbytes()


def _resident_nbytes() -> int:
    """Return the resident bytes of this process."""
    return whole_number(Path("/proc/self/statm").read_text().split()[1], "statm", 0, 1 << 52) * mmap.PAGESIZE


def built(choice: EngineChoice) -> Engine:
    """Build the engine, with batch sizes of powers of two up to the largest. Raises what Engine raises."""
    from vgg16gpu.devices import open_device  # noqa: PLC0415 - beside its only use

    opened = open_device(choice.device, choice.threads)
    largest = choice.batch or _DEFAULT_BATCH[opened.device.facts.kind]
    sizes = [1 << power for power in range(largest.bit_length()) if 1 << power < largest] + [largest]
    return Engine(
        choice.model,
        device=opened,
        precision=choice.precision,
        batch=sizes,
        size=choice.sides,
        outputs=choice.outputs,
        mean=choice.mean,
        std=choice.std,
    )


def _pictures(engine: Engine, preprocess: Preprocess, *, decodes: bool) -> Pictures:
    """Return the factory of the pictures' lane. Raises DeviceError where the device should decode and cannot."""
    codec = codec_for(engine.device, GPU) if decodes else None
    spec = InputSpec(engine.program.input.shape[1:], preprocess=preprocess)
    return lambda lane: PictureLane(engine, lane, spec, codec, engine.program.batch)


def describe(
    engine: Engine, asked: tuple[str, ...] | None, room_nbytes: int = 0, *, decodes: bool = False
) -> Description:
    """Describe inputs and outputs; outputs have the requested names. room_nbytes, decodes: as in Description.

    Raises InputError where an output has no row for each image.
    """
    shape = engine.program.input.shape
    outputs = []
    for i, declared in enumerate(engine.outputs):
        if declared.shape is None or declared.shape[0] is not None:
            raise InputError(f"output '{declared.name}' has no row for each image; serve other --outputs")
        name = asked[i] if asked and len(asked) == len(engine.outputs) else declared.name
        outputs.append(Tensor(name, tuple(dim or 0 for dim in declared.shape[1:])))
    given = engine.inputs[0]
    assert given.shape is not None
    has_pixels = "uint8" in engine.program.input.entries
    return Description(
        input=Tensor(given.name, tuple(dim or 0 for dim in given.shape[1:])),
        sample=shape[1:],
        pixels=image_shape(shape, "uint8")[1:] if has_pixels else None,
        channels_last=engine.graph.input.channels_last,
        outputs=tuple(outputs),
        batches=tuple(sorted(program.batch for program in engine.plan.programs)),
        device=engine.device_choice,
        room_nbytes=room_nbytes,
        decodes=decodes,
    )
