"""`tune`: measure which tile is fastest for each layer on this GPU, or which kernels in float32."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.tune.float32 import BATCH, measure_float32, random_vgg16
from vgg16gpu.bench.tune.search import Finding, search, tiles
from vgg16gpu.bench.tune.tasks import TuneTask, distinct, tasks, vgg_graph
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.options import (
    batches_option,
    find_model,
    gpu_option,
    precisions_option,
    renamed_option,
    sizes_option,
)
from vgg16gpu.cli.common.parsing import Real, Whole, parse_batches
from vgg16gpu.cli.common.show import add_row, console, progress, table
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.op_kernels.wgmma import has_float32_choice, has_wgmma
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.devices import open_device, tuned
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cache import cache_dir
from vgg16gpu.devices.cuda.compiler import CubinCompiler, CubinUnit
from vgg16gpu.errors import DeviceError, Error, ModelError
from vgg16gpu.io.files import atomic_writer, check_outputs
from vgg16gpu.program.launch import Kernel
from vgg16gpu.program.types import DeviceFacts, Tiles

DEFAULT_SIZES = (224, 244)

_OUTPUT_HELP = "Write everything that was measured there, as JSON."
_TABLE_HELP = "Write the table there instead of into the cache folder, where engines look for it."
_SECONDS_HELP = "Stop after so long with what there is."
_TOP_HELP = "Candidates of each convolution."


@dataclass(frozen=True)
class TuneOptions:
    """The command line, as it is."""

    models: tuple[str, ...]
    named: tuple[str, ...]
    device: str
    precisions: tuple[str, ...]
    batches: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    output: Path | None
    table: Path | None
    seconds: float
    top: int


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("tune", cls=WritingCommand)
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@click.option("--model", "named", multiple=True, metavar="FILE", help="The same as MODEL; may be given several times.")
@precisions_option(",".join(PRECISIONS))
@gpu_option
@batches_option("each is tuned", "1,8,32,128")
@renamed_option("--batches", "--batch", "batches", callback=parse_batches)
@sizes_option("the models' own; without models 224,244")
@click.option("--output", type=_FILE, metavar="FILE", help=_OUTPUT_HELP)
@click.option("--table", type=_FILE, metavar="FILE", help=_TABLE_HELP)
@click.option("--seconds", type=Real(1), default=360, show_default=True, help=_SECONDS_HELP)
@click.option("--top", type=Whole(1), default=14, show_default=True, help=_TOP_HELP)
@click.pass_context
def tune_command(ctx: click.Context, /, **values: Any) -> None:
    """Measure which tile is fastest for each layer on this GPU, and keep a table of them for later runs.

    The layers are those of the MODELs, which are what `bench` takes; without any, those of VGG16. Each candidate is
    checked against float64 before it is timed, and its kernel is compiled, so that the first time takes minutes. The
    tile that is taken today stays where the fastest gains less than 2 %. Exit code 1 when one is wrong (it is named,
    and not used), or when the device fails on the way. These are the kernels of compute capability 9.0.

    On another NVIDIA GPU of compute capability 8.0 or newer VGG16 is timed in fp32 by pairs of float16 on tensor cores
    and by float32 products, and the table keeps which is faster: `--kernels auto` takes that from then on. Of the
    options only --device, --output and --table count.
    """
    options = TuneOptions(**values)
    check_outputs({"--output": options.output, "--table": options.table})
    deadline = time.monotonic() + options.seconds
    device, _ = open_device(options.device, needs_gpu=True)
    try:
        if has_float32_choice(device.facts):
            _tune_float32(options, device)
            return
        if not has_wgmma(device.facts):
            raise DeviceError(f"{device.facts.name} has nothing to tune; compute capability 8.0 and newer has")
        todo = distinct(_tasks(options, device.facts))
        compiler = CubinCompiler(device.facts.compute_capability)
        made, gpu = environment(device), device.facts.name
        findings: list[Finding] = []
        failure: Error | None = None
        with progress() as bar:
            found = search(device, todo, _compile(compiler), top=options.top, deadline=deadline)
            try:
                findings.extend(bar.track(found, total=len(todo), description="layers"))
            except Error as error:  # what was found before is worth keeping
                failure = error
    finally:
        device.close()
    if failure and not findings:  # a table of nothing would take the place of an earlier one
        raise failure
    path = _keep(options, gpu, tiles(findings), made, {"problems": [_record(finding) for finding in findings]})
    _print(findings, len(todo), path)
    if failure:
        tell(str(failure))
    if failure or any(finding.wrong for finding in findings):
        ctx.exit(EXIT_CHECK_FAILED)


def _tune_float32(options: TuneOptions, device: Device) -> None:
    """Measure which kernels are faster in float32, keep that in the card's table, and print it."""
    made, facts = environment(device), device.facts
    found = measure_float32(options.device, random_vgg16())
    path = _keep(options, facts.name, {tuned.FLOAT32: found.entry}, made, {"float32": found.entry})
    screen = console()
    times = ", ".join(f"{kernels} {1e3 * seconds:.2f} ms" for kernels, seconds in found.seconds.items())
    screen.print(f"VGG16 in fp32, batch {BATCH}: {times}", markup=False, soft_wrap=True)
    screen.print(f"kernels {found.entry['kernels']} for fp32: {path}", markup=False, soft_wrap=True)


