"""`lab list`, `lab run` and `lab new`: the convolution lab."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.options import (
    batch_option,
    device_option,
    find_model,
    json_option,
    renamed_option,
    sizes_option,
)
from vgg16gpu.cli.common.parsing import Whole, parse_counts, parse_squares
from vgg16gpu.cli.common.show import console, print_json, progress
from vgg16gpu.cli.common.tell import device_words, tell
from vgg16gpu.cli.common.written import model_files
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.io.files import followed
from vgg16gpu.io.foreign.outputs import Named
from vgg16gpu_lab.cli.claims import RESULTS, claims_command
from vgg16gpu_lab.cli.learn import exercise_command, list_kernels
from vgg16gpu_lab.cli.profile import profile_command
from vgg16gpu_lab.cli.screen import print_list, print_rows
from vgg16gpu_lab.experiment import Choice, Experiment, Row, Tell, experiments
from vgg16gpu_lab.experiments.comparison import Shape, comparison
from vgg16gpu_lab.experiments.record import check_folder, content, write
from vgg16gpu_lab.experiments.s3 import LeNetExperiment
from vgg16gpu_lab.experiments.s5 import SEED as S5
from vgg16gpu_lab.figures.write import draw
from vgg16gpu_lab.ladder.given import MOST
from vgg16gpu_lab.lenet.data import IMAGE, MOST_IMAGE, from_idx
from vgg16gpu_lab.measure.bench_rig import BenchRig, BrokenDeviceError, DryRun
from vgg16gpu_lab.measure.dry_run.dry_run import dry_run
from vgg16gpu_lab.measure.measure import Status, choose_effort
from vgg16gpu_lab.network.plain_model import plain_model
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.own.template import write_template
from vgg16gpu_lab.variant import Variant
from vgg16gpu_lab.variants import variants

ALL = "all"
OWN = Path("lab")

_FOLDER = click.Path(file_okay=False, path_type=Path)
_DIR_HELP = "Your own variants, as `lab new` writes them: they are put into every comparison. Their code is run."
_PATH = click.Path(path_type=Path)
_MODEL_HELP = "An ONNX file of a plain VGG, or 'digits', in place of S5's VGG16."
_INPUTS_HELP = (
    f"Inputs for --model, {MOST} at most: a folder of pictures or of .txt, .npy and .npz files, or one such file."
)
_QUICK_HELP = "Small sizes and few samples: half a minute each on a CPU."
_FULL_HELP = "All samples, as many as were published (S4, S5), however long they take; no estimates."
_LISTS = {  # by the name that experiments have for it
    "strides": ("--strides", "As 1,2,3."),
    "blocks": ("--blocks", "Edges of thread-blocks, of the variants that have them."),
    "channels": ("--channels", "Of the image."),
    "outputs": ("--output-channels", "Of the result."),
}
_NAMES = {"sizes": "--size", **{name: option for name, (option, _) in _LISTS.items()}}


@dataclass(frozen=True)
class Options:
    """The command line, as it is."""

    names: tuple[str, ...]
    device: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: int | None
    padding: int | None
    batch: int | None
    data: Path | None
    image: int | None
    model: Path | None
    inputs: Path | None
    quick: bool
    full: bool
    folder: Path | None
    output: Path
    as_json: bool

    @property
    def shape(self) -> Shape:
        """Shape of the problems of variants that are run by name."""
        usual = Shape()
        return Shape(self.batch or usual.batch, self.kernel or usual.kernel, self.padding)


def _lists(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (option, text) in reversed(_LISTS.items()):
        function = click.option(
            option, name, callback=parse_counts, metavar="NUMBERS", help=f"{text} Default: the experiment's."
        )(function)
    return function


@click.group("lab")
def lab_command() -> None:
    """The convolution lab: five published experiments run again, and your own kernels beside theirs."""


lab_command.add_command(claims_command)
lab_command.add_command(exercise_command)
lab_command.add_command(profile_command)


@lab_command.command("list")
@click.option("--dir", "folder", type=_FOLDER, metavar="FOLDER", help=_DIR_HELP)
@click.option("--kernels", is_flag=True, help="What each kernel takes instead: registers, shared memory, occupancy.")
@json_option
def list_command(folder: Path | None, kernels: bool, as_json: bool) -> None:
    """Show the experiments, and every variant in reading order: what it is, what it teaches, where it is run."""
    found, shown = experiments(), (*variants(), *(own_variants(folder) if folder else ()))
    if kernels:
        list_kernels(shown, as_json=as_json)
        return
    if as_json:
        print_json(
            {
                "experiments": [{"name": e.name, "title": e.title, "teaches": e.teaches} for e in found],
                "variants": [
                    {
                        "name": variant.name,
                        "title": variant.title,
                        "teaches": variant.teaches,
                        "seeds": list(variant.seeds),
                        "source": variant.source,
                        "parameters": {name: list(values) for name, values in variant.parameters.items()},
                    }
                    for variant in shown
                ],
            }
        )
        return
    print_list(found, shown)


@lab_command.command("run")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@device_option
@sizes_option("the experiment's", square=True)
@renamed_option("--sizes", "--size", "sizes", multiple=True, callback=parse_squares)
@_lists
@renamed_option("--outputs", "--output-channels", "outputs", callback=parse_counts)
@click.option("--kernel", type=Whole(1), help="Rows of a filter, for variants by name.  [default: 3]")
@click.option("--padding", type=Whole(0), help="For variants by name. Default: half the filter.")
@batch_option("1, and only variants by name take it")
@click.option("--data", type=_FOLDER, metavar="FOLDER", help="IDX files, Fashion-MNIST's say, in place of S3's digits.")
@click.option("--image", type=Whole(1, MOST_IMAGE), help=f"Pixels a side of S3's images.  [default: {IMAGE}]")
@click.option("--model", type=_PATH, metavar="FILE", help=_MODEL_HELP)
@click.option("--inputs", type=_PATH, metavar="FOLDER", help=_INPUTS_HELP)
@click.option("--quick", is_flag=True, help=_QUICK_HELP)
@click.option("--full", is_flag=True, help=_FULL_HELP)
@click.option("--dir", "folder", type=_FOLDER, metavar="FOLDER", help=_DIR_HELP)
@click.option("--output", type=_FOLDER, default=RESULTS, show_default=True, metavar="FOLDER", help="For the files.")
@json_option
@click.pass_context
def run_command(ctx: click.Context, /, **values: Any) -> None:
    """Run experiments (S1 to S5, or all of them), or variants by NAME side by side on a problem of your choice.

    Each variant is checked against float64 before it is timed; what is wrong gets no time, a launch that CUDA would
    reject says why. Ours stand beside what was published, both as percent of the roofline of their card. `lab list`
    has the names; with --dir and no name your variants run beside all others. Exit code 1 when a variant
    is wrong, or breaks the device, which ends the run.
    """
    options = Options(**values)
    if options.quick and options.full:
        raise click.UsageError("--quick and --full exclude each other; give one")
    own = own_variants(options.folder) if options.folder else ()
    chosen = _chosen(options, own)
    check_folder(options.output, [experiment.name for experiment in chosen], _read(options))
    device, reason = open_device(options.device)
    try:
        effort = choose_effort(device.facts.kind, quick=options.quick, full=options.full)
        rig = BenchRig(device, (*variants(), *own), effort, _dry_runs(options, own, device))
        try:
            found, is_faulty = _run_all(chosen, rig, _choice(options, device.facts.kind, own), options)
        finally:
            rig.close()
    finally:
        device.close()
    if options.as_json:
        print_json({"results": found})
    else:
        tell(f"ran on {device_words(reason)}")
    ctx.exit(EXIT_CHECK_FAILED if is_faulty else 0)


@lab_command.command("new")
@click.argument("name")
@click.option("--dir", "folder", type=_FOLDER, default=OWN, show_default=True, metavar="FOLDER", help="Where to.")
def new_command(name: str, folder: Path) -> None:
    """Write a kernel that works, its Python side and its test, for you to change. Nothing is replaced."""
    for path in write_template(folder, name):
        click.echo(path)
    tell(f"try `vgg16gpu lab run {name} --dir {folder}` and `python -m pytest {folder}`")


def _read(options: Options) -> Iterator[Named]:
    """Yield the files that a run reads."""
    if options.model:
        yield from model_files(find_model(str(options.model)))
    for path in (options.inputs, options.data, options.folder):
        if path:
            yield from (("an input", each) for each in (path.iterdir() if path.is_dir() else [path]))


def _dry_runs(options: Options, own: Sequence[Variant], device: Device) -> dict[str, DryRun]:
    """Return dry runs of user variants in another process, on the very device that was opened here."""
    if options.folder is None:
        return {}
    name = f"cuda:{device.foreign.ordinal}" if device.foreign else "cpu"
    return {variant.name: partial(dry_run, followed(options.folder), name) for variant in own}


def _chosen(options: Options, own: Sequence[Variant]) -> list[Experiment]:
    """Return the experiments named, and one of all variants named. Raises UsageError for other names."""
    found = {experiment.name: experiment for experiment in experiments()}
    known = {variant.name: variant for variant in (*variants(), *own)}
    names = list(dict.fromkeys(options.names))
    if not names and not own:
        raise click.UsageError(f"say what to run: {', '.join(found)}, {ALL}, or a variant that `lab list` names")
    wanted: dict[str, Experiment] = {}
    compared = [] if names else list(known.values())
    for name in names:
        if name == ALL:
            wanted |= found
        elif name.upper() in found:
            wanted[name.upper()] = found[name.upper()]
        elif name in known:
            compared.append(known[name])
        else:
            raise click.UsageError(_unknown(name, [*found, ALL, *known]))
    _give_data(wanted, options)
    _check_model(wanted, options)
    _check_lists(wanted.values() if not compared else (), options)
    if compared:
        own_ones = () if names else own  # `Choice.own` puts them beside the others
        experiment = comparison([variant for variant in compared if variant not in own_ones], options.shape)
        wanted[experiment.name] = experiment
    elif any(value is not None for value in (options.kernel, options.padding, options.batch)):
        raise click.UsageError("--kernel, --padding and --batch are for variants by name; experiments have their own")
    return list(wanted.values())


def _check_lists(wanted: Collection[Experiment], options: Options) -> None:
    """Raises UsageError for a list that none of the experiments looks at."""
    for name, option in _NAMES.items():
        if wanted and getattr(options, name) and not any(name in experiment.takes for experiment in wanted):
            raise click.UsageError(f"{option} is not for {', '.join(experiment.name for experiment in wanted)}")


def _give_data(wanted: dict[str, Experiment], options: Options) -> None:
    """Pass --data and --image to the experiment that takes them. Raises InputError where S3 would."""
    if options.data is None and options.image is None:
        return
    takers = {name: found for name, found in wanted.items() if isinstance(found, LeNetExperiment)}
    if not takers:
        raise click.UsageError("--data and --image are for S3")
    if options.data is not None:
        from_idx(options.data, options.image or IMAGE)  # before anything is run, as S3 would
    wanted |= {name: replace(found, data=options.data, image=options.image or IMAGE) for name, found in takers.items()}


def _check_model(wanted: Collection[str], options: Options) -> None:
    """Raises UsageError for --model and --inputs that nothing takes, and Error, before anything is run, as S5 would."""
    if options.inputs and not options.model:
        raise click.UsageError("--inputs are for --model; give both")
    if options.model is None:
        return
    if S5 not in wanted:
        raise click.UsageError("--model and --inputs are for S5")
    for size in options.sizes or (None,):
        plain_model(find_model(str(options.model)), options.inputs, size)


def _unknown(name: str, known: Sequence[str]) -> str:
    if (OWN / f"{name.replace('-', '_')}.py").is_file():
        return f"there is no experiment and no variant '{name}' in the package; yours needs --dir {OWN}"
    near = difflib.get_close_matches(name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`vgg16gpu lab list` has the names"
    return f"there is no experiment and no variant '{name}'; {hint}"


def _choice(options: Options, kind: str, own: tuple[Variant, ...]) -> Choice:
    lists = {name: getattr(options, name) for name in _NAMES}
    model = find_model(str(options.model)) if options.model else None
    return Choice(kind, **lists, quick=options.quick, full=options.full, model=model, inputs=options.inputs, own=own)


def _run_all(
    chosen: Sequence[Experiment], rig: BenchRig, choice: Choice, options: Options
) -> tuple[list[dict[str, Any]], bool]:
    """Return the records of all, as far as the device holds, and whether something is wrong.

    Raises BrokenDeviceError where nothing was right before it broke.
    """
    found: list[dict[str, Any]] = []
    statuses: set[Status] = set()
    for experiment in chosen:
        record, rows = _run(experiment, rig, choice, options)
        found.append(record)
        statuses |= {row.status for row in rows}
        if rig.broken:
            break
    if rig.broken and Status.RIGHT not in statuses:
        raise BrokenDeviceError(rig.broken)
    if rig.broken:
        tell(rig.broken)
    return found, any(status.is_fault for status in statuses)


def _run(
    experiment: Experiment, rig: BenchRig, choice: Choice, options: Options
) -> tuple[dict[str, Any], Sequence[Row]]:
    """Measure, write and print one; its record and its rows."""
    with _progress(experiment.name, quiet=options.as_json) as tell:
        rows = experiment.run(rig, choice, tell)
    found = content(experiment, rows, rig, choice)
    paths = write(options.output, experiment.name, found)
    drawn = draw(found, options.output)
    if not options.as_json:
        print_rows(experiment, rows, rig)
        told = [f"Written: {paths[0]}, {paths[1]}, {len(drawn.paths)} pictures", *drawn.notes]
        console().print("\n".join(told), markup=False, soft_wrap=True)
    return found, rows


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[Tell]:
    """Show a bar on a terminal; yield its update."""
    with progress(quiet=quiet) as bar:
        task = bar.add_task(name, total=None)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{name} {what}")

        yield tell
