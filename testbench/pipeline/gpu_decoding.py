"""The stages of runs whose JPEG files a GPU decodes, alone: reading, decoding, making images of what lies there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from testbench.pipeline.device_stages import measure_resizing
from testbench.pipeline.loading import full_slots, run_through, switching_as_in_a_run
from testbench.pipeline.stage import Place, Samples, StageTime, timed
from testbench.pipeline.wanted import Work
from vgg16gpu.devices import open_codec
from vgg16gpu.errors import DeviceError
from vgg16gpu.pictures.choices import GPU
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.pictures.slots import BufferPool, Bytes, Slot
from vgg16gpu.runtime.answers.decoding import SPARE_ROOMS, DeviceDecoding
from vgg16gpu.runtime.answers.folder import extent_of_files, fit_for
from vgg16gpu.runtime.engine import Engine

READING: Final = "reading into slots"
DECODING: Final = "decoding on the GPU"
_THREADS: Final = 1  # that read, in a run, as long as that is enough
_PICTURES: Final = 6400  # that are decoded in each repeat, again and again


def measure_gpu_decoding(work: Work, engine: Engine, say: Callable[[str], None]) -> Iterator[StageTime]:
    """What a run has in place of decoding by the CPU. Raises DeviceError where nothing decodes on the engine's device.

    Raises InputError, too, where no picture can be read.
    """
    device, repeats = engine.device, work.wanted.repeats
    with ExitStack() as undo:
        ring = BufferPool(*extent_of_files(work.spec, _THREADS, len(work.files), 1))
        memory = device.pinned(ring.nbytes * ring.count)
        undo.callback(device.unpin, memory)
        say(READING)
        loaders = list[Loader]()
        with switching_as_in_a_run():
            read = timed(
                repeats, lambda: run_through(loaders.pop()), lambda: loaders.append(_loader_into(work, memory))
            )
        yield StageTime(READING, Place.FILES, len(work.files), read.wall, read.cpu, _THREADS, decode=GPU)
        loader = _loader_into(work, memory)
        slots = full_slots(work, loader, min(SPARE_ROOMS, ring.count - 1))
        say(DECODING)
        rounds = -(-_PICTURES // sum(len(slot.rows) for slot in slots))
        decoded = _decoding(engine, _Again(work.spec, loader.ring, slots, 1 + rounds), repeats)
        yield StageTime(DECODING, Place.DECODER, rounds * sum(len(slot.rows) for slot in slots), *decoded, decode=GPU)
        say("colours and resizing")
        yield _measured_resizing(engine, _Again(work.spec, loader.ring, slots, 1), repeats)


@dataclass(frozen=True)
class _Again:
    """Slots whose bytes lie there, so many times: `runtime.answers.decoding.Slots`."""

    spec: InputSpec
    ring: BufferPool
    slots: Sequence[Slot]
    rounds: int

    def __iter__(self) -> Iterator[Slot]:
        for _ in range(self.rounds):
            for slot in self.slots:
                yield replace(slot, rows=list(slot.rows), failures=[], ends=[], addresses=[])


def _decoding(engine: Engine, again: _Again, repeats: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds, and those of all processors, of all rounds but the first: in that the decoder takes its memory."""
    found = list[Samples]()
    with switching_as_in_a_run():
        for _ in range(repeats):
            with DeviceDecoding(engine, again, open_codec(engine.device)) as decoding:
                slots = iter(decoding)
                _give_back(islice(slots, len(again.slots)))
                found.append(timed(1, partial(_give_back, slots)))
                _require_all(decoding)
    return tuple(each.wall[0] for each in found), tuple(each.cpu[0] for each in found)


def _measured_resizing(engine: Engine, again: _Again, repeats: int) -> StageTime:
    fit = fit_for(again.spec)
    assert fit  # or the device would decode nothing
    with DeviceDecoding(engine, again, open_codec(engine.device)) as decoding:
        slots = [slot for slot in decoding if slot]
        return measure_resizing(engine.device, slots, fit, repeats)


def _loader_into(work: Work, memory: Bytes) -> Loader:
    ring = BufferPool(*extent_of_files(work.spec, _THREADS, len(work.files), 1))
    ring.pin(lambda nbytes: memory[:nbytes], takes_pictures=True)
    return Loader(work.listing, work.spec, ring, _THREADS, window=len(work.files) + 1)


def _give_back(slots: Iterator[Slot | None]) -> None:
    for slot in slots:
        if slot and slot.room:
            slot.room.give_back()


def _require_all(decoding: DeviceDecoding) -> None:
    """Raise DeviceError where the device has refused files: then it is not its rate."""
    told = decoding.told
    if told.refused:
        raise DeviceError(
            f"{told.by} refuses {told.refused:,} of {told.count:,} files, which the CPU decodes then: that is no rate "
            "of the GPU; measure sound photographs, or give --decode cpu"
        )
