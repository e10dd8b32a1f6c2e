"""`infer`: images or numbers in, the best classes out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from vgg16gpu.cli import EXIT_CHECK_FAILED, EXIT_USAGE, Terminated
from vgg16gpu.cli.common.interrupts import Interrupts
from vgg16gpu.cli.common.progress import Counter
from vgg16gpu.cli.common.show import print_json
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.infer.asked import ResolvedConfig
from vgg16gpu.cli.infer.engines import Engines, OneEngine
from vgg16gpu.cli.infer.options import MANY, InferOptions
from vgg16gpu.cli.infer.report import Stages, print_report, report_of, report_of_nothing, told_of
from vgg16gpu.cli.infer.tally import RunSummary
from vgg16gpu.compiler.class_scores import gives_probabilities
from vgg16gpu.devices import Opened, expects_gpu
from vgg16gpu.devices.several import open_devices, resolve_devices
from vgg16gpu.devices.stages import stage, tell_run
from vgg16gpu.errors import InputError
from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.io.shown import printable
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.answers.codec_choice import CodecAhead, decodes_on_device
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.engine import Engine

if TYPE_CHECKING:
    from vgg16gpu.cli.infer.several import SeveralEngines
    from vgg16gpu.cli.infer.writing import Writing
    from vgg16gpu.devices.picture_decoder import PictureCodec
    from vgg16gpu.io.results import ResultWriter


def infer(options: InferOptions) -> int:
    """Classify and print. Returns the exit code."""
    writing = _writing(options)
    asked = ResolvedConfig.of(options)
    with ExitStack() as stack:
        run = _InferRun(asked, stack.enter_context(Interrupts()), writing)
        return run.resumed(stack) if options.resume else run.begun(stack)


def _writing(options: InferOptions) -> Writing | None:
    """Return the writer of --output; None without it. Raises InputError for options that need it."""
    if options.output:
        from vgg16gpu.cli.infer.writing import Writing  # noqa: PLC0415 - a few pictures on a screen do without

        return Writing(options)
    if options.resume or options.form:
        raise InputError(f"{'--resume' if options.resume else '--format'} is of a file of results; name it by --output")
    return None


class _InferRun:
    """One run, from the first file to the report."""

    def __init__(self, asked: ResolvedConfig, interrupts: Interrupts, writing: Writing | None) -> None:
        self._asked, self._interrupts, self._writing = asked, interrupts, writing
        options = asked.options
        self._tally = RunSummary(asked.names, None if options.as_json or options.table else MANY)
        self._results: ResultWriter | None = None
        self._devices = resolve_devices(options.devices or (options.device,))
        self._decodes_on_device = decodes_on_device(options.decode, self._devices[0], asked.spec)
        self._opened: Sequence[Opened] = ()  # by this process
        self._cards: SeveralEngines | None = None  # those of other processes
        self._ahead: CodecAhead | None = None
        self._writing_seconds = 0.0
        if writing:
            writing.begin(asked)

    def begun(self, stack: ExitStack) -> int:
        """Compute all files, from the first on; return the exit code."""
        # Decoding starts at once, and a mistyped input does not cost a compilation.
        folder = self._folder(stack)
        with stage("first input"):
            folder.require_one()
        self._open(stack)
        return self._compute(stack, folder)

    def resumed(self, stack: ExitStack) -> int:
        """Compute the files that have no row yet; return the exit code."""
        asked = self._asked
        assert self._writing is not None
        self._writing.take_recorded_kernels()
        self._open(stack)
        results = self._open_results(stack, self._writing)
        first = self._writing.skip(results, asked.listing)
        if first[0] == len(asked.listing.files):
            results.finish()
            self._say(f"all {len(results.done):,} inputs have their rows in {asked.options.output}")
            if asked.options.as_json:
                print_json(report_of_nothing(asked, *self._first()))
            return EXIT_CHECK_FAILED if results.unanswered else 0
        self._say(f"{len(results.done):,} inputs have their rows in {asked.options.output} already")
        folder = self._folder(stack, first)
        return self._compute(stack, folder)

    def _folder(self, stack: ExitStack, first: tuple[int, int] = (0, 0)) -> FilePipeline:
        asked = self._asked
        on_device = self._decodes_on_device
        return stack.enter_context(
            FilePipeline(
                asked.listing,
                asked.spec,
                asked.options.workers,
                first,
                decodes_on_device=on_device,
                devices=len(self._devices),
                for_gpu=expects_gpu(self._devices[0]),
                apart=self._are_apart(),
            )
        )

    def _are_apart(self) -> bool:
        """Return whether each device has a process of its own."""
        if len(self._devices) < 2:
            return False
        from vgg16gpu.cluster.cards import have_processes  # noqa: PLC0415 - one device does without

        return have_processes(self._devices)

    def _open(self, stack: ExitStack) -> None:
        """Open the devices; where they have processes, the engines with them."""
        if self._are_apart():
            from vgg16gpu.cluster.cards import kind_of  # noqa: PLC0415 - one device does without

            self._cards = self._several(stack, self._devices, kind_of(self._devices[0]))
            return
        self._opened = open_devices(self._devices)
        for each in self._opened:
            stack.enter_context(closing(each.device))
        if self._decodes_on_device:
            self._ahead = stack.enter_context(closing(CodecAhead(self._opened[0].device, self._asked.options.decode)))

    def _first(self) -> tuple[DeviceFacts, str]:
        """Return the facts of the first device, and why it is this one."""
        if self._cards:
            return self._cards.engine.device.facts, self._cards.engine.device_choice
        return self._opened[0].device.facts, self._opened[0].choice

    def _codec(self) -> PictureCodec | None:
        """Return the decoder on the first device, once it is known; None without one."""
        if self._ahead is None:
            return None
        with stage("decoder"):
            return self._ahead.result()

    def _open_results(self, stack: ExitStack, writing: Writing) -> ResultWriter:
        if self._cards:
            decoder = self._cards.decoder
        else:
            codec = self._codec()
            decoder = codec.name if codec else None
        self._results = stack.enter_context(writing.open(self._asked, self._first()[0], decoder or CPU))
        return self._results

    def _compute(self, stack: ExitStack, folder: FilePipeline) -> int:
        engines = self._cards or self._engines(stack)
        engine = engines.engine
        if self._ahead:  # while its decoder is made
            stack.callback(folder.close)
            folder.pin(engine)
        if self._writing and not self._results:
            self._open_results(stack, self._writing)  # by now the model's digest is there
        ranking = Ranking(self._asked.top, gives_probabilities(engine.graph))
        # The report for the screen has a line of it.
        assumption = "" if self._asked.options.shows_report else self._asked.assumption
        if assumption and self._asked.listing.has_pictures:
            self._say(assumption)
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
        if assumption and "uint8" in stream.element_types and not self._asked.listing.has_pictures:  # arrays of pixels
            self._say(assumption)
        stages = Stages.of(folder, stream, time.perf_counter() - start, self._writing_seconds)
        shares = engines.shares(stream)
        if self._asked.options.as_json or self._asked.options.shows_report:
            with stage("report"):  # before the engine is closed: nobody waits for memory to be given back
                report = report_of(self._asked, engines, folder, stream, self._tally, stages, shares)
                tell_run(told_of(report))
                self._tell(report)
        return self._exit_code()

    def _engines(self, stack: ExitStack) -> Engines:
        """Return the engines of this process."""
        opened, kind = self._opened, self._opened[0].device.facts.kind
        if len(opened) > 1:
            return self._several(stack, opened, kind)
        return OneEngine(stack.enter_context(Engine(self._asked.model, device=opened[0], **self._built(kind))))

    def _several(self, stack: ExitStack, devices: Sequence[Opened] | Sequence[str], kind: str) -> SeveralEngines:
        from vgg16gpu.cli.infer.several import SeveralEngines  # noqa: PLC0415 - one device does without
        from vgg16gpu.cluster.pool import EnginePool  # noqa: PLC0415 - as above

        pool = stack.enter_context(EnginePool(self._asked.model, devices=devices, **self._built(kind)))
        return SeveralEngines(pool, self._asked.options.decode if self._decodes_on_device else None)

    def _built(self, kind: str) -> dict[str, Any]:
        """Return the options of engines on devices of a kind."""
        asked, options = self._asked, self._asked.options
        return {
            "precision": options.precision,
            "kernels": options.kernels,
            "batch": asked.batch(kind),
            "size": options.size,
            "outputs": options.outputs,
            "mean": asked.notes.mean,
            "std": asked.notes.std,
            "allow_nonfinite": options.allow_nonfinite,
        }

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

    def _write(self, answers: PredictionBatch) -> None:
        if self._results:
            start = time.perf_counter()
            with self._interrupts.held():
                self._results.write(answers)
            self._writing_seconds += time.perf_counter() - start

    def _tell_errors(self, answers: PredictionBatch) -> None:
        """Print the first errors; the summary counts all."""
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
        """Print what is wrong with inputs and answers; return the exit code. With --allow-nonfinite NaN is right."""
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
