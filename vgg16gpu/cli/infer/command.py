"""The command `infer`. What computes (`run.py`) is imported once its options are read; the GPU starts beside that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from vgg16gpu.cli.common.options import (
    batches_option,
    device_option,
    json_option,
    kernels_option,
    labels_option,
    outputs_option,
    precision_option,
    size_option,
)
from vgg16gpu.cli.common.preprocess_options import preprocess_options
from vgg16gpu.cli.infer.options import MANY, Options
from vgg16gpu.devices import opening_ahead
from vgg16gpu.devices.stages import stage, tell_stage

_MODEL_HELP = (
    "ONNX file, or 'digits' for the small trained net in the package. Default: the VGG16 that `model fetch` or else "
    "`model make` wrote."
)
_OUTPUT_HELP = (
    "Write all scores to FILE: .npy, .npz, .csv, .txt or .json; all outputs of a model that has several: .npz."
)
_WORKERS_HELP = "Processes that decode images; 0: none. Default: one for each core, for more than a handful of images."


@click.command("infer")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@click.option("--model", metavar="FILE", help=_MODEL_HELP)
@device_option
@precision_option
@kernels_option
@batches_option("the largest, and for the rest the smallest that holds it")
@size_option
@outputs_option
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Classes to show per input.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help=_OUTPUT_HELP)
@preprocess_options
@labels_option
@click.option("--allow-nonfinite", is_flag=True, help="Run on inputs with NaN or Inf instead of refusing them.")
@click.option("--workers", type=click.IntRange(0, 256), metavar="N", help=_WORKERS_HELP)
@click.option("--table", is_flag=True, help=f"Show every input; of more than {MANY} a summary is shown else.")
@json_option
@click.pass_context
def infer_command(ctx: click.Context, /, **values: Any) -> None:
    """Classify images (.png .jpg .bmp .webp, or a folder of them) or numbers (.txt .npy .npz, or - for text on stdin).

    Images are fitted to the model's size and normalised as --preprocess says, else the model's metadata, else as its
    first layers let assume; one line of the answer says which. For models of one channel they become grey. Numbers are
    taken as they are, in the order of the model's input; .npy and .npz of uint8 are pixels, RGB, channels last. Exit
    code 1 when an image cannot be read, or its scores are NaN or infinite though its numbers are not, and the others
    are classified; 2 when no input has an answer.
    """
    options = Options(**values)
    tell_stage("Python and options", time.thread_time())  # its thread begins with the process
    with opening_ahead(options.device):
        with stage("imports"):
            from vgg16gpu.cli.infer.run import infer  # noqa: PLC0415 - the GPU starts meanwhile

        ctx.exit(infer(options))
