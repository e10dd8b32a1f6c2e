"""Report a run of `infer`: counts, the time of each stage, summary, JSON."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from vgg16gpu.cli.common.show import (
    add_row,
    console,
    from_here,
    heading,
    per_second,
    seconds,
    sentence,
    share_lines,
    table,
)
from vgg16gpu.cli.common.tell import device_words
from vgg16gpu.cli.infer.asked import ResolvedConfig
from vgg16gpu.cli.infer.engines import Engines, ReportedEngine
from vgg16gpu.cli.infer.options import MANY
from vgg16gpu.cli.infer.tally import RunSummary
from vgg16gpu.compiler.class_scores import gives_probabilities
from vgg16gpu.compiler.graph.input_size import takes_any_size
from vgg16gpu.devices.stages import stage
from vgg16gpu.io.shown import printable
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.arrays import Images

STEADY_RUNS = 3  # for a steady time
STEADY_BUDGET = 1.0  # seconds that they may take together
_PRIME = 251  # no row of a picture is as the one before
_LIMITED = 0.8  # a stage at work for so much of the time is what the others wait for


@dataclass(frozen=True)
class Stages:
    """Seconds of each stage; they work beside each other.

    reading, decoding: of `threads` threads together, and `held`, in which these waited for the stages behind them.
    """

    wall: float  # from the start of reading to the last row
    building: float  # of it, until the engine was there
    threads: int
    reading: float
    decoding: float
    held: float
    computing: float  # uploading, and waiting for the device
    starved: float  # the device without inputs
    ranking: float
    writing: float
    decoders: int = 0  # of the GPU
    decoding_on_gpu: float = 0.0  # of these together

    @classmethod
    def of(cls, folder: FilePipeline, stream: AnswerStream, answering: float, writing: float) -> Stages:
        """Return the stages of a run that ends now. answering: seconds since the engine was built."""
        loading, device, told = folder.loader.seconds, stream.seconds, stream.decoded
        wall = time.perf_counter() - folder.started
        return cls(
            wall,
            wall - answering,
            folder.loader.threads,
            loading.reading,
            loading.decoding,
            loading.waiting,
            device.computing,
            device.waiting,
            stream.ranking_seconds,
            writing,
            told.decoders if told else 0,
            told.seconds if told else 0.0,
        )

    @property
    def answering(self) -> float:
        """From there to the last row."""
        return self.wall - self.building

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of the time in which each stage was at work."""
        seconds = {
            "building": self.building,
            "reading": self.reading / self.threads,
            "decoding": self.decoding / self.threads,
            "computing": self.computing,
            "ranking": self.ranking,
            "writing": self.writing,
        }
        if self.decoders:
            seconds["decoding on the GPU"] = self.decoding_on_gpu / self.decoders
        return {name: value / self.wall for name, value in seconds.items()}

    @property
    def limit(self) -> str:
        """The stage that was at work nearly all the time; "start" where none was, or nothing but building."""
        shares = {name: share for name, share in self.shares.items() if name != "building"}
        loading = shares["reading"] + shares["decoding"]
        busiest = max(shares, key=lambda name: shares[name])
        if max(loading, shares[busiest]) < _LIMITED:
            return "start"
        if loading >= shares[busiest]:
            return "reading" if shares["reading"] > shares["decoding"] else "decoding"
        return busiest


def steady_seconds(engine: ReportedEngine, run: Callable[[Images], object], first_run: float) -> float | None:
    """Return the median seconds of warm runs of the engine's batch, host to host; None where one takes long.

    Of numbers that mean nothing: times do not depend on them.
    """
    runs = min(STEADY_RUNS, int(STEADY_BUDGET / max(first_run, 1e-6)))
    entries = engine.program.input.entries
    shape = engine.program.input.shape
    pixels = np.arange(_PRIME, dtype=np.uint8)  # numpy's random numbers take 10 ms to import
    x: Images
    if "uint8" in entries:
        x = np.resize(pixels, (shape[0], *shape[2:], shape[1]))
    else:
        x = np.resize(pixels.astype(np.float32) / np.float32(_PRIME), engine.graph.input.in_file(shape))
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run(x)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) if seconds else None


_ALONE: Final = {"problem": ""}  # the share of a single device
_TOLD: Final = ("precision", "arithmetic", "batch", "device", "device_choice", "timings", "rates", "stages")


