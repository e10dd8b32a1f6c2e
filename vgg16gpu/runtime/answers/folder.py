"""Many files through one engine: decoding begins before there is an engine, and goes on beside it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vgg16gpu.compiler.graph.graph import Graph, cross_batch_op, infer_shapes
from vgg16gpu.compiler.graph.input_size import USUAL_SIZE
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import InputError
from vgg16gpu.pictures import slots
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.loader import THREADS, THREADS_EACH, Loader
from vgg16gpu.pictures.loading.pace import SWITCHING
from vgg16gpu.pictures.slots import SLOT_NBYTES, BufferPool, Bytes, aligned
from vgg16gpu.runtime.answers.rows import Answering, Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream, LocalWorkerFactory, TakeOut, WorkerFactory
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine

if TYPE_CHECKING:
    from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
    from vgg16gpu.devices.picture_decoder import PictureCodec

# Bytes of samples that may be ready before there is an engine: on 16 cores, as many pictures as are decoded meanwhile.
EARLY_NBYTES = 256 << 20
SPARE_SLOTS = 4  # beside one for each thread: two on their way to the device, two that wait
MANY_CORES = 8
MANY = 1024  # files: processes are there after 0.3 s, in which threads decode so many
LARGEST_BATCH = {"cuda": 128, "cpu": 8}  # of images of the usual size, unless the user says otherwise


class FilePipeline(Closing):
    """Files on their way to an engine: threads read and decode them from now on.

    threads: how many; None for one a core. first: the (file, sample) to begin with. decodes_on_device: they read JPEG
    files of the usual kind, and leave decoding to the device. devices: how many will share the files. for_gpu: whether
    these are GPUs, as far as is known; many pictures are then loaded by processes. apart: whether each device has a
    process of its own, which reads the slots there. `started`: when, by
    `time.perf_counter`. Close it after the engine's stream, before the engine.
    """

    def __init__(
        self,
        listing: Listing,
        spec: InputSpec,
        threads: int | None = None,
        first: tuple[int, int] = (0, 0),
        *,
        decodes_on_device: bool = False,
        devices: int = 1,
        for_gpu: bool = False,
        apart: bool = False,
    ) -> None:
        by_processes = for_gpu and _wants_processes(listing, spec)
        count = max(1, threads or min(default_threads(by_processes=by_processes), len(listing.files)))
        extent = _extent(listing, spec, count, devices, on_device=decodes_on_device)
        options: Any = {"takes_back": devices > 1 or apart, "begins_alone": decodes_on_device and threads is None}
        self.ring: BufferPool
        self.loader: Loader
        self._apart = apart
        if by_processes and count > THREADS_EACH:
            from vgg16gpu.pictures.loading.processes import ProcessLoader  # noqa: PLC0415 - threads do without
            from vgg16gpu.pictures.loading.shared import SharedBufferPool  # noqa: PLC0415 - as above

            shared = SharedBufferPool(*extent)
            self.ring, self.loader = shared, ProcessLoader(listing, spec, shared, count, first, **options)
        elif apart:
            from vgg16gpu.pictures.loading.shared import SharedBufferPool  # noqa: PLC0415 - as above

            self.ring = SharedBufferPool(*extent, takes_pictures=False)
            self.loader = Loader(listing, spec, self.ring, count, first, **options)
        else:
            self.ring = BufferPool(
                *extent, early=max(extent.slots, 0 if decodes_on_device else _early_slots(spec, listing))
            )
            self.loader = Loader(listing, spec, self.ring, count, first, **options)
        self.started = time.perf_counter()
        self._switching = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCHING, self._switching))
        try:
            self.loader.start()
        except BaseException:  # Ctrl-C, too: nobody else could end what has started
            self.close()
            raise

    def require_one(self) -> None:
        """Wait for the first input that can be computed. Raises InputError, of the first file, if there is none."""
        if self.loader.has_row():
            return
        failures = [failure for slot in self.loader if slot for failure in slot.failures]
        if not failures:
            raise InputError("there are no inputs; name files, or folders of them, at least one")
        first, *others = sorted(failures)
        raise InputError(first.problem + f" ({len(others)} other inputs cannot be read either)" * bool(others))

    def answers(
        self,
        engine: Engine,
        ranking: Ranking,
        *,
        resize_on_device: bool | None = None,
        codec: PictureCodec | None = None,
    ) -> AnswerStream:
        """What the engine makes of the files, in their order.

        resize_on_device: whether the device resizes what it can, to the same bits; None: a GPU does, as a CPU is no
        faster by the kernel than by Pillow. codec: what decodes there, where `decodes_on_device`.
        """
        return self.shared_answers([LocalWorkerFactory(engine, codec)], ranking, resize_on_device=resize_on_device)

    def shared_answers(
        self,
        seats: Sequence[WorkerFactory],
        ranking: Ranking,
        take_out: TakeOut = lambda *_: False,
        *,
        resize_on_device: bool | None = None,
    ) -> AnswerStream:
        """The same of several engines that share the files, as many as `devices` said; they give the same bits.

        take_out: is told of an engine that fails, and says whether the others go on without it.
        """
        fit = self.pin(seats[0].engine, resize_on_device=resize_on_device)
        try:
            return AnswerStream(seats, self.loader, ranking, fit, take_out)
        except BaseException:
            self.close()  # before the memory that the threads fill goes with its device
            raise

    def pin(self, engine: Answering, *, resize_on_device: bool | None = None) -> ResizeSpec | None:
        """Have the threads go on in memory of the engine's device; what that does to pictures.

        `answers` does it, too, where it has not been done: it takes a tenth of a second, which somebody who waits for
        other things has. Whoever does it closes the folder before the engine, whatever happens.
        """
        usual = resizes_on_device(engine.device.facts.kind, self.loader.listing)
        wanted = usual if resize_on_device is None else resize_on_device
        fit = fit_for(self.loader.spec) if wanted or self.ring.room_nbytes else None
        if self._apart:  # each process pins by itself
            self.ring.takes_pictures |= fit is not None
        elif not self.ring.is_pinned:
            assert isinstance(engine, Engine)
            with engine.turn():  # memory that one card has pinned is pinned for all (unified addressing)
                self.ring.pin(self._pinned(engine), takes_pictures=fit is not None)
        return fit

    def _pinned(self, engine: Engine) -> Callable[[int], Bytes]:
        """What makes memory that the device knows, or has it know what processes share."""
        if (memory := self.ring.memory) is None:
            return engine.device.pinned

        def known(nbytes: int) -> Bytes:
            engine.device.pin(memory)
            return memory[:nbytes]

        return known

    def close(self) -> None:
        """End the threads. Safe to call twice."""
        self.loader.close()
        self.ring.release()
        sys.setswitchinterval(self._switching)


class Extent(NamedTuple):
    """Of a ring: bytes of a slot, how many slots, samples of one, bytes of its room on the device."""

    nbytes: int
    slots: int
    rows: int
    room_nbytes: int = 0


def _extent(listing: Listing, spec: InputSpec, threads: int, devices: int, *, on_device: bool) -> Extent:
    if on_device:
        return extent_of_files(spec, threads, len(listing.files), devices)
    rows = len(listing.files) if _is_small(listing) else slots.ROWS  # pinned memory takes time to get
    return Extent(slot_nbytes(spec, rows), threads + SPARE_SLOTS * devices, slots.ROWS)


def extent_of_files(spec: InputSpec, threads: int, files: int, devices: int) -> Extent:
    """Of slots for files that the device decodes, and for samples."""
    from vgg16gpu.runtime.answers import decoding  # noqa: PLC0415 - who decodes on the CPU does without

    rows = min(decoding.ROWS, files)
    nbytes = 4 * math.prod(spec.shape)
    most = max(nbytes, min(decoding.FILES_NBYTES, rows * nbytes))
    count = threads + (decoding.DECODERS + SPARE_SLOTS) * devices
    return Extent(most, count, rows, max(decoding.ROOM_NBYTES, aligned(most)))


def _wants_processes(listing: Listing, spec: InputSpec) -> bool:
    """Return whether processes load sooner than many threads: many pictures in files, which the device resizes."""
    is_plain = not (listing.numbers or listing.problems) and listing.contents is None
    return is_plain and len(listing.files) >= MANY and fit_for(spec) is not None


def _early_slots(spec: InputSpec, listing: Listing) -> int:
    """Return how many slots of samples, as the network takes them, are `EARLY_NBYTES`."""
    nbytes = slots.ROWS * math.prod(spec.shape) * (4 if listing.numbers else 1)  # pictures are bytes
    return EARLY_NBYTES // min(nbytes, slot_nbytes(spec))


def slot_nbytes(spec: InputSpec, rows: int | None = None) -> int:
    """The size of a slot for at most `rows` samples, by default as many as a slot has."""
    nbytes = 4 * math.prod(spec.shape)
    return max(nbytes, min(SLOT_NBYTES, (rows or slots.ROWS) * nbytes))


def resizes_on_device(kind: str, listing: Listing) -> bool:
    """Whether a device of that kind, "cuda" or "cpu", resizes: a GPU; a few pictures are fitted before it is there."""
    return kind == "cuda" and not _is_small(listing)


def fit_for(spec: InputSpec) -> ResizeSpec | None:
    """What the kernel does to the pictures of a network that takes `spec`; None where it cannot."""
    if spec.preprocess is None or len(spec.shape) != 3:
        return None
    from vgg16gpu.runtime.answers.fitting import fit_of  # noqa: PLC0415 - a few pictures are fitted by the CPU

    return fit_of(spec.preprocess, (spec.shape[1], spec.shape[2]))


def _is_small(listing: Listing) -> bool:
    return len(listing.files) <= slots.ROWS and not listing.numbers


def default_threads(*, by_processes: bool = False) -> int:
    """One for each core, but for those that build, feed the device and write, where there are enough.

    These are a quarter, as all of them wait for one interpreter; an eighth where others decode.
    """
    cores = usable_cores()
    return min(cores if cores < MANY_CORES else cores - cores // (8 if by_processes else 4), THREADS)


def default_batch(count: int, graph: Graph, sample: Shape, kind: str) -> int:
    """The batch size for `count` files on a kind of device, "cuda" or "cpu": the file's own if it has one.

    sample: the shape of one. 1 for a model that mixes the images of a batch. A GPU computes a larger batch in less time
    an image, so it takes the smallest power of two that holds all; a CPU does not, so there as little as can be is
    computed in vain.
    """
    if graph.input.shape[0]:
        return graph.input.shape[0]
    if cross_batch_op(graph, infer_shapes(graph, (2, *sample))):
        return 1
    pixels = math.prod(sample[1:])
    most = max(1, LARGEST_BATCH[kind] * USUAL_SIZE**2 // max(pixels, USUAL_SIZE**2))
    sizes = [1 << power for power in range(most.bit_length())]
    if kind == "cuda":
        return next((size for size in sizes if size >= count), sizes[-1])
    return min(sizes, key=lambda size: (-(-count // size) * size, -size))
