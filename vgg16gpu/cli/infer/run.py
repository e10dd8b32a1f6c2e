"""`infer`: images or numbers in, the best classes out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vgg16gpu.cli import EXIT_CHECK_FAILED, EXIT_USAGE, Terminated
from vgg16gpu.cli.common.interrupts import Interrupts
from vgg16gpu.cli.common.progress import Counter
from vgg16gpu.cli.common.show import print_json
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.infer.asked import Asked
from vgg16gpu.cli.infer.options import MANY, Options
from vgg16gpu.cli.infer.report import print_report, report_of, report_of_nothing, told_of
from vgg16gpu.cli.infer.tally import Tally
from vgg16gpu.cli.infer.times import Stages
from vgg16gpu.compiler.graph.ops import gives_probabilities
from vgg16gpu.devices import Opened, expects_gpu
from vgg16gpu.devices.several import open_devices, resolve_devices
from vgg16gpu.devices.stages import stage, tell_run
from vgg16gpu.errors import InputError
from vgg16gpu.io.answers import Answers
from vgg16gpu.io.shown import printable
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.runtime.answers.codec_choice import CodecAhead, decodes_on_device
from vgg16gpu.runtime.answers.folder import Folder
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.engine import Engine

if TYPE_CHECKING:
    from vgg16gpu.cli.infer.writing import Writing
    from vgg16gpu.devices.picture_decoder import PictureCodec
    from vgg16gpu.io.results import Results


def infer(options: Options) -> int:
    """Classify and print. Returns the exit code."""
    writing = _writing(options)
    asked = Asked.of(options)
    with ExitStack() as stack:
        run = _Run(asked, stack.enter_context(Interrupts()), writing)
        return run.resumed(stack) if options.resume else run.begun(stack)


def _writing(options: Options) -> Writing | None:
    """What writes --output; None without it."""
    if options.output:
        from vgg16gpu.cli.infer.writing import Writing  # noqa: PLC0415 - a few pictures on a screen do without

        return Writing(options)
    if options.resume or options.form:
        raise InputError(f"{'--resume' if options.resume else '--format'} is of a file of results; name it by --output")
    return None


class Engines(Protocol):
    """What computes: one engine, or several that share the files."""

    @property
    def engine(self) -> Engine:
        """One that works."""

    def answers(
        self, folder: Folder, ranking: Ranking, codec: PictureCodec | None
    ) -> AbstractContextManager[AnswerStream]:
        """What they make of the files. codec: what decodes on the first device."""

    def shares(self, stream: AnswerStream) -> list[dict[str, Any]] | None:
        """What each device of several has done, as plain data."""


@dataclass(frozen=True)
class OneEngine:
    """A single one."""

    engine: Engine

    def answers(
        self, folder: Folder, ranking: Ranking, codec: PictureCodec | None
    ) -> AbstractContextManager[AnswerStream]:
        """See Engines."""
        return folder.answers(self.engine, ranking, codec=codec)

    def shares(self, stream: AnswerStream) -> None:
        """There is nobody to share with."""


class _Run:
    """One run, from the first file to the report."""

    def __init__(self, asked: Asked, interrupts: Interrupts, writing: Writing | None) -> None:
        self._asked, self._interrupts, self._writing = asked, interrupts, writing
        options = asked.options
        self._tally = Tally(asked.names, None if options.as_json or options.table else MANY)
        self._results: Results | None = None
        self._devices = resolve_devices(options.devices or (options.device,))
        self._decodes_on_device = decodes_on_device(options.decode, self._devices[0], asked.spec)
        self._ahead: CodecAhead | None = None
        self._writing_seconds = 0.0
        if writing:
            writing.begin(asked)

    def begun(self, stack: ExitStack) -> int:
        """All files, from the first on."""
        # Decoding starts at once, and a mistyped input does not cost a compilation.
        folder = self._folder(stack)
        with stage("first input"):
            folder.require_one()
        return self._compute(stack, folder, self._open(stack))

    def resumed(self, stack: ExitStack) -> int:
        """The files that have no row yet."""
        asked = self._asked
        opened = self._open(stack)
        assert self._writing is not None
        results = self._open_results(stack, opened, self._writing)
        first = self._writing.skip(results, asked.listing)
        if first[0] == len(asked.listing.files):
            results.finish()
            self._say(f"all {len(results.done):,} inputs have their rows in {asked.options.output}")
            if asked.options.as_json:
                print_json(report_of_nothing(asked, opened[0].device, opened[0].choice))
            return EXIT_CHECK_FAILED if results.unanswered else 0
        self._say(f"{len(results.done):,} inputs have their rows in {asked.options.output} already")
        folder = self._folder(stack, first)
        return self._compute(stack, folder, opened)

    def _folder(self, stack: ExitStack, first: tuple[int, int] = (0, 0)) -> Folder:
        asked = self._asked
        on_device = self._decodes_on_device
        return stack.enter_context(
            Folder(
                asked.listing,
                asked.spec,
                asked.options.workers,
                first,
                decodes_on_device=on_device,
                devices=len(self._devices),
                for_gpu=expects_gpu(self._devices[0]),
            )
        )

    def _open(self, stack: ExitStack) -> Sequence[Opened]:
        opened = open_devices(self._devices)
        for each in opened:
            stack.enter_context(closing(each.device))
        if self._decodes_on_device:
            self._ahead = stack.enter_context(closing(CodecAhead(opened[0].device, self._asked.options.decode)))
        return opened

    def _codec(self) -> PictureCodec | None:
        """What decodes on the first device, once it is known; None where nothing does."""
        if self._ahead is None:
            return None
        with stage("decoder"):
            return self._ahead.result()

    def _open_results(self, stack: ExitStack, opened: Sequence[Opened], writing: Writing) -> Results:
        codec = self._codec()
        decoder = codec.name if codec else CPU
        self._results = stack.enter_context(writing.open(self._asked, opened[0].device, decoder))
        return self._results

    def _compute(self, stack: ExitStack, folder: Folder, opened: Sequence[Opened]) -> int:
        engines = self._engines(stack, opened)
        engine = engines.engine
        if self._ahead:  # while its decoder is made
            stack.callback(folder.close)
            folder.pin(engine)
        if self._writing and not self._results:
            self._open_results(stack, opened, self._writing)  # by now the model's digest is there
        ranking = Ranking(self._asked.top, gives_probabilities(engine.graph))
        stream = stack.enter_context(engines.answers(folder, ranking, self._codec()))
        start = time.perf_counter()
        try:
            with stage("first run"):
                self._answer(stream)
            if self._results:
                self._results.finish()
        except (KeyboardInterrupt, Terminated):
            self._tell_interrupted()
            raise
        if self._asked.warnings and "uint8" in stream.element_types:
            tell(f"warning: {'; '.join(self._asked.warnings)}")
        stages = Stages.of(folder, stream, time.perf_counter() - start, self._writing_seconds)
        shares = engines.shares(stream)
        if self._asked.options.as_json or self._asked.options.shows_report:
            with stage("report"):  # before the engine is closed: nobody waits for memory to be given back
                report = report_of(self._asked, engine, folder, stream, self._tally, stages, shares)
                tell_run(told_of(report))
                self._tell(report)
        return self._exit_code()

    def _engines(self, stack: ExitStack, opened: Sequence[Opened]) -> Engines:
        asked, options = self._asked, self._asked.options
        built: dict[str, Any] = {
            "precision": options.precision,
            "kernels": options.kernels,
            "batch": asked.batch(opened[0].device.facts.kind),
            "size": options.size,
            "outputs": options.outputs,
            "mean": asked.notes.mean,
            "std": asked.notes.std,
            "allow_nonfinite": options.allow_nonfinite,
        }
        if len(opened) == 1:
            return OneEngine(stack.enter_context(Engine(asked.model, device=opened[0], **built)))
        from vgg16gpu.cli.infer.several import SeveralEngines  # noqa: PLC0415 - one device does without

        return SeveralEngines.built(stack, asked.model, opened, options.decode, built)

    def _answer(self, stream: AnswerStream) -> None:
        options, done = self._asked.options, len(self._results.done) if self._results else 0
        with Counter(
            "inputs", len(self._asked.listing.files) - done, quiet=options.as_json or options.quiet
        ) as counter:
            for answers in stream:
                self._tell_errors(answers)
                self._tally.add(answers)
                self._write(answers)
                counter.add(len(answers.names))

    def _write(self, answers: Answers) -> None:
        if self._results:
            start = time.perf_counter()
            with self._interrupts.held():
                self._results.write(answers)
            self._writing_seconds += time.perf_counter() - start

    def _tell_errors(self, answers: Answers) -> None:
        """The first ones; the summary counts all."""
        room = max(0, MANY - self._tally.unread)
        for i in sorted(answers.unread)[:room]:
            tell(printable(answers.errors[i]))

    def _tell_interrupted(self) -> None:
        if self._results:
            rows, total = len(self._results.done) + self._tally.total, len(self._asked.listing.files)
            tell(f"{rows:,} of {total:,} inputs have their rows in {self._asked.options.output}; --resume goes on")

    def _tell(self, report: dict[str, Any]) -> None:
        if self._asked.options.as_json:
            print_json(report)
        else:
            print_report(report, self._tally, every_input=self._asked.options.table)

    def _say(self, text: str) -> None:
        if not self._asked.options.quiet:
            tell(printable(text))

    def _exit_code(self) -> int:
        """Say what is wrong with inputs and with answers. Who allows NaN reckons with no answers."""
        tally, options = self._tally, self._asked.options
        if tally.unread > MANY:
            tell(f"{tally.unread - MANY:,} other inputs cannot be read either; --output and --json name them all")
        silent = 0 if options.allow_nonfinite else tally.silent
        if silent:
            tell(
                f"{silent:,} of {tally.total:,} inputs have no answer, the first is {tally.first_silent}; the model's "
                "weights may hold NaN, or numbers that overflow"
            )
        done, failed = (len(self._results.done), self._results.unanswered) if self._results else (0, 0)
        if tally.unread + silent + failed == tally.total + done:
            return EXIT_USAGE
        return EXIT_CHECK_FAILED if tally.unread or silent or failed else 0
