"""Options that several commands share, and the values behind them; those of pictures are in preprocess_options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from vgg16gpu.cli.common.parsing import (
    parse_batch,
    parse_batches,
    parse_device,
    parse_devices,
    parse_names,
    parse_outputs,
    parse_size,
    parse_sizes,
    parse_square,
    parse_squares,
)
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.compiler.choices import KERNELS, PRECISIONS
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shipped import NAME, digits_model, is_digits

Function = TypeVar("Function", bound=Callable[..., Any])

MODEL_FOLDER = Path("models")  # where a checkout keeps models; elsewhere they lie in the current folder
TRAINED_NAME = "vgg16-imagenet.onnx"  # what `model fetch` writes
RANDOM: Final = "random-"  # begins the name of what `model make` writes
_NAMES = (TRAINED_NAME, "vgg16.onnx", f"{RANDOM}vgg16.onnx")  # what somebody has, before random weights
# What the options say that mean the same in all commands; a command may add to it.
HELP: Final = {
    "--device": "auto (a GPU if one works, else the CPU), cuda, cuda:N or cpu.",
    "--devices": (
        "Several devices that share the work, in place of --device: all (every GPU, without one the CPU), names with "
        "commas (cuda:0,cuda:1), or cpu:N (N engines that share the cores)."
    ),
    "--precision": (
        "fp32 is as exact as float32 arithmetic, and stands in for fp16 and bf16 where a device has no tensor cores "
        "for them; int8 takes the scales that `calibrate` wrote next to the model."
    ),
    "--batch": "Images per run.",
    "--size": "Image size in pixels, 244, or height x width, 224x320.",
    "--outputs": (
        "What to compute instead of the model's outputs, with commas: names of ONNX values or nodes, torchvision's "
        "layers (features.22) or VGG's (relu3_3). What none of them needs is not computed."
    ),
}
_SQUARE: Final = "Here it is square. "
DEFAULT_MODELS = tuple(str(folder / name) for name in _NAMES for folder in (MODEL_FOLDER, Path()))
_TESTBENCH_NAMES = ("vgg16-244.onnx", f"{RANDOM}vgg16-244.onnx")  # that testbench takes before these
TESTBENCH_MODELS = tuple(str(folder / name) for name in _TESTBENCH_NAMES for folder in (MODEL_FOLDER, Path()))


def model_argument(*, required: bool = False) -> Callable[[Function], Function]:
    """Add MODEL, or --model FILE, which is the same, as the parameter `model`; None without either, unless required."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, positional: str | None, model: str | None, **values: Any) -> Any:
            if positional and model:
                raise click.UsageError("MODEL and --model are the same; give one")
            if required and not (positional or model):
                raise click.UsageError("no model is named: give MODEL, or --model FILE, which is the same")
            return function(*args, model=positional or model, **values)

        named = click.option("--model", metavar="FILE", help="The same as MODEL.")(command)
        shown = "MODEL" if required else "[MODEL]"
        return cast(Function, click.argument("positional", required=False, metavar=shown)(named))

    return decorate


def renamed_option(old: str, new: str, parameter: str, **settings: Any) -> Callable[[Function], Function]:
    """Add the former name `old` of an option, hidden: it sets the parameter of `new`, and says what to write."""
    key = f"earlier_{parameter}"

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            if earlier := values.pop(key):
                tell(f"{old} is called {new} now; the old name will go")
                values[parameter] = earlier
            return function(*args, **values)

        return cast(Function, click.option(old, key, hidden=True, **settings)(command))

    return decorate


def _device(default: str) -> Callable[[Function], Function]:
    return click.option(
        "--device", callback=parse_device, default=default, show_default=True, metavar="NAME", help=HELP["--device"]
    )


device_option: Final = _device("auto")
gpu_option: Final = _device("cuda")  # for what a CPU cannot do: it is refused where it is named


def devices_option(function: Function) -> Function:
    """Add --devices beside --device: the names of several, or None. Only one of the two options may be given."""

    @functools.wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        if values["devices"] and values["device"] != "auto":
            raise click.UsageError("--devices stands in place of --device; give one of them")
        return function(*args, **values)

    option = click.option("--devices", callback=parse_devices, metavar="NAMES", help=HELP["--devices"])
    return cast(Function, option(command))


def precision_option(function: Function) -> Function:
    """Add --precision, a single one."""
    choice = click.Choice(PRECISIONS)
    return click.option("--precision", type=choice, default=PRECISIONS[0], show_default=True, help=HELP["--precision"])(
        function
    )