def _keep(options: TuneOptions, gpu: str, found: Tiles, made: Mapping[str, Any], report: Mapping[str, Any]) -> Path:
    """Write what was found of a card into its table, and what was measured to --output; return the table's path."""
    path = options.table or tuned.own_path(gpu, cache_dir())
    path.parent.mkdir(parents=True, exist_ok=True)
    tuned.write(path, gpu, found, made)
    if options.output:
        text = json.dumps({"environment": made, **report}, indent=1)
        with atomic_writer(options.output) as stream:
            stream.write(f"{text}\n".encode())
    return path


def _tasks(options: TuneOptions, facts: DeviceFacts) -> Iterator[TuneTask]:
    for graph, size in _graphs(options):
        shapes = [resolve_input_shape(graph, batch, size) for batch in sorted(options.batches)]
        yield from tasks(graph, facts, options.precisions, shapes)


def _graphs(options: TuneOptions) -> Iterator[tuple[Graph, tuple[int, int] | None]]:
    models = (*options.models, *options.named)
    if not models:
        for height, width in options.sizes or [(size, size) for size in DEFAULT_SIZES]:
            if height != width:
                raise ModelError(f"--size {height}x{width}: VGG16 without a model file is square; name a model")
            yield vgg_graph(Vgg(size=height)), (height, width)
    for model in models:
        graph = Model(find_model(model)).graph()
        for size in options.sizes or (None,):
            yield graph, size


def _compile(compiler: CubinCompiler) -> Callable[[Kernel], None]:
    """Return a function that compiles a kernel into the cache, from where the device takes it."""

    def compile_kernel(kernel: Kernel) -> None:
        compiler.cubins([CubinUnit(kernel.source, kernel.defines)])

    return compile_kernel


def _record(finding: Finding) -> dict[str, Any]:
    return {
        "key": finding.key,
        "label": finding.label,
        "flop": finding.flop,
        "usual": finding.usual,
        "today": finding.today,
        "chosen": chosen.entry if (chosen := finding.chosen) else None,
        "timings": [
            {"entry": timing.entry, "us": _us(timing.seconds), "estimate_us": _us(timing.estimate)}
            for timing in finding.timings
        ],
        "wrong": [{"entry": entry, "why": why} for entry, why in finding.wrong],
    }


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 2)


def _print(findings: Sequence[Finding], wanted: int, path: Path) -> None:
    screen = console()
    columns = ["problem", "tile", "us", "TFLOP/s", "without table us", "gain", "estimate us"]
    result = table(columns, right=columns[2:])
    for finding in findings:
        chosen, usual = finding.chosen, finding.usual_seconds
        if chosen is None:
            continue
        add_row(
            result,
            finding.key,
            " ".join(f"{name[:4]}{value}" if name != "tile" else str(value) for name, value in chosen.entry.items()),
            _us(chosen.seconds),
            f"{finding.flop / chosen.seconds / 1e12:.0f}",
            _us(usual) or "-",
            f"{usual / chosen.seconds - 1:.0%}" if usual else "-",
            _us(chosen.estimate) or "-",
        )
    screen.print(result)
    for finding in findings:
        for entry, why in finding.wrong:
            tell(f"WRONG, not used: {finding.key}: {dict(entry)}: {why}")
    if len(findings) < wanted:
        tell(f"time ran out: {len(findings)} of {wanted} layers are tuned")
    screen.print(f"{len(tiles(findings))} tiles: {path}", markup=False, soft_wrap=True)
