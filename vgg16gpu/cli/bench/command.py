"""`bench`: how long a model takes, where the time goes, and how others do beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from vgg16gpu.bench.measure.cold_start import ColdStart, measure_cold_start
from vgg16gpu.bench.measure.timing import FROM_BATCH
from vgg16gpu.bench.peers.base import PEERS
from vgg16gpu.bench.records.compare import Ratio, check_comparable, compare
from vgg16gpu.bench.records.findings import BenchmarkConfig
from vgg16gpu.bench.records.plot import write_plot
from vgg16gpu.bench.records.record import Content, content, model_identity, read
from vgg16gpu.bench.session import run_benchmark, sample_inputs
from vgg16gpu.cli import EXIT_CHECK_FAILED, EXIT_USAGE
from vgg16gpu.cli.bench.deliver import deliver, progress
from vgg16gpu.cli.bench.options import BenchOptions
from vgg16gpu.cli.bench.screen import print_comparison, print_result
from vgg16gpu.cli.bench.several import measure_devices
from vgg16gpu.cli.common.options import (
    batches_option,
    device_option,
    devices_option,
    find_model,
    json_option,
    kernels_option,
    model_argument,
    outputs_option,
    precisions_option,
    size_option,
)
from vgg16gpu.cli.common.parsing import Real, Whole, parse_counts, parse_names
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.compiler.graph.graph import GraphInput
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.runtime.engine import Engine

_AGAINST_HELP = f"Also measure, in turns with ours, each in its own process, with commas: {', '.join(PEERS)}."
_COMPARE_HELP = "Compare with a result that --output wrote; exit code 1 when a median of ours is slower."
_REPEATS_HELP = "Timed runs of every number, at least. Default: as many as fit into --seconds."
_SECONDS_HELP = "Load for every number, in short bursts. Default: 0.15 on a GPU, 3 on a CPU."
_SUSTAINED_HELP = (
    f"Also measure at batch {FROM_BATCH} and more after so many seconds of load; 0: not. "
    "Default: 3 on a GPU, 0 on a CPU."
)
_COLD_START_HELP = "Also time infer, in fp32 on kernels auto, in a process of its own from start to answer."
_COMPILE_HELP = "Also torch.compile (max-autotune) with --against torch; takes minutes."


@click.command("bench", cls=WritingCommand)
@model_argument()
@device_option
@devices_option
@precisions_option("fp32")
@kernels_option
@size_option
@outputs_option
@batches_option("each is measured")
@click.option("--iterations", callback=parse_counts, metavar="COUNTS", help="Also mean times over 10 inputs: 1,5,500.")
@click.option("--repeats", type=Whole(1), help=_REPEATS_HELP)
@click.option("--seconds", type=Real(0, min_open=True), metavar="SECONDS", help=_SECONDS_HELP)
@click.option("--sustained", type=Real(0), metavar="SECONDS", help=_SUSTAINED_HELP)
@click.option("--against", callback=parse_names(PEERS), metavar="NAMES", help=_AGAINST_HELP)
@click.option("--compile", "compiled", is_flag=True, help=_COMPILE_HELP)
@click.option("--cold-start", is_flag=True, help=_COLD_START_HELP)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a .png, .svg or .pdf file.")
@click.option("--compare", type=click.Path(path_type=Path), metavar="FILE", help=_COMPARE_HELP)
@click.option("--threshold", type=Real(0), default=3.0, show_default=True, help="Percent that --compare allows.")
@json_option
@click.pass_context
def bench_command(ctx: click.Context, /, **values: Any) -> None:
    """Measure a model: time per run on the device and from host to host, and every step beside the device's ceiling.

    The scores are checked against onnxruntime's, where it is installed, before anything is timed; what is wrong is not
    timed. With --outputs that much of the model is measured, and the first value is checked. With --devices it is
    measured in place of that how several devices share arrays in memory. MODEL is an ONNX file, a VGG's .pth or
    .safetensors file, 'torchvision/vgg16' for torch hub's, or 'digits'; without it the VGG16 that `model fetch` or else
    `model make` wrote. Exit code 1 when scores are wrong or --compare finds a median slower, 2 when none are right:
    then nothing is measured.
    """
    options = BenchOptions(**values)
    options.check()
    if options.devices:
        ctx.exit(measure_devices(options, progress(options)))
    old = read(options.compare) if options.compare else None
    wanted = _wanted(options)
    given, shape = _sample(wanted)
    identity = model_identity(wanted.model.path, shape, wanted.outputs)
    say = progress(options)

    def check(engine: Engine) -> None:
        if old is not None and options.compare is not None:
            check_comparable(old, options.compare, identity, vars(engine.device.facts))

    cold_start = _cold_start(options, wanted, given, shape, say)
    findings = run_benchmark(wanted, say, check)
    for failure in findings.failures:
        tell(failure)
    if not findings.batches:
        ctx.exit(EXIT_USAGE)
    result = content(findings, identity, cold_start)
    ratios = _compared(result, old, options)
    _write_and_show(result, ratios, options)
    failed = findings.failures or any(ratio.is_slower(options.threshold) for ratio in ratios)
    ctx.exit(EXIT_CHECK_FAILED if failed else 0)


def _compared(result: Content, old: Content | None, options: BenchOptions) -> tuple[Ratio, ...]:
    """Return the ratios to an older result, and add them to `result`; none without one."""
    if old is None or options.compare is None:
        return ()
    ratios = compare(old, result, options.compare)
    result["comparison"] = {
        "with": str(options.compare),
        "threshold_percent": options.threshold,
        "ratios": [{**asdict(r), "ratio": r.ratio, "slower": r.is_slower(options.threshold)} for r in ratios],
    }
    return ratios


def _write_and_show(result: Content, ratios: tuple[Ratio, ...], options: BenchOptions) -> None:
    deliver(result, options, print_result, write_plot, options.plot)
    if options.compare and not options.as_json:
        print_comparison(ratios, options.compare, options.threshold)


def _wanted(options: BenchOptions) -> BenchmarkConfig:
    return BenchmarkConfig(
        Model(find_model(options.model)),
        options.device,
        options.precisions,
        options.kernels,
        options.size,
        options.batches,
        options.iterations,
        options.repeats,
        options.seconds,
        options.sustained,
        options.against,
        options.compiled,
        options.outputs,
    )


def _sample(wanted: BenchmarkConfig) -> tuple[GraphInput, tuple[int, ...]]:
    """Return the model's input, and the shape of one. Raises ModelError for an unusable file, batch or size."""
    graph = wanted.model.graph(outputs=wanted.outputs)
    batches = wanted.batches or (graph.input.shape[0] or 1,)
    shapes = [resolve_input_shape(graph, batch, wanted.size) for batch in batches]
    return graph.input, shapes[0][1:]


def _cold_start(
    options: BenchOptions,
    wanted: BenchmarkConfig,
    given: GraphInput,
    shape: tuple[int, ...],
    say: Callable[[str], None],
) -> ColdStart | None:
    if not options.cold_start:
        return None
    say("cold starts")
    x = sample_inputs(shape)[0]
    return measure_cold_start(wanted.model.path, wanted.device, x, channels_last=given.channels_last)
