"""What is done to a picture before a network sees it, as one value: `Preprocess`.

A decoded picture is RGB (or grey) bytes. It is fitted to the network's size, its channels are put in the network's
order, and a byte x becomes (x * pixel_range / 255 - mean) / std. The engine does the last step on the device, as
(x / 255 - unit_mean) / unit_std; `pictures/images.py` does the others.

The presets, by their names in the field:

| name | fit | interpolation | order | values |
|---|---|---|---|---|
| torchvision | crop | bilinear | RGB | (x / 255 - mean) / std, ImageNet's (`VGG16_Weights.IMAGENET1K_V1.transforms`) |
| keras, caffe | stretch | nearest | BGR | x - (103.939, 116.779, 123.68) (`keras.applications.vgg16`, mode "caffe") |
| unit | stretch | bilinear | RGB | x / 255, from 0 to 1 |
| symmetric, tf | stretch | bilinear | RGB | x / 127.5 - 1, from -1 to 1 (Keras' mode "tf") |
| raw | stretch | bilinear | RGB | x, from 0 to 255 |

`nearest` is what Keras' `load_img(path, target_size)` does unless told otherwise. Bilinear and bicubic are Pillow's,
which average over what they shrink, as torchvision's on pictures; TensorFlow's `tf.image.resize` does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, Self

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.foreign.numbers import is_finite_number
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.shown import shown

_RESIZE_RATIO: Final = 256 / 224  # the shorter side before the crop, to the network's

PIXEL_RANGES: Final = (1, 255)
CHANNEL_ORDERS: Final = ("rgb", "bgr")
FITS: Final = ("crop", "stretch")
INTERPOLATIONS: Final = ("nearest", "bilinear", "bicubic")

_CAFFE_MEAN = (103.939, 116.779, 123.68)  # B, G, R of 0..255; "caffe" of keras.applications.imagenet_utils


@dataclass(frozen=True)
class Origin:
    """Who says so: the file's metadata, the user, or nobody (then why it is assumed).

    `options`: what the user has changed, as written on the command line.
    """

    kind: Literal["file", "user", "assumed"] = "user"
    reason: str = ""
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        base = {
            "file": "from the file's metadata",
            "user": "",
            "assumed": f"assumed: {self.reason} (see --preprocess)",
        }[self.kind]
        if not self.options:
            return base or "as given"
        return f"by {', '.join(self.options)}" + (f"; the rest {base}" if base else "")


@dataclass(frozen=True)
class Preprocess:
    """How pictures become inputs. Two that do the same are equal, whoever says so.

    mean, std: one number for each channel, in the network's order of channels, of pixels from 0 to `pixel_range`.
    pixel_range: 1 or 255. channel_order: "rgb" or "bgr"; means nothing for a network that takes other than 3 channels.
    fit: "crop" (the shorter side to 256/224 of the size, then the centre) or "stretch" (to the size, whatever the
    aspect). interpolation: "nearest", "bilinear" or "bicubic".
    Raises InputError for anything else.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixel_range: int = 1
    channel_order: str = "rgb"
    fit: str = "crop"
    interpolation: str = "bilinear"
    origin: Origin = field(default=Origin(), compare=False)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if not all(value > 0 for value in self.std):
            raise InputError(f"std {_listed(self.std)}: each must be above zero, pixels are divided by it")
        if len(self.mean) != len(self.std):
            raise InputError(f"mean has {len(self.mean)} values, std {len(self.std)}: give one for each channel")
        for name, accepted in _ACCEPTED.items():
            value = getattr(self, name)
            if isinstance(value, bool) or value not in accepted:
                raise InputError(f"{name} is {shown(value)}; accepted: {', '.join(map(str, accepted))}")
        if self.channel_order == "bgr" and self.channels != 3:
            raise InputError(f"channel_order 'bgr' is of 3 channels, mean and std are of {self.channels}; leave it out")

    @classmethod
    def named(cls, name: str, channels: int = 3) -> Self:
        """Return a preset, for a network of `channels` channels. Raises InputError if it is unknown or does not fit."""
        if name not in PRESETS:
            raise InputError(f"preprocessing {shown(name)} is not known; accepted: {', '.join(PRESETS)}")
        values = dict(PRESETS[name])
        mean, std = values.pop("mean"), values.pop("std")
        if isinstance(mean, tuple) and len(mean) != channels:
            others = ", ".join(key for key, preset in PRESETS.items() if not isinstance(preset["mean"], tuple))
            raise InputError(
                f"preprocessing '{name}' is of {len(mean)} colours, the model takes {_count(channels)}; "
                f"take one of {others}"
            )
        each = (mean, std) if isinstance(mean, tuple) else ((mean,) * channels, (std,) * channels)
        return cls(*each, **values)

    @classmethod
    def from_fields(cls, content: object) -> Self:
        """Create from the result of `fields`. Raises InputError that names what is missing, unknown or wrong."""
        if not isinstance(content, Mapping):
            raise InputError(f"preprocessing is {shown(content)}; expected an object with {', '.join(_FIELDS)}")
        if missing := [name for name in _FIELDS if name not in content]:
            raise InputError(f"preprocessing lacks {', '.join(missing)}")
        if unknown := [str(name) for name in content if name not in _FIELDS]:
            raise InputError(f"preprocessing has {', '.join(unknown)}; known are {', '.join(_FIELDS)}")
        return cls(**content)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create from the result of `to_json`. Raises InputError."""
        return cls.from_fields(parse_json(text, "preprocessing"))

    def fields(self) -> dict[str, Any]:
        """Return everything but the origin, as plain data."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self) -> str:
        """Return the same as JSON text, for a model's metadata."""
        return json.dumps(self.fields(), allow_nan=False)

    @property
    def channels(self) -> int:
        """Return how many channels the network takes."""
        return len(self.mean)

    @property
    def unit_mean(self) -> tuple[float, ...]:
        """The mean of pixels / 255, which `Engine` takes."""
        return tuple(value / self.pixel_range for value in self.mean)

    @property
    def unit_std(self) -> tuple[float, ...]:
        """The standard deviation of pixels / 255, which `Engine` takes."""
        return tuple(value / self.pixel_range for value in self.std)

    def in_order(self, channel_order: str) -> Self:
        """Return the same colours in another order of channels: mean and std stay with their colours."""
        if channel_order == self.channel_order:
            return self
        return replace(self, channel_order=channel_order, mean=self.mean[::-1], std=self.std[::-1])

    def with_origin(self, origin: Origin) -> Self:
        """Return the same with another origin."""
        return replace(self, origin=origin)

    def line(self, height: int, width: int, *, pictures: bool = True) -> str:
        """Return all of it in one line for people; without `pictures` what concerns arrays of pixels alone."""
        order = {1: "grey", 3: self.channel_order.upper()}.get(self.channels, _count(self.channels))
        parts = [*(self._fitting(height, width) if pictures else ()), order, self._formula()]
        return f"{'pictures' if pictures else 'pixels'}: {', '.join(parts)}; {self.origin}"

    def assumption(self, height: int, width: int, *, pictures: bool = True) -> str:
        """Return a warning for people who cannot see `line` that this is assumed, and what it is; "" if it is not."""
        if self.origin.kind != "assumed" or self.origin.options:
            return ""
        steps, _, _ = self.line(height, width, pictures=pictures).partition(";")
        return f"assumed of {steps}, as {self.origin.reason}; if the network was trained otherwise its scores are wrong"

    def report(self, height: int, width: int, *, pictures: bool = True) -> dict[str, Any]:
        """Return everything as plain data, for --json."""
        origin = {"origin": self.origin.kind, "reason": self.origin.reason, "options": list(self.origin.options)}
        return {**self.fields(), **origin, "line": self.line(height, width, pictures=pictures)}

    def _fitting(self, height: int, width: int) -> tuple[str, ...]:
        size = f"{height}x{width}"
        if self.fit == "stretch":
            return f"stretched to {size}", self.interpolation
        rows, columns = resize_target((height, width))
        resized = f"shorter side to {rows}" if rows == columns else f"to cover {rows}x{columns}"
        return resized, self.interpolation, f"centre crop {size}"

    def _formula(self) -> str:
        x = "x/255" if self.pixel_range == 1 else "x"
        colours = self.in_order("rgb")
        if (colours.mean, colours.std, self.pixel_range) == (IMAGENET_MEAN, IMAGENET_STD, 1):
            return "(x/255 - mean)/std with ImageNet's numbers"
        mean, std = _short(self.mean), _short(self.std)
        if std == "1":
            return f"{x} - {mean}" if mean != "0" else f"{x} from 0 to {self.pixel_range}"
        if mean != "0":
            return f"({x} - {mean})/{std}"
        return f"({x})/{std}" if self.pixel_range == 1 else f"{x}/{std}"


