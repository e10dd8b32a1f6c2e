"""Measure the road from a folder of pictures to rows of a CSV: all of it, and each stage alone.

python -m testbench.pipeline MODEL --pictures DIR                     infer DIR --output rows.csv, and its stages
python -m testbench.pipeline MODEL --pictures DIR --devices cuda:0,1  one device, and several that share the work
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from testbench.pipeline.content import content
from testbench.pipeline.screen import print_pipeline
from testbench.pipeline.session import run_pipeline
from testbench.pipeline.wanted import COMPUTING_SECONDS, PEERS, REPEATS, Wanted, Work
from testbench.pipeline.whole_runs import run_whole
from vgg16gpu.bench import several
from vgg16gpu.bench.several import measure_several
from vgg16gpu.cli import EXIT_CHECK_FAILED, OneLineErrors, main
from vgg16gpu.cli.bench.deliver import deliver, progress
from vgg16gpu.cli.bench.several import print_several
from vgg16gpu.cli.common.options import (
    batch_option,
    device_option,
    devices_option,
    find_model,
    json_option,
    kernels_option,
    model_argument,
    precisions_option,
    size_option,
)
from vgg16gpu.cli.common.parsing import Real, Whole, parse_counts, parse_names
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.several import resolve_devices
from vgg16gpu.io.files import check_outputs
from vgg16gpu.pictures.choices import CPU, GPU
from vgg16gpu.runtime.answers.codec_choice import decodes_on_device

_MEMORY_HELP = "Also the most memory for N pictures, each count a run of its own: 1000,10000."


@dataclass(frozen=True)
class Options:
    """The command line, as values."""

    model: str | None
    device: str
    devices: tuple[str, ...] | None
    precisions: tuple[str, ...]
    kernels: str
    size: tuple[int, int] | None
    batch: int | None
    pictures: Path
    repeats: int
    seconds: float
    against: tuple[str, ...]
    memory: tuple[int, ...]
    decode: tuple[str, ...]
    output: Path | None
    as_json: bool

    def wanted(self) -> Wanted:
        """Return what to measure."""
        return Wanted(
            self.pictures,
            Model(find_model(self.model)),
            self.device,
            self.precisions,
            self.kernels,
            self.size,
            self.batch,
            self.repeats,
            self.seconds,
            self.against,
            self.memory,
            decode=self.decode or (CPU,),
        )


@click.command("pipeline", cls=OneLineErrors)
@model_argument()
@device_option
@devices_option
@precisions_option("fp32")
@kernels_option
@size_option
@batch_option()
@click.option("--pictures", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The folder.")
@click.option("--repeats", type=Whole(1), default=REPEATS, show_default=True, help="Timed runs of every number.")
@click.option("--seconds", type=Real(0, min_open=True), default=COMPUTING_SECONDS, help="Load for the engine alone.")
@click.option("--against", callback=parse_names(PEERS), metavar="NAMES", help="torch: DataLoader, and nvJPEG.")
@click.option("--memory", callback=parse_counts, metavar="COUNTS", help=_MEMORY_HELP)
@click.option("--decode", callback=parse_names((CPU, GPU)), metavar="NAMES", help="Who decodes JPEG: cpu, gpu or both.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@json_option
@click.pass_context
def pipeline_command(ctx: click.Context, /, **values: Any) -> None:
    """Measure the road from a folder of pictures to rows, and each stage alone; with --devices one beside several."""
    options = Options(**values)
    check_outputs({"--output": options.output}, [("a picture", options.pictures)])
    ctx.exit(_measure_devices(options) if options.devices else _measure(options))


def _measure(options: Options) -> int:
    """Measure, write and show. Returns the exit code: 1 where something of ours went wrong."""
    work = Work.of(options.wanted())
    if GPU in work.wanted.decode:
        decodes_on_device(GPU, work.wanted.device, work.spec)  # or it says now why not
    findings = run_pipeline(work, progress(options))
    for failure in findings.failures:
        tell(failure)
    deliver(content(work, findings), options, print_pipeline)
    return EXIT_CHECK_FAILED if findings.failures else 0


def _measure_devices(options: Options) -> int:
    """Measure arrays and the folder. Returns the exit code: 1 where several devices gave other bits than one."""
    assert options.devices is not None
    if options.against or options.memory or options.decode:
        raise click.UsageError(
            "--devices measures how several share the work: it goes without --against, --memory, --decode"
        )
    wanted = options.wanted()
    asked = several.DevicesConfig(
        wanted.model,
        options.devices,
        options.precisions,
        options.kernels,
        options.size,
        options.batch,
        options.repeats,
        options.seconds,
    )
    names, say = resolve_devices(options.devices), progress(options)
    result = {**measure_several(asked, say), "pictures": _pictures(wanted, names, say)}
    for failure in result["failures"]:
        tell(failure)
    deliver(result, options, print_several)
    return EXIT_CHECK_FAILED if result["failures"] else 0


def _pictures(wanted: Wanted, names: Sequence[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return whole runs of `infer` on the folder, on one of the devices and on all."""
    work = Work.of(replace(wanted, device=names[0]))
    found = []
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        for precision in wanted.precisions:
            for count in (1, len(names)):
                shared = replace(work, wanted=replace(work.wanted, devices=tuple(names[:count])))
                runs = run_whole(shared, precision, CPU, Path(folder), say)
                found.append({**runs.fields(), "devices": count, "failures": list(runs.failures)})
    return found


if __name__ == "__main__":
    main(pipeline_command, "python -m testbench.pipeline")
