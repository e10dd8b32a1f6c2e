"""Options that several commands share, and the values behind them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from vgg16gpu.cli.tell import tell
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.normalise import default_mean, default_std
from vgg16gpu.prepare import KERNELS, PRECISIONS
from vgg16gpu.shown import shown
from vgg16gpu.zoo.digits import NAME as DIGITS
from vgg16gpu.zoo.digits import digits_model, is_digits
from vgg16gpu.zoo.labels import load as load_labels
from vgg16gpu.zoo.metadata import LABELS_KEY, MEAN_KEY, NOTE_KEY, STD_KEY, model_metadata

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


def pixel_options(function: Function) -> Function:
    """--mean, --std and --labels, which override what the model file says of itself."""
    labels = "Class names, one a line. Default: the model's own, else ImageNet's for 1000 classes."
    path = click.Path(dir_okay=False, path_type=Path)
    function = click.option("--labels", type=path, metavar="FILE", help=labels)(function)
    for name, what in (("--std", "Standard deviation"), ("--mean", "Mean")):
        text = f"{what} of pixels / 255, one number a channel: 0.5,0.5,0.5. Default: the model's own, else ImageNet's."
        function = click.option(name, callback=parse_floats, metavar="NUMBERS", help=text)(function)
    return function


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
        f"no model: {missing} do not exist; name one with --model FILE (or --model {DIGITS}), or run "
        f"`python -m vgg16gpu model make{make}` (random weights) or `model fetch` (trained) first"
    )


def new_model(name: str) -> Path:
    """Where a model file goes that was given no place: ./models if there is one, else here."""
    return MODEL_FOLDER / name if MODEL_FOLDER.is_dir() else Path(name)


@dataclass(frozen=True)
class ModelNotes:
    """What belongs to a model but is not in its graph. `mean` and `std` are one value per channel of pixels / 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: Path | None
    own_labels: tuple[str, ...]
    note: str

    def names(self, classes: int) -> Sequence[str]:
        """A name for each of `classes` classes. Raises InputError when --labels holds another number."""
        if self.labels is None and len(self.own_labels) == classes:
            return self.own_labels
        return load_labels(self.labels, classes)


def model_notes(
    model: Path, channels: int, mean: Sequence[float] | None, std: Sequence[float] | None, labels: Path | None
) -> ModelNotes:
    """The user's words first, then the metadata of the model file, then the defaults. Raises InputError."""
    metadata = model_metadata(model)
    return ModelNotes(
        mean=_per_channel("mean", mean or _numbers(metadata, MEAN_KEY, model) or default_mean(channels), channels),
        std=_per_channel("std", std or _numbers(metadata, STD_KEY, model) or default_std(channels), channels),
        labels=labels,
        own_labels=tuple(str(label) for label in _list(metadata, LABELS_KEY, model)),
        note=metadata.get(NOTE_KEY, ""),
    )


def _numbers(metadata: Mapping[str, str], key: str, model: Path) -> tuple[float, ...]:
    values = _list(metadata, key, model)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ModelError(f"{model}: its metadata '{key}' is {shown(metadata[key])}, expected a JSON list of numbers")
    return tuple(values)


def _list(metadata: Mapping[str, str], key: str, model: Path) -> list[Any]:
    try:
        values = json.loads(metadata.get(key, "[]"))
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise ModelError(f"{model}: its metadata '{key}' is {shown(metadata[key])}, expected a JSON list")
    return values


def _per_channel(name: str, values: Sequence[float], channels: int) -> tuple[float, ...]:
    if len(values) != channels:
        raise InputError(f"--{name} has {len(values)} values, the model takes {channels} channels: give one for each")
    if name == "std" and not all(value > 0 for value in values):
        raise InputError(f"--std {', '.join(map(str, values))}: each must be above zero, pixels are divided by it")
    return tuple(float(value) for value in values)
