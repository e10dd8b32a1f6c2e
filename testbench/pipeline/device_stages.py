"""The device's stages alone: uploading, resizing, computing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from testbench.pipeline.stage import Place, StageTime, timed
from testbench.pipeline.wanted import Work
from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
from vgg16gpu.devices.base import Device, Stream
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.choices import CPU, GPU
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.slots import Slot
from vgg16gpu.runtime.answers.fitting import GpuResizer
from vgg16gpu.runtime.engine import Engine

UPLOADING: Final = "uploading"
RESIZING: Final = "resizing"
COLOURS: Final = "colours, resizing"  # of what a GPU has decoded
COMPUTING: Final = "computing"
_PICTURES: Final = 1024  # through the bus, and through the kernel, in each repeat
_FEW: Final = 3  # runs of the engine, in each repeat at least
_TRIAL: Final = 0.25  # of the seconds of a repeat, for the last trial of how many runs fit into one


def measure_uploading(device: Device, slots: Sequence[Slot], repeats: int) -> StageTime:
    """Slots of pinned memory to one place on the device, one after the other."""
    rounds = -(-_PICTURES // sum(len(slot.rows) for slot in slots))
    with ExitStack() as undo:
        address = device.allocate(max(slot.used for slot in slots))
        undo.callback(device.free, address)
        done = device.event()

        def upload() -> None:
            for slot in itertools.chain.from_iterable(itertools.repeat(slots, rounds)):
                device.copy_in(address, slot.buffer[: slot.used], Stream.UPLOAD)
            device.record(done, Stream.UPLOAD)
            device.wait(done)

        upload()
        samples = timed(repeats, upload)
    pictures = rounds * sum(len(slot.rows) for slot in slots)
    return StageTime(UPLOADING, Place.BUS, pictures, samples.wall, samples.cpu, decode=CPU)


def measure_resizing(device: Device, slots: Sequence[Slot], fit: ResizeSpec, repeats: int) -> StageTime:
    """The kernel on slots that lie on the device: the same one again and again, then the next.

    Where the device has decoded them, another kernel makes RGB of what that left before.
    """
    first, decode = slots[0], GPU if slots[0].room else CPU
    rounds = -(-_PICTURES // sum(len(slot.rows) for slot in slots))
    wall, cpu = np.zeros(repeats), np.zeros(repeats)
    with ExitStack() as undo:
        fitter = GpuResizer(device, fit, len(first.buffer), first.most_rows, first.most_needed)
        undo.callback(fitter.close)
        for slot in slots:
            fitter.begin(slot)
            device.synchronize()

            def resize() -> None:
                for _ in range(rounds):
                    fitter.again()
                device.synchronize()

            samples = timed(repeats, resize)
            wall, cpu = wall + samples.wall, cpu + samples.cpu
            fitter.end()
        device.synchronize()
    pictures = rounds * sum(len(slot.rows) for slot in slots)
    name = RESIZING if decode == CPU else COLOURS
    return StageTime(name, Place.DEVICE, pictures, tuple(wall.tolist()), tuple(cpu.tolist()), decode=decode)


def measure_computing(engine: Engine, images: npt.NDArray[np.uint8], seconds: float, repeats: int) -> StageTime:
    """The engine's stream of one batch of pictures again and again, for about so many seconds in each repeat.

    images: (N, H, W, C), as many as a batch; bytes in memory to scores.
    """
    runs, took = _FEW, 0.0
    while took < _TRIAL * seconds:  # what took long once may have been disturbed: the last trial is the longest
        runs *= 2
        (took,) = timed(1, partial(stream_of, engine, images, runs)).wall
    runs = max(_FEW, round(runs * seconds / took))
    samples = timed(repeats, lambda: stream_of(engine, images, runs))
    pictures = runs * len(images)
    return StageTime(COMPUTING, Place.DEVICE, pictures, samples.wall, samples.cpu, precision=engine.precision)


def stream_of(engine: Engine, images: npt.NDArray[np.uint8], runs: int) -> None:
    """So many batches, one after the other."""
    for _ in engine.stream(itertools.repeat(images, runs)):
        pass


def first_images(work: Work, count: int) -> npt.NDArray[np.uint8]:
    """(count, H, W, C): the first pictures that can be read, fitted; from the first on again where there are too few.

    Raises InputError where none can be read.
    """
    decoder = Decoder(work.spec)
    found = list(itertools.islice(_fitted(decoder, work.files), count))
    if not found:
        raise InputError(f"--pictures '{work.wanted.folder}': no picture can be read; `infer` says why of each")
    return np.stack(list(itertools.islice(itertools.cycle(found), count)))


def _fitted(decoder: Decoder, files: Sequence[str]) -> Iterator[npt.NDArray[np.uint8]]:
    for file in files:
        try:
            yield decoder.fitted(decoder.read(file), file)
        except InputError:
            continue