def precisions_option(default: str) -> Callable[[Function], Function]:
    """Add --precision, one or several with commas, as the parameter `precisions`."""
    return click.option(
        "--precision",
        "precisions",
        callback=parse_names(PRECISIONS),
        default=default,
        show_default=True,
        metavar="NAMES",
        help=f"{HELP['--precision']} Several with commas: {', '.join(PRECISIONS)}.",
    )


def batch_option(default: str = "the model's, else 1") -> Callable[[Function], Function]:
    """Add --batch, a single size, as the parameter `batch`; None without it. `default` is for the help."""
    text = f"{HELP['--batch']} Default: {default}."
    return click.option("--batch", callback=parse_batch, metavar="N", help=text)


def batches_option(
    several: str, default: str | None = None, otherwise: str = "the model's, else 1"
) -> Callable[[Function], Function]:
    """Add --batch, one size or several, as the parameter `batches`. `several` says what becomes of them.

    default: what stands for it; None: nothing, and `otherwise` tells what is done.
    """
    text = f"{HELP['--batch']} Several with commas, 1,8,32: {several}."
    if default is None:
        text += f" Default: {otherwise}."
    return click.option(
        "--batch",
        "batches",
        callback=parse_batches,
        default=default,
        show_default=default is not None,
        metavar="NUMBERS",
        help=text,
    )


def outputs_option(function: Function) -> Function:
    """Add --outputs: what to compute in place of the model's outputs."""
    return click.option("--outputs", multiple=True, callback=parse_outputs, metavar="NAMES", help=HELP["--outputs"])(
        function
    )


def kernels_option(function: Function) -> Function:
    """Add --kernels."""
    text = (
        "Kernels to use wherever they can be: wgmma (tensor cores of Hopper), mma (since Turing), or ffma (float32 "
        "arithmetic), which computes the rest. auto: the best that the device has."
    )
    choice = click.Choice(KERNELS)
    return click.option("--kernels", type=choice, default=KERNELS[0], show_default=True, help=text)(function)


def size_option(function: Function) -> Function:
    """Add --size, a single one."""
    text = f"{HELP['--size']} For a model that runs at several. Default: the model's."
    return click.option("--size", callback=parse_size, metavar="SIZE", help=text)(function)


def sizes_option(default: str, *, square: bool = False) -> Callable[[Function], Function]:
    """Add --size, one or several, as the parameter `sizes`: of pairs, or of sides. `default` is for the help."""
    callback = parse_squares if square else parse_sizes
    text = f"{HELP['--size']} {_SQUARE if square else ''}Several with commas. Default: {default}."
    return click.option("--size", "sizes", multiple=True, callback=callback, metavar="SIZES", help=text)


def square_size_option(default: int, more: str = "") -> Callable[[Function], Function]:
    """Add --size for what is made square, as the number of pixels `size`."""
    text = f"{HELP['--size']} {_SQUARE}{more}".rstrip()
    return click.option(
        "--size", callback=parse_square, default=str(default), show_default=True, metavar="SIZE", help=text
    )


def json_option(function: Function) -> Function:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(function)


def labels_option(function: Function) -> Function:
    """Add --labels, which overrides what the model file says of itself."""
    text = "Class names, one a line. Default: the model's own, else ImageNet's for 1000 classes."
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--labels", type=path, metavar="FILE", help=text)(function)


def find_model(name: str | None, defaults: Sequence[str] = DEFAULT_MODELS, make: str = "") -> Path:
    """Return the model file that --model names; without it the first of `defaults` that exists.

    Raises ModelError that says how to make or fetch one. A named file is left to the loader to judge.
    """
    if is_digits(name):
        return digits_model()
    if name is not None and name.startswith("torchvision/"):
        from vgg16gpu.compiler.vgg.forms import is_hub_name  # noqa: PLC0415 - --help names no model
        from vgg16gpu.compiler.vgg.source import hub_file  # noqa: PLC0415 - --help names no model

        return hub_file(name) if is_hub_name(name) else Path(name)
    if name is not None:
        return Path(name)
    for candidate in defaults:
        if Path(candidate).is_file():
            return Path(candidate)
    missing = f"{', '.join(defaults[:-1])} and {defaults[-1]}"
    raise ModelError(
        f"no model: {missing} do not exist; name one with --model FILE (or --model {NAME}), or run "
        f"`python -m vgg16gpu model make{make}` (random weights) or `model fetch` (trained) first"
    )


def new_model(name: str) -> Path:
    """Return the path of a model file that was given no place: in ./models if there is one, else here."""
    return MODEL_FOLDER / name if MODEL_FOLDER.is_dir() else Path(name)
