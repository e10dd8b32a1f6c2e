"""`EnginePool`: one model on several devices of this machine, used as one engine is."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from vgg16gpu.cluster.building import (
    Devices,
    PoolEngine,
    built_engines,
    close_engines,
    kill_processes,
    outputs_of_none,
    seat_of,
)
from vgg16gpu.cluster.crew import AHEAD, BatchResultEvent, BatchTask, DevicePool, DeviceShare, Form, WorkerPool
from vgg16gpu.compiler.class_scores import gives_probabilities
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.devices.several import ALL
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.inputs import spec_of
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.runtime.answers.classify import (
    Answer,
    PathLike,
    class_names_of,
    named,
    paths_of,
    wanted_preprocess,
    warn_of_assumption,
)
from vgg16gpu.runtime.answers.codec_choice import decodes_on_device
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.arrays import AssumedPixels, Images, Input
from vgg16gpu.runtime.batcher import Request, RequestStream, cut, flow, item_name
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.on_device import is_on_device
from vgg16gpu.runtime.outputs import OutputRows, Outputs

PATIENCE: Final = 10.0  # seconds

Answered = TypeVar("Answered")

_log = logging.getLogger(__name__)


class EnginePool(Closing):
    """Engines for one model on several devices: a batch goes to who is free, answers come in order.

    Each of several GPUs has a process of its own, and this one has no CUDA context: what breaks one card, also an
    illegal address, leaves the others alone. Batches lie in memory that both processes share. Engines of the CPU, a
    single GPU, and devices that are open already are in this process; there equal devices share one plan. All get their
    weights at the same time. A device that fails is taken out with a warning, and the others do its batches over; the
    last one stays, and what fails there is raised. Use as a context manager, or call `close`. Several threads may share
    a pool.

    model: as for `Engine`.
    devices: "all" (every GPU, without one the CPU), names with commas ("cuda:0,cuda:1"), "cpu:N" (N engines of the CPU
        that share its threads), a list of names, or what `devices.open_device` gave.
    options: those of `Engine` but `device`.

    Answers are those of a single engine on such a device, bit for bit at the same built batch size. Where the devices
    are not all of one kind, last bits may depend on which of them computed.

    Attributes: `engines`, of all devices that it was built on, or what is known here of those in other processes
    (`cards.engine.CardEngine`); `shares`, what each of them has done.

    Raises ModelError and InputError as `Engine` does; DeviceError and KernelError where no device is left.
    """

    def __init__(self, model: ModelSource, *, devices: Devices = ALL, **options: Any) -> None:
        if "device" in options or "planner" in options:
            raise InputError("a pool takes devices=..., and plans by itself: leave out device and planner")
        self._options = options
        self.model = Model.of(model)
        self._crew: WorkerPool | None = None
        self.engines: tuple[PoolEngine, ...] = built_engines(self.model, devices, options)
        names = sorted({engine.device.facts.name for engine in self.engines})
        if len(names) > 1:
            _log.warning("the devices differ (%s): last bits may depend on which of them computed", ", ".join(names))
        engine, numbers = self.engines[0], (options.get("mean"), options.get("std"))
        self._assumed = AssumedPixels(self.model, engine.graph, engine.program.input.shape, *numbers)
        self.roll: DevicePool[PoolEngine] = DevicePool(self.engines)
        self._crew = WorkerPool(self.roll)

    @property
    def engine(self) -> PoolEngine:
        """One that works, for what all have in common: its graph, its program, what it takes."""
        return self.roll.working[0].engine

    @property
    def has_processes(self) -> bool:
        """Return whether each device has a process of its own."""
        return not isinstance(self.engine, Engine)

    @property
    def shares(self) -> tuple[DeviceShare, ...]:
        """Work done by each device, in the order of `engines`."""
        return tuple(member.share for member in self.roll.members)

    def run(self, x: Input) -> Outputs:
        """Return the outputs of `Engine.run` for an input on the host, its batches shared by the devices.

        Raises InputError as there; KernelError and DeviceError where the last device fails.
        """
        crew = self._open()
        images = self._checked(x)
        batches = self._asked(lambda engine: engine.batches(images))
        if not batches:
            return self._asked(lambda engine: outputs_of_none(engine, x, images))
        size = max(batch for _, batch in batches)
        form = Form(images.dtype.name, images.shape[1:], size)
        tasks = [crew.submit(BatchTask(form, (images[first : first + batch],), batch)) for first, batch in batches]
        try:
            done = [task.done.result() for task in tasks]
        finally:
            for task in tasks:
                task.done.cancel()  # where one before it has failed
        return done[0].joined([each.results for each in done])

    def __call__(self, x: Input) -> Outputs:
        """Return the result of `run`."""
        return self.run(x)

    def stream(self, iterable: Iterable[Input], batch: int | None = None) -> Iterator[Outputs]:
        """Yield the outputs of `Engine.stream` for items on the host, in order, while all devices compute.

        Up to three batches for each device are read ahead; an item must stay as it is until its results are out. The
        rest is as there. Raises InputError as there; KernelError and DeviceError where the last device fails.
        """
        sizes = tuple(program.batch for program in self.engine.plan.programs)
        if batch is not None and batch not in sizes:
            raise InputError(f"batch {batch}: the pool is built for {', '.join(map(str, sizes))}; give one of these")
        try:
            items = iter(iterable)
        except TypeError as error:
            raise InputError(
                f"stream takes inputs one after the other, a list or any iterable, and no {type(iterable).__name__}; "
                "give a single input to run"
            ) from error
        return self._stream(RequestStream(items, self._checked), batch or sizes[-1])

    def classify(
        self,
        paths: PathLike | Iterable[PathLike],
        *,
        top: int = 5,
        preprocess: Preprocess | str | None = None,
        class_names: Sequence[str] | None = None,
        recursive: bool = True,
        workers: int | None = None,
        decode: str = "auto",
    ) -> Iterator[Answer]:
        """Yield the answers of `vgg16gpu.classify` for files, on all devices: one set of threads decodes for all.

        The options are those of that function; batch size and size are the pool's, which must be of one size. Mean and
        deviation of `preprocess` must be those that the pool was built with. Raises as that function.
        """
        if top < 0:
            raise InputError(f"top {top}: give a number of classes, 0 for none")
        engine = self.engine
        sample = engine.program.input.shape[1:]
        wanted = self._preprocess(preprocess, sample)
        listing = list_files(paths_of(paths), recursive=recursive)
        spec = spec_of(engine.graph.input, sample, wanted)
        on_device = decodes_on_device(decode, engine.device.facts.kind, spec)
        kinds: Any = {"for_gpu": engine.device.facts.kind == "cuda", "apart": self.has_processes}
        devices = len(self.roll.working)
        with FilePipeline(listing, spec, workers, decodes_on_device=on_device, devices=devices, **kinds) as folder:
            folder.require_one()
            ranking = Ranking(top, gives_probabilities(engine.graph))
            with self.answers(folder, ranking, decode if on_device else None) as stream:
                if listing.has_pictures:
                    warn_of_assumption(self.model, wanted, sample)
                yield from named(stream, class_names_of(self.model, engine, class_names))
                if "uint8" in stream.element_types:
                    warn_of_assumption(self.model, wanted, sample)

    @contextmanager
    def answers(self, folder: FilePipeline, ranking: Ranking, decode: str | None = None) -> Iterator[AnswerStream]:
        """Yield the stream of answers for a folder's files, in their order.

        The folder was told how many devices work, and whether these are `apart`. decode: the decoder, of
        `pictures.choices.DECODE`, where devices decode. The work of each device is added to its share at the end.
        """
        self._open()
        working = self.roll.working
        members = {id(member.engine): member for member in working}
        seats = [seat_of(member.engine, decode) for member in working]
        with folder.shared_answers(
            seats, ranking, lambda engine, error: self.roll.take_out(members[id(engine)], error)
        ) as stream:
            try:
                yield stream
            finally:
                for feeder, member in zip(stream.feeders, working, strict=True):
                    member.share.images += feeder.images
                    member.share.batches += feeder.batches
                    member.share.seconds += feeder.seconds.computing

    def _preprocess(self, asked: Preprocess | str | None, sample: tuple[int, ...]) -> Preprocess | None:
        """Return the preprocessing of pictures. Raises InputError where the engines normalise bytes otherwise."""
        if None in (self.engine.inputs[0].shape or ())[1:]:
            raise InputError("a pool for images of any size takes no pictures; build it with size=224, say")
        wanted = wanted_preprocess(self.model, asked, self.engine.precision, sample)
        if wanted is None:
            return None
        built = wanted_preprocess(self.model, None, self.engine.precision, sample)
        assert built is not None
        mean, std = self._options.get("mean") or built.unit_mean, self._options.get("std") or built.unit_std
        if (tuple(mean), tuple(std)) != (tuple(wanted.unit_mean), tuple(wanted.unit_std)):
            raise InputError(
                f"the pool normalises by mean {tuple(mean)} and std {tuple(std)}, these pictures want "
                f"{wanted.unit_mean} and {wanted.unit_std}; build it with mean=... and std=..."
            )
        return wanted

    def close(self) -> None:
        """Free everything on all devices, once what is under way is done. Safe to call twice.

        A card's process that does not get done with it in `PATIENCE` seconds is killed.
        """
        crew, self._crew = self._crew, None
        if crew:
            crew.close(PATIENCE, partial(kill_processes, self.engines)) if self.has_processes else crew.close()
        close_engines(self.engines)

    def decoder(self, decode: str) -> str | None:
        """Return the name of the decoder on devices that have processes; None without one.

        decode: the wanted one. Raises DeviceError where "gpu" is wanted and cannot be.
        """
        return self._asked(lambda engine: None if isinstance(engine, Engine) else engine.decoder(decode))

    def _asked(self, question: Callable[[PoolEngine], Answered]) -> Answered:
        """Return the answer of a working engine; one that has failed meanwhile is taken out."""
        while True:
            member = self.roll.working[0]
            try:
                return question(member.engine)
            except (DeviceError, KernelError) as error:
                if isinstance(member.engine, Engine) or not self.roll.take_out(member, error):
                    raise

    def _open(self) -> WorkerPool:
        if self._crew is None:
            raise InputError("the pool is closed; build a new one")
        return self._crew

    def _checked(self, x: Any) -> Images:
        if is_on_device(x):
            raise InputError(
                "a pool takes arrays on the host, for it is the pool that chooses the device; run an "
                "array on a GPU with an Engine of that GPU"
            )
        images: Images = self.engine.checked(x)
        self._assumed.warn(images.dtype)
        return images

    def _stream(self, source: RequestStream, size: int) -> Iterator[Outputs]:
        crew = self._open()
        for form, items in itertools.groupby(source, key=lambda item: item.form):
            assert form is not None  # nothing that lies on a GPU has passed the check
            element_type, sample = form
            batches = _Batches(crew, Form(element_type, sample, size))
            depth = AHEAD * len(self.roll.working)
            try:
                for item in flow(cut(items, size), batches.send, batches.receive, depth):
                    yield batches.joined(item)
            finally:
                batches.cancel()
        if source.failure:
            raise source.failure


class _Batches:
    """The batches of one form on their way through a crew."""

    def __init__(self, crew: WorkerPool, form: Form) -> None:
        self._crew, self._form = crew, form
        self._under_way: deque[BatchTask] = deque()
        self._last: BatchResultEvent | None = None

    def send(self, rows: Sequence[Images]) -> BatchTask:
        """Submit a batch."""
        self._under_way.append(self._crew.submit(BatchTask(self._form, rows)))
        return self._under_way[-1]

    def receive(self, task: BatchTask) -> OutputRows:
        """Wait for the oldest batch and return its results."""
        self._last = task.done.result()
        self._under_way.popleft()
        return self._last.results

    def joined(self, item: Request) -> Outputs:
        """Return the outputs of an item, all of which has come back. Raises InputError."""
        assert self._last is not None
        return self._last.joined(item.results, f"{item_name(item.number)}: ")

    def cancel(self) -> None:
        """Cancel the batches that have not begun."""
        for task in self._under_way:
            task.done.cancel()