def default_preprocess(channels: int) -> Preprocess:
    """Return the preprocessing assumed for an unknown model: torchvision's for 3 channels, else `unit`."""
    return Preprocess.named("torchvision" if channels == 3 else "unit", channels)


def resize_target(size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that a picture covers at least before `size` is cut from its centre."""
    rows, columns = (round(side * _RESIZE_RATIO) for side in size)
    return rows, columns


def resized_shape(
    height: Any, width: Any, to: tuple[int, int], larger: Callable[[Any, Any], Any] = max
) -> tuple[Any, Any]:
    """Return the (rows, columns) to which a picture of (height, width) is resized before the centre crop to `to`.

    Also for arrays of heights and widths, where `larger` is np.maximum.
    """
    rows, columns = resize_target(to)
    return larger(rows, columns * height // width), larger(columns, rows * width // height)


def _numbers(name: str, values: object) -> tuple[float, ...]:
    if isinstance(values, Sequence) and len(values) and all(map(is_finite_number, values)):
        return tuple(map(float, values))
    raise InputError(f"{name} is {shown(values)}; expected a list of finite numbers, one for each channel")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _short(values: Sequence[float]) -> str:
    """Format the values, as one number if all channels have the same."""
    return f"{values[0]:g}" if len(set(values)) == 1 else f"({_listed(values)})"


def _count(channels: int) -> str:
    return "1 channel" if channels == 1 else f"{channels} channels"


_KERAS: Final[Mapping[str, Any]] = {
    "mean": _CAFFE_MEAN,
    "std": (1.0, 1.0, 1.0),
    "pixel_range": 255,
    "channel_order": "bgr",
    "fit": "stretch",
    "interpolation": "nearest",
}
_SYMMETRIC: Final[Mapping[str, Any]] = {"mean": 0.5, "std": 0.5, "fit": "stretch"}

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {  # a single number is for every channel, however many
    "torchvision": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
    "keras": _KERAS,
    "caffe": _KERAS,
    "unit": {"mean": 0.0, "std": 1.0, "fit": "stretch"},
    "symmetric": _SYMMETRIC,
    "tf": _SYMMETRIC,
    "raw": {"mean": 0.0, "std": 1.0, "pixel_range": 255, "fit": "stretch"},
}

_ACCEPTED: Final[Mapping[str, Sequence[Any]]] = {
    "pixel_range": PIXEL_RANGES,
    "channel_order": CHANNEL_ORDERS,
    "fit": FITS,
    "interpolation": INTERPOLATIONS,
}
_FIELDS: Final = tuple(item.name for item in fields(Preprocess) if item.name != "origin")
