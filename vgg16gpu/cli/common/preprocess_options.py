"""--preprocess and what changes parts of it: what is done to pictures, and who says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from vgg16gpu.cli.common.parsing import parse_floats
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import CHANNEL_ORDERS, FITS, INTERPOLATIONS, PRESETS, Origin, Preprocess

Function = TypeVar("Function", bound=Callable[..., Any])

_PREPROCESS_HELP = (
    "What is done to pictures. torchvision: shorter side to 256/224 of the size, centre crop, ImageNet's mean and "
    "deviation; keras (caffe): stretched to the size, nearest, BGR, 0..255 minus ImageNet's means; unit: stretched, "
    "0..1; symmetric (tf): stretched, -1..1; raw: stretched, 0..255. Default: what the model's metadata or first "
    "layers say, else torchvision."
)
_FIT_HELP = "crop: shorter side to 256/224 of the size, then its centre; stretch: to the size, whatever the aspect."
_INTERPOLATION_HELP = "How pictures are resized; bilinear and bicubic average over what they shrink."
_ORDER_HELP = "Order of the colours that the model takes; pictures, and .npy and .npz of pixels, are RGB."


@dataclass(frozen=True)
class PixelOptions:
    """The command line, as it is; None for what is left out."""

    preprocess: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channel_order: str | None = None
    fit: str | None = None
    interpolation: str | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Options that are given, as they are written; without the numbers."""
        choices = {name: value for name, value in vars(self).items() if value is not None}
        texts = {name: f" {value}" for name, value in choices.items() if isinstance(value, str)}
        return tuple(f"--{name.replace('_', '-')}{texts.get(name, '')}" for name in choices)


def preprocess_options(function: Function) -> Function:
    """Add --preprocess, --mean, --std, --channel-order, --fit and --interpolation, as one argument `pixels`."""

    @functools.wraps(function)
    def command(*arguments: Any, **values: Any) -> Any:
        options = {name: values.pop(name) for name in vars(PixelOptions())}
        return function(*arguments, pixels=PixelOptions(**options), **values)

    command = click.option("--interpolation", type=click.Choice(INTERPOLATIONS), help=_INTERPOLATION_HELP)(command)
    command = click.option("--fit", type=click.Choice(FITS), help=_FIT_HELP)(command)
    command = click.option("--channel-order", type=click.Choice(CHANNEL_ORDERS), help=_ORDER_HELP)(command)
    for name, what in (("--std", "Standard deviation"), ("--mean", "Mean")):
        text = (
            f"{what} of pixels / 255, in whatever range --preprocess gives them; one number a channel, in the model's "
            "order: 0.5,0.5,0.5."
        )
        command = click.option(name, callback=parse_floats, metavar="NUMBERS", help=text)(command)
    choice = click.Choice(list(PRESETS))
    return click.option("--preprocess", type=choice, help=_PREPROCESS_HELP)(command)  # type: ignore[return-value]


def chosen(options: PixelOptions, channels: int, otherwise: Callable[[], Preprocess]) -> Preprocess:
    """Return the user's choice, else `otherwise`, part by part. Raises InputError for what does not fit the model."""
    for name in ("mean", "std"):
        values = getattr(options, name)
        if values is not None and len(values) != channels:
            raise InputError(
                f"--{name} has {len(values)} values, the model takes {channels} channels: give one for each"
            )
    if options.std is not None and not all(value > 0 for value in options.std):
        listed = ", ".join(map(str, options.std))
        raise InputError(f"--std {listed}: each must be above zero, pixels are divided by it")
    if options.channel_order and channels != 3:
        raise InputError(f"--channel-order is of 3 channels, the model takes {channels}; leave it out")
    base = Preprocess.named(options.preprocess, channels) if options.preprocess else otherwise()
    origin = Origin("user") if options.preprocess else base.origin
    return _changed(base, options).with_origin(replace(origin, options=options.given))


def _changed(base: Preprocess, options: PixelOptions) -> Preprocess:
    """Replace the parts that the user names."""
    has_numbers = options.mean is not None or options.std is not None
    order = options.channel_order
    if has_numbers and base.origin.kind == "assumed":
        order = order or "rgb"  # an assumed BGR came with the numbers that the user replaces
    base = base.in_order(order or base.channel_order)
    if options.mean is not None and options.std is not None:
        base = replace(base, pixel_range=1)  # the user's numbers, unrounded
    given = {"mean": options.mean, "std": options.std}
    numbers = {key: tuple(value * base.pixel_range for value in values) for key, values in given.items() if values}
    fit, interpolation = options.fit or base.fit, options.interpolation or base.interpolation
    return replace(base, fit=fit, interpolation=interpolation, **numbers)  # type: ignore[arg-type]
