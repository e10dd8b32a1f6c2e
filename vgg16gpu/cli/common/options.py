"""Options that several commands share, and the values behind them; those of pictures are in preprocess_options."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from vgg16gpu.cli.common.tell import tell
from vgg16gpu.compiler.choices import KERNELS, PRECISIONS
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shipped import NAME, digits_model, is_digits

Function = TypeVar("Function", bound=Callable[..., Any])

MODEL_FOLDER = Path("models")  # where a checkout keeps models; elsewhere they lie in the current folder
TRAINED_NAME = "vgg16-imagenet.onnx"  # what `model fetch` writes
_NAMES = (TRAINED_NAME, "vgg16.onnx")  # a trained model goes before one with random weights
DEFAULT_MODELS = tuple(str(folder / name) for name in _NAMES for folder in (MODEL_FOLDER, Path()))


def parse_size(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """'244' -> (244, 244); '224x320' -> (224, 320), height first."""
    if value is None:
        return None
    parts = value.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 65535 for part in parts):
        raise click.BadParameter(f"'{value}' is not a size: give pixels (244), or height x width (224x320)")
    return int(parts[0]), int(parts[-1])


def parse_floats(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """'0.5,0.5,0.5' -> (0.5, 0.5, 0.5)."""
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in value.replace(",", " ").split())
    except ValueError:
        numbers = ()
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise click.BadParameter(f"'{value}' is not a list of numbers, one per channel: 0.485,0.456,0.406")
    return numbers


def parse_counts(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    """'1,5,500' -> (1, 5, 500)."""
    parts = [part.strip() for part in value.split(",")] if value is not None else []
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"'{value}' is not a list of positive whole numbers, as in 1,5,500")
    return tuple(int(part) for part in parts)


def model_argument(*, required: bool = False) -> Callable[[Function], Function]:
    """MODEL, or --model FILE, which is the same, as the parameter `model`; None without either, unless required."""

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
    """The option `old` as it was called before, hidden: it sets the parameter of `new`, and says what to write."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, earlier: Any, **values: Any) -> Any:
            if earlier:
                tell(f"{old} is called {new} now; the old name will go")
                values[parameter] = earlier
            return function(*args, **values)

        return cast(Function, click.option(old, "earlier", hidden=True, **settings)(command))

    return decorate


def device_option(function: Function) -> Function:
    """--device."""
    text = "auto (a GPU if one works, else the CPU), cuda, cuda:N or cpu."
    return click.option("--device", default="auto", show_default=True, help=text)(function)


def precision_option(function: Function) -> Function:
    """--precision."""
    text = (
        "fp32 is as exact as float32 arithmetic, and stands in for fp16 and bf16 where a device has no tensor cores "
        "for them; int8 takes the scales that `calibrate` wrote next to the model."
    )
    choice = click.Choice(PRECISIONS)
    return click.option("--precision", type=choice, default=PRECISIONS[0], show_default=True, help=text)(function)


def kernels_option(function: Function) -> Function:
    """--kernels."""
    text = (
        "Kernels to use wherever they can be: wgmma (tensor cores of Hopper), mma (since Turing), or ffma (float32 "
        "arithmetic), which computes the rest. auto: the best that the device has."
    )
    choice = click.Choice(KERNELS)
    return click.option("--kernels", type=choice, default=KERNELS[0], show_default=True, help=text)(function)


def size_option(function: Function) -> Function:
    """--size."""
    text = "Image size, 244 or 224x320, for a model that runs at several. Default: the model's."
    return click.option("--size", callback=parse_size, metavar="SIZE", help=text)(function)


def json_option(function: Function) -> Function:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(function)


def labels_option(function: Function) -> Function:
    """--labels, which overrides what the model file says of itself."""
    text = "Class names, one a line. Default: the model's own, else ImageNet's for 1000 classes."
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--labels", type=path, metavar="FILE", help=text)(function)


def find_model(name: str | None, defaults: Sequence[str] = DEFAULT_MODELS, make: str = "") -> Path:
    """The model file that --model names; without it the first of `defaults` that exists.

    Raises ModelError that says how to make or fetch one. A named file is left to the loader to judge.
    """
    if is_digits(name):
        return digits_model()
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
    """Where a model file goes that was given no place: ./models if there is one, else here."""
    return MODEL_FOLDER / name if MODEL_FOLDER.is_dir() else Path(name)