def report_of(
    asked: ResolvedConfig,
    engines: Engines,
    folder: FilePipeline,
    stream: AnswerStream,
    tally: RunSummary,
    stages: Stages,
    shares: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the results of `infer` as plain data, for --json. shares: the work of each of several devices."""
    engine = engines.engine
    timings, first, batch = engine.timings, stream.seconds.first_run, engine.program.batch
    with stage("further runs"):
        steady = steady_seconds(engine, engines.run, first)
    found: dict[str, Any] = {
        "arithmetic": engine.plan.arithmetic,
        "preprocess": _preprocess(asked, folder, stream),
        "inputs": tally.inputs,
        "unreadable": tally.unreadable,
        "timings": {
            "load_s": timings.load,
            "compile_s": timings.compile,
            "upload_s": timings.upload,
            "first_run_s": first,
            "steady_run_s": steady,
        },
        "decode": _decode(folder, stream),
        "rates": {
            "inputs_per_s": tally.total / stages.answering,
            "decode_images_per_s": folder.loader.decode_rate,
            "decode_threads": folder.loader.threads,
            "engine_images_per_s": batch
            / (steady or first)
            * sum(not share["problem"] for share in shares or [_ALONE]),
        },
        "stages": {**asdict(stages), "shares": stages.shares, "limit": stages.limit},
    }
    if shares is not None:
        found["devices"] = list(shares)
    return {**report_of_nothing(asked, engine.device.facts, engine.device_choice), **found}


def report_of_nothing(asked: ResolvedConfig, device: DeviceFacts, device_choice: str) -> dict[str, Any]:
    """Return the same for a run that had no input left to compute."""
    report: dict[str, Any] = {
        "model": str(asked.path),
        "precision": asked.options.precision,
        "kernels": asked.options.kernels,
        "arithmetic": None,
        "batch": asked.batch(device.kind),
        "device": device.name,
        "device_choice": device_choice,
        "note": asked.notes.note,
        "size": _size(asked),
        "preprocess": None,
        "probabilities": _probabilities(asked),
        "outputs": list(asked.graph.outputs),
        "output_shape": list(asked.score_shape),
        "inputs": [],
        "unreadable": [],
        "timings": None,
        "decode": None,
        "rates": None,
        "stages": None,
    }
    return {**report, "output": str(asked.options.output)} if asked.options.output else report


def told_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that tell how the run went, without single inputs: for the log."""
    return {name: report[name] for name in _TOLD}


def _preprocess(asked: ResolvedConfig, folder: FilePipeline, stream: AnswerStream) -> dict[str, Any] | None:
    """Return the preprocessing of pictures and pixels; None where all inputs were numbers."""
    preprocess = asked.notes.preprocess
    if preprocess is None or "uint8" not in stream.element_types:
        return None
    height, width = asked.shape[1:]
    told = preprocess.report(height, width, pictures=folder.loader.decoded > 0)
    return {**told, "warning": "; ".join(asked.warnings) or None}


def _decode(folder: FilePipeline, stream: AnswerStream) -> dict[str, Any] | None:
    """Return the decoder of pictures, and how many it decoded; None where there were none."""
    read, told = folder.loader.decoded, stream.decoded
    if not read:
        return None
    if told is None:
        return {"by": CPU, "cpu": read, "gpu": 0, "gpu_images_per_s": None, "gpu_decoders": 0}
    gpu = told.count - told.refused
    return {
        "by": told.by,
        "cpu": read - gpu - told.failed,
        "gpu": gpu,
        "gpu_images_per_s": told.rate,
        "gpu_decoders": told.decoders,
    }


def _size(asked: ResolvedConfig) -> str | None:
    """Return the size that pictures are brought to; None where it was fixed or the user chose it."""
    if asked.options.size is not None or not takes_any_size(asked.graph):
        return None
    height, width = asked.shape[1:]
    return f"{height}x{width} is taken of a model that is open in size; --size asks for another"


def _probabilities(asked: ResolvedConfig) -> str | None:
    if not asked.top:
        return None
    return "from the model" if gives_probabilities(asked.graph) else "softmax of the scores, for display"


def print_report(report: dict[str, Any], tally: RunSummary, *, every_input: bool = False) -> None:
    """Print table, remarks and times on stdout. Many inputs are summed up unless `every_input`."""
    screen = console()
    if report["probabilities"]:
        heading(screen, f"{from_here(report['model'])} (probability: {report['probabilities']})")
        if every_input or tally.total <= MANY:
            screen.print(_table(report))
        else:
            from vgg16gpu.cli.infer.summary import print_summary  # noqa: PLC0415 - of many inputs alone

            print_summary(screen, tally, has_output="output" in report)
    else:
        screen.print(f"Output of shape {report['output_shape']} per input: no classes to rank; see --output")
    if len(report["outputs"]) > 1:
        screen.print(_outputs_line(report), style="bold yellow", markup=False)
    if report["note"]:
        screen.print(f"Note: {report['note']}", style="bold yellow", markup=False)
    if report["size"]:
        screen.print(f"Size: {report['size']}", markup=False, soft_wrap=True)
    done = sentence(report["preprocess"]["line"]) if report["preprocess"] else "Numbers: taken as they are"
    screen.print(done, markup=False, soft_wrap=True)
    times = report["timings"]
    build = times["compile_s"] + times["upload_s"]
    screen.print(
        f"Device: {device_words(report['device_choice'])}; "
        f"precision {report['precision']}, kernels {report['kernels']} ({report['arithmetic']})",
        markup=False,
    )
    for line in share_lines(report.get("devices", ())):
        screen.print(line, markup=False)
    screen.print(
        f"Times: load {seconds(times['load_s'])}, build {seconds(build)} "
        f"(kernels {seconds(times['compile_s'])}, weights {seconds(times['upload_s'])}), "
        f"first run {seconds(times['first_run_s'])}, steady run {seconds(times['steady_run_s'])}, "
        f"batch {report['batch']}"
    )
    if tally.total > 1 and report["rates"]["decode_images_per_s"]:
        screen.print(_rates_line(report))
    if report["decode"] and report["decode"]["gpu_decoders"]:
        screen.print(_decode_line(report["decode"]), markup=False, soft_wrap=True)
    if tally.total > MANY:
        screen.print(_stages_line(report["stages"]))
    if "output" in report:
        screen.print(f"Rows of {tally.total:,} inputs: {printable(report['output'])}", markup=False)


def _decode_line(decode: dict[str, Any]) -> str:
    rate = f", {per_second(decode['gpu_images_per_s'])} images/s alone" if decode["gpu_images_per_s"] else ""
    return f"Decoded: {decode['gpu']:,} by {decode['by']}{rate}; {decode['cpu']:,} by the CPU"


def _rates_line(report: dict[str, Any]) -> str:
    rates = report["rates"]
    threads = rates["decode_threads"]
    work = "reading" if report["decode"] and report["decode"]["gpu"] else "decoding"
    return (
        f"Rates: {per_second(rates['inputs_per_s'])} inputs/s; alone, {work} "
        f"{per_second(rates['decode_images_per_s'])} images/s "
        f"({threads} {'thread' if threads == 1 else 'threads'}), "
        f"engine {per_second(rates['engine_images_per_s'])} images/s (batch {report['batch']}, host to host)"
    )


def _stages_line(stages: dict[str, Any]) -> str:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in stages["shares"].items())
    limits = {"start": "no stage was at work all the time", "computing": "the device was what the others waited for"}
    limit = limits.get(stages["limit"], f"{stages['limit']} was what the others waited for")
    return f"Where {seconds(stages['wall'])} went, stages beside each other: {shares}; {limit}"


def _outputs_line(report: dict[str, Any]) -> str:
    first, *others = report["outputs"]
    line = f"Outputs: shown is '{first}', the first of {len(others) + 1}; the model also gives {', '.join(others)}"
    from vgg16gpu.io.results import holds_all_outputs  # noqa: PLC0415 - most models have one output

    if "output" in report and holds_all_outputs(Path(report["output"])):
        return f"{line}: all are in {report['output']}"
    return f"{line}: --output FILE.npz takes all" + (", this file the first alone" if "output" in report else "")


def _table(report: dict[str, Any]) -> Any:
    result = table(
        ["input", "rank", "class", "name", "score", "probability"],
        right=["rank", "class", "score", "probability"],
    )
    for item in report["inputs"]:
        if item["problem"]:
            add_row(result, printable(item["name"]), "", "", item["problem"], "", "", style="red")
        for place, line in enumerate(item["top"], start=1):
            add_row(
                result,
                printable(item["name"]) if place == 1 else "",
                place,
                line["index"],
                line["label"],
                f"{line['score']:.4f}",
                f"{line['probability']:.2%}",
                end_section=place == len(item["top"]) > 1,
            )
    return result
