"""`calibrate`: images in, the scales of int8 beside the model out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.left_out import none_left, tell_left_out
from vgg16gpu.cli.common.model_notes import model_notes
from vgg16gpu.cli.common.options import (
    batch_option,
    device_option,
    devices_option,
    find_model,
    json_option,
    model_argument,
    size_option,
)
from vgg16gpu.cli.common.parsing import Whole
from vgg16gpu.cli.common.preprocess_options import PixelOptions, preprocess_options
from vgg16gpu.cli.common.show import add_row, console, print_json, progress, sentence, share_lines, table
from vgg16gpu.cli.common.tell import device_words, tell
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.quantization.scale_file import scales_path, write_scales
from vgg16gpu.compiler.quantization.scheme import METHOD
from vgg16gpu.errors import ModelError
from vgg16gpu.io.files import check_outputs
from vgg16gpu.pictures.inputs import NamedInput, listed, spec_of
from vgg16gpu.pictures.reading import read_inputs
from vgg16gpu.runtime.calibration import Calibration, calibrate, calibration_engine

_SCALES = "the file of scales"
_LIMIT_HELP = "Use at most so many images, spread evenly over the folder."


@dataclass(frozen=True)
class CalibrateOptions:
    """The command line, as it is."""

    model: str
    images: Path
    limit: int
    device: str
    devices: tuple[str, ...] | None
    batch: int | None
    size: tuple[int, int] | None
    pixels: PixelOptions
    as_json: bool


@click.command("calibrate")
@model_argument(required=True)
@click.option("--images", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder of images.")
@click.option("--limit", type=Whole(1), default=500, show_default=True, help=_LIMIT_HELP)
@device_option
@devices_option
@batch_option()
@size_option
@preprocess_options
@json_option
@click.pass_context
def calibrate_command(ctx: click.Context, /, **values: Any) -> None:
    """Choose the scales of `--precision int8` for MODEL, and write them to MODEL.int8.json.

    MODEL is an ONNX file, a VGG's .pth or .safetensors file, 'torchvision/vgg16' for torch hub's, or 'digits'. DIR
    holds a few hundred images like those that the model will see; a .npy, .npz or .txt file of them will do, too. They
    are taken in as `infer` does, and run in fp32; what is done to them is written beside the scales. Each value gets
    the step that rounds it with the least mean squared error. An image that cannot be read is told and left out; exit
    code 1 then.
    """
    options = CalibrateOptions(**values)
    model = Model(find_model(options.model))
    path, graph = model.path, model.graph()
    if model.has_scales:
        raise ModelError(
            f"{path}: has scales of its own (QuantizeLinear), which int8 takes, and no others; run it with "
            "--precision int8, or calibrate the float32 model"
        )
    check_outputs({_SCALES: scales_path(path)})
    shape = resolve_input_shape(graph, options.batch or graph.input.shape[0] or 1, options.size)
    notes = model_notes(model, graph, shape, options.pixels, None)
    listing = listed([options.images])
    check_outputs({_SCALES: scales_path(path)}, (("an input", file) for file in listing.files))
    files = _spread(listing.files, options.limit)
    problems: list[str] = []
    read = read_inputs(files, spec_of(graph.input, shape[1:], notes.preprocess), problems.append)
    first = next(read, None)  # before the engine is built, so that a wrong folder costs no compilation
    if first is None:
        raise none_left(problems or ["there are no images to calibrate on; give at least one"])
    preprocess = notes.preprocess if first.array.dtype == np.uint8 else None  # the folder, or the file, is of one kind
    if preprocess and options.as_json and (told := preprocess.assumption(*shape[2:])):  # the table has a line of it
        tell(f"warning: {told}; --preprocess says how")
    inputs = itertools.islice(itertools.chain([first], read), options.limit)
    with closing(read), progress(quiet=options.as_json) as bar:
        images = bar.track(inputs, total=len(files), description="images")
        given = {"batch": shape[0], "size": options.size, "mean": notes.mean, "std": notes.std}
        calibration, device, shares = _calibrated(model, options, images, given)
    written = write_scales(
        path,
        graph,
        calibration.scales,
        method=METHOD,
        images=calibration.images,
        images_digest=calibration.images_digest,
        preprocess=preprocess,
    )
    pictures = files[0] not in listing.numbers
    done = preprocess and preprocess.report(*shape[2:], pictures=pictures)
    report = {**_report(calibration, written, device), "preprocess": done, "left_out": problems}
    if shares is not None:
        report["devices"] = shares
    tell_left_out(problems)
    print_json(report) if options.as_json else _print(report)
    ctx.exit(EXIT_CHECK_FAILED if problems else 0)


def _calibrated(
    model: Model, options: CalibrateOptions, images: Iterable[NamedInput], given: dict[str, Any]
) -> tuple[Calibration, str, list[dict[str, Any]] | None]:
    """Return the scales, their device, and the work of each of several. given: options of the engines."""
    if options.devices is None:
        with calibration_engine(model, device=options.device, **given) as engine:
            return calibrate(engine, images), engine.device_choice, None
    from vgg16gpu.cluster.calibration import calibrate_on, calibration_pool  # noqa: PLC0415 - one device does without

    with calibration_pool(model, options.devices, **given) as pool:
        calibration = calibrate_on(pool, images)
        return calibration, pool.engine.device_choice, [asdict(share) for share in pool.shares]


def _spread(files: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` of the files, at equal distances: a sorted folder begins with a single class."""
    if len(files) <= limit:
        return list(files)
    return [files[i * len(files) // limit] for i in range(limit)]


def _report(calibration: Calibration, written: Path, device: str) -> dict[str, Any]:
    return {
        "path": str(written),
        "method": METHOD,
        "images": calibration.images,
        "images_sha256": calibration.images_digest,
        "device_choice": device,
        "values": [
            {
                "name": name,
                "type": value.scale.element,
                "step": value.scale.step,
                "signed": value.scale.signed,
                "range": value.scale.step * value.scale.limits[1],
                "largest": value.largest,
                "clipped": value.clipped,
            }
            for name, value in calibration.values.items()
        ],
    }


def _print(report: dict[str, Any]) -> None:
    screen = console()
    columns = ["value", "type", "step", "range", "largest seen", "clipped"]
    result = table(columns, right=columns[2:])
    for value in report["values"]:
        low = f"{-value['range']:.4g} to " if value["signed"] else "0 to "
        add_row(
            result,
            value["name"],
            value["type"],
            f"{value['step']:.5g}",
            f"{low}{value['range']:.4g}",
            f"{value['largest']:.4g}",
            f"{value['clipped']:.4%}",
        )
    screen.print(result)
    if report["preprocess"]:
        screen.print(sentence(report["preprocess"]["line"]), markup=False, soft_wrap=True)
    screen.print(f"Device: {device_words(report['device_choice'])}", markup=False)
    for line in share_lines(report.get("devices", ())):
        screen.print(line, markup=False)
    screen.print(f"Scales from {report['images']} images: {report['path']}", markup=False, soft_wrap=True)
