"""The command `infer`. What computes (`run.py`) is imported once its options are read; the GPU starts beside that."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from vgg16gpu.cli.common.options import (
    batches_option,
    device_option,
    devices_option,
    json_option,
    kernels_option,
    labels_option,
    outputs_option,
    precision_option,
    size_option,
)
from vgg16gpu.cli.common.parsing import Whole, parse_ray, parse_shard
from vgg16gpu.cli.common.preprocess_options import preprocess_options
from vgg16gpu.cli.common.tell import set_verbosity
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.cli.infer.options import MANY, InferOptions
from vgg16gpu.devices import opening_ahead, widen_queues
from vgg16gpu.devices.stages import stage, tell_stage
from vgg16gpu.pictures.choices import AUTO, DECODE, GPU, chosen

_MODEL_HELP = (
    "ONNX file, a VGG's .pth or .safetensors file, 'torchvision/vgg16' for torch hub's, or 'digits' for the small "
    "trained net in the package. Default: the VGG16 that `model fetch` or else `model make` wrote."
)
_FILES_HELP = "Take the names in FILE, too, one a line; -: stdin."
_NULL_HELP = "Of --files-from: names stand between zero bytes, as `find -print0` writes them."
_OUTPUT_HELP = (
    "Write a row for each input, as batches end: .csv, .jsonl, .parquet (input, error, the best classes), or all "
    "scores as .npy, .npz, .txt, .json; -: to stdout, as --format says."
)
_SHARD_HELP = (
    "Of a job that N processes share, on any machines, the part of process I (from 0): --output is a folder that all "
    "see, and gets a .parquet file for each shard of the inputs. What is whole there is not done again."
)
_RAY_HELP = (
    "The whole job on a Ray cluster, an actor for each GPU (or CPU): auto (the one that this machine belongs to), "
    "HOST:PORT, or local[:N] (this machine alone, N actors). Needs pip install 'vgg16gpu[ray]'."
)
_SHARD_SIZE_HELP = "Inputs of a shard. Default: by their number, 32768 at most."
_COLUMN_HELP = "Of --files-from FILE.parquet: the column of paths (text) or encoded pictures (binary)."
_WORKERS_HELP = (
    "Threads that read and decode; beside a GPU and from 1024 pictures on in processes of four. Default: one for each "
    "core, from 8 cores on for three of four (seven of eight in processes); where the GPU decodes, as many as it wants."
)
_DECODE_HELP = (
    "Who decodes JPEG files: cpu; gpu, by nvJPEG, to the same pixels if the GPU has a hardware decoder, else to nearly "
    "the same (docs/pictures.md); auto is {auto}. Default: auto."
)


@click.command("infer", cls=WritingCommand, lists_inputs=True)
@click.argument("images", nargs=-1, metavar="[IMAGE]...")
@click.option("--files-from", metavar="FILE", help=_FILES_HELP)
@click.option("-0", "--null", "null", is_flag=True, help=_NULL_HELP)
@click.option("--recursive/--no-recursive", default=True, help="Look into subfolders, too. Default: yes.")
@click.option("--model", metavar="FILE", help=_MODEL_HELP)
@device_option
@devices_option
@precision_option
@kernels_option
@batches_option(
    "the largest is run", otherwise="the model's, else by the number of inputs: up to 128 on a GPU, 8 on a CPU"
)
@size_option
@outputs_option
@click.option("--top", type=Whole(1), default=5, show_default=True, help="Classes to show per input.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help=_OUTPUT_HELP)
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), help="Of --output -. Default: csv.")
@click.option("--scores", is_flag=True, help="All scores in .csv, .jsonl and .parquet, too.")
@click.option("--resume", is_flag=True, help="Go on where a .csv, .jsonl or .parquet file of the same run ended.")
@click.option("--shard", callback=parse_shard, metavar="I/N", help=_SHARD_HELP)
@click.option("--ray", callback=parse_ray, metavar="ADDRESS", help=_RAY_HELP)
@click.option("--shard-size", type=Whole(1), metavar="COUNT", help=_SHARD_SIZE_HELP)
@click.option("--column", metavar="NAME", help=_COLUMN_HELP)
@preprocess_options
@labels_option
@click.option("--allow-nonfinite", is_flag=True, help="Run on inputs with NaN or Inf instead of refusing them.")
@click.option("--workers", type=Whole(0, 256), metavar="N", help=_WORKERS_HELP)
@click.option("--decode", type=click.Choice(DECODE), default="auto", help=_DECODE_HELP.format(auto=AUTO))
@click.option("--table", is_flag=True, help=f"Show every input; of more than {MANY} a summary is shown else.")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Nothing on the screen but errors.")
@click.option("-v", "--verbose", count=True, help="Tell what is done, with -vv more.")
@click.pass_context
def infer_command(ctx: click.Context, /, **values: Any) -> None:
    """Classify pictures, or numbers (.txt .npy .npz, or - for text on stdin).

    Pictures are .jpg .png .bmp .webp .gif .tiff files, or folders of them. They are fitted to the model's size and
    normalised as --preprocess says, else the model's metadata, else as its first layers let assume; one line of the
    answer says which. For models of one channel they become grey. Numbers are taken as they are, in the order of the
    model's input; .npy and .npz of uint8 are pixels, RGB, channels last. Rows come in the order of the files; an input
    that cannot be read costs its own row. Exit code 1 when some inputs have no answer; 2 when none has one.
    """
    options = InferOptions(**values)
    if not options.images and options.files_from is None:
        raise click.UsageError("Missing argument 'IMAGE...': name pictures, folders of them, or --files-from FILE.")
    if options.null and options.files_from is None:
        raise click.UsageError("--null is of a list of names: give --files-from FILE, too")
    if options.quiet or options.verbose:
        set_verbosity(-1 if options.quiet else options.verbose)
    tell_stage("Python and options", time.thread_time())  # its thread begins with the process
    if chosen(options.decode) == GPU:
        widen_queues()
    with nullcontext() if options.ray else _opening_ahead(options):
        with stage("imports"):
            infer = _what_computes(options)  # the GPU starts meanwhile
        ctx.exit(infer(options))


def _opening_ahead(options: InferOptions) -> AbstractContextManager[object]:
    """Start the first GPU beside the imports, unless each has a process of its own, which does that."""
    if not options.devices:
        return opening_ahead(options.device)
    from vgg16gpu.cluster.cards import have_processes  # noqa: PLC0415 - one device does without
    from vgg16gpu.devices.several import resolve_devices  # noqa: PLC0415 - as above

    names = resolve_devices(options.devices)
    return nullcontext() if have_processes(names) else opening_ahead(names[0])


def _what_computes(options: InferOptions) -> Callable[[InferOptions], int]:
    """Return the function for one run, or for a part of a job. Raises UsageError for options of the other."""
    if options.shard and options.ray:
        raise click.UsageError("--shard is for schedulers other than Ray: give --ray or --shard")
    if options.shard or options.ray:
        from vgg16gpu.cli.infer import jobs  # noqa: PLC0415 - most runs are none of a job

        return jobs.compute_on_ray if options.ray else jobs.compute_shards
    if options.shard_size or options.column:
        named = "--shard-size" if options.shard_size else "--column"
        raise click.UsageError(f"{named} is of a job of many processes: give --shard I/N or --ray, too")
    if options.files_from and options.files_from.endswith(".parquet"):
        raise click.UsageError("--files-from FILE.parquet is of a job: give --shard 0/1, or --ray, too")
    from vgg16gpu.cli.infer.run import infer  # noqa: PLC0415 - numpy comes with it, and --help does without

    return infer
