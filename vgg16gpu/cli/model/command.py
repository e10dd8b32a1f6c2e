"""`model make`, `model fetch`, `model sample`: a VGG file to run, generated or downloaded, and a picture for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from vgg16gpu.cli.common.options import RANDOM, TRAINED_NAME, json_option, new_model, square_size_option
from vgg16gpu.cli.common.parsing import Whole
from vgg16gpu.cli.common.show import megabytes, print_json, seconds
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.cli.model.weights import weights_command
from vgg16gpu.compiler.graph.input_size import USUAL_SIZE
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.metadata import RANDOM_NOTE
from vgg16gpu.compiler.vgg.architecture import CONVOLUTIONS, LARGEST_SIZE, SMALLEST_SIZE, Vgg
from vgg16gpu.errors import ModelError
from vgg16gpu.io.files import Progress, check_outputs, check_writable
from vgg16gpu.io.synthetic import write_sample_text
from vgg16gpu.zoo.fetch import VGG16_SHA256, VGG16_SIZE, fetch_vgg16
from vgg16gpu.zoo.generate import external_file, make_vgg, weights_file

_FILE = click.Path(dir_okay=False, path_type=Path)
_SIZES = f"{SMALLEST_SIZE} to {LARGEST_SIZE}."
_MAKE_HELP = "Default: random-vgg16.onnx, random-vgg16-244.onnx, ... in models/ if there is one, else here."
_FETCH_HELP = f"Default: {TRAINED_NAME} in models/ if there is one, else here."


@click.group("model")
def model_command() -> None:
    """Make or fetch a VGG model file, or a sample image for it; write out the weights of any."""


model_command.add_command(weights_command)


@model_command.command("make", cls=WritingCommand)
@click.option("--variant", type=click.Choice(list(CONVOLUTIONS)), default="vgg16", show_default=True)
@square_size_option(USUAL_SIZE, _SIZES)
@click.option("--batch-norm", is_flag=True, help="A BatchNormalization after every convolution.")
@click.option("--seed", type=Whole(min=0), default=0, show_default=True, help="Of the random weights.")
@click.option("--output", type=_FILE, metavar="FILE", help=_MAKE_HELP)
@click.option("--sample", type=_FILE, metavar="FILE", help="Also write a sample image of that size as text.")
@json_option
def make_command(
    *, variant: str, size: int, batch_norm: bool, seed: int, output: Path | None, sample: Path | None, as_json: bool
) -> None:
    """Write a VGG with random weights: the same bytes for the same options, in the form torch's exporter writes."""
    net = Vgg(variant, size, batch_norm)
    path = output or new_model(f"{RANDOM}{net.name}.onnx")
    beside = weights_file(net, path)
    check_outputs({"--output": path, "the weights of --output": beside, "--sample": sample})
    former = _spare_other_models(path, beside)
    start = time.perf_counter()
    with _bar(f"making {path.name}", TaskProgressColumn(), quiet=as_json) as progress:
        digest = make_vgg(path, variant=variant, size=size, batch_norm=batch_norm, seed=seed, progress=progress)
    elapsed = time.perf_counter() - start
    if sample:
        write_sample_text(sample, size)
    nbytes = sum(file.stat().st_size for file in (path, beside) if file)
    if as_json:
        print_json(
            {
                "path": str(path),
                "weights": str(beside) if beside else None,
                "sha256": digest,
                "bytes": nbytes,
                "net": {"variant": variant, "size": size, "batch_norm": batch_norm, "seed": seed},
                "note": RANDOM_NOTE,
                "sample": str(sample) if sample else None,
                "seconds": elapsed,
            }
        )
        return
    click.echo(f"{path}: {megabytes(nbytes)} in {seconds(elapsed)}, {RANDOM_NOTE}")
    if beside:
        click.echo(f"{beside} has the weights, which are too large for an ONNX file: keep both in one folder")
    elif former:
        click.echo(f"{former} has the weights of the model that was there before: delete it")
    click.echo(f"sha256 {digest}" + (", of the model and its weights one after the other" if beside else ""))
    if sample:
        click.echo(_sample_line(sample, size))


@model_command.command("fetch", cls=WritingCommand)
@click.option("--output", type=_FILE, metavar="FILE", help=_FETCH_HELP)
@click.option("--url", "urls", multiple=True, help="Where to look instead; may be repeated.")
@json_option
def fetch_command(output: Path | None, urls: tuple[str, ...], as_json: bool) -> None:
    """Download the ImageNet-trained VGG16 of the ONNX Model Zoo (553 MB) and check its SHA-256.

    Behind the verified bytes it adds to the file's metadata what is done to pictures (`info` shows it). An interrupted
    download goes on where it ended. Without --model the other commands take this file first.
    """
    path = output or new_model(TRAINED_NAME)
    check_writable(path)
    with _bar(f"fetching {path.name}", DownloadColumn(), quiet=as_json) as progress:
        url = fetch_vgg16(path, urls or None, progress=progress)
    if as_json:
        print_json({"path": str(path), "sha256": VGG16_SHA256, "bytes": path.stat().st_size, "url": url})
        return
    click.echo(f"{path}: {megabytes(VGG16_SIZE)}, " + (f"from {url}" if url else "was there already"))
    added = " (of the download; what is done to pictures is added behind it as metadata)" if url else ""
    click.echo(f"sha256 {VGG16_SHA256}{added}")


@model_command.command("sample", cls=WritingCommand)
@square_size_option(USUAL_SIZE, _SIZES)
@click.option("--output", type=_FILE, default=Path("image.txt"), show_default=True, metavar="FILE")
def sample_command(size: int, output: Path) -> None:
    """Write a sample image as text: normalised numbers, channels first, as `infer` reads them."""
    Vgg(size=size)  # complains of what no model takes
    check_writable(output)
    write_sample_text(output, size)
    click.echo(_sample_line(output, size))


def _sample_line(path: Path, size: int) -> str:
    return f"{path}: a sample image, 3x{size}x{size} normalised numbers"


def _spare_other_models(path: Path, beside: Path | None) -> Path | None:
    """Return the file with the weights of the model at `path`, if there is one and it has one.

    Raises ModelError unless `path`, and `beside` for the weights, are free or what `make` wrote: nothing else is to be
    overwritten.
    """
    former = None
    if path.is_file():
        try:
            model = Model(path)
            generated = model.is_random
            former = external_file(model.file)
        except ModelError:
            generated = False
        if not generated:
            raise ModelError(
                f"{path}: exists and is not a model that `model make` wrote; delete it or give another --output"
            )
    if beside and beside.exists() and beside != former:
        raise ModelError(
            f"{beside}: exists and is not the weights of a model that `model make` wrote; delete it or give another "
            "--output"
        )
    return former


@contextlib.contextmanager
def _bar(text: str, amount: ProgressColumn, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on stderr, on a terminal only; yield its update."""
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn())
    with Bar(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
