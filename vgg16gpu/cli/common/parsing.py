"""What is written behind an option, as a value. Each raises BadParameter that names what it found and what it takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from vgg16gpu.compiler.choices import MAX_BATCH
from vgg16gpu.devices import is_device_name
from vgg16gpu.devices.several import split_devices
from vgg16gpu.errors import DeviceError
from vgg16gpu.io.foreign.numbers import MOST_REAL, digits_value, real_value
from vgg16gpu.io.shown import printable, shown

MOST_PIXELS: Final = 65535  # of a side
MOST_COUNT: Final = 10**9  # of anything that is counted
MOST_WHOLE: Final = (1 << 31) - 1

_CORE: Final = re.compile(r"\d{1,4}", re.ASCII)
_RAY: Final = re.compile(r"local(:[1-9]\d{0,3})?|(ray://)?(?!local:)[^\s/]+:\d{1,5}", re.ASCII)


class Whole(click.IntRange):
    """A whole number in ASCII digits from `min` to `max`, MOST_WHOLE without it.

    click alone takes whatever `int` takes: any size, blanks, underscores, digits of other scripts.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises BadParameter."""
        digits = value.removeprefix("-") if isinstance(value, str) else ""
        if isinstance(value, str) and digits_value(digits, MOST_WHOLE) is None:
            self.fail(f"{shown(value)} is not a whole number in digits, {MOST_WHOLE:,} at most", param, ctx)
        return super().convert(value, param, ctx)


class Real(click.FloatRange):
    """A number in decimals from `min` to `max`, MOST_REAL without it; never NaN, which is in every range of click's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises BadParameter."""
        if isinstance(value, str) and real_value(value, MOST_REAL) is None:
            self.fail(f"{shown(value)} is not a number in decimals, {MOST_REAL:,.0f} at most", param, ctx)
        return super().convert(value, param, ctx)


def parse_size(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parse '244' -> (244, 244); '224x320' -> (224, 320), height first."""
    return None if value is None else _size(value)


def parse_sizes(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Parse ('224,320x240', '64') -> ((224, 224), (320, 240), (64, 64))."""
    return tuple(dict.fromkeys(_size(part.strip()) for value in values for part in value.split(",")))


def parse_square(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse '244' or '244x244' -> 244; another height than width is refused."""
    size = parse_size(context, parameter, value)
    return None if size is None else _square(*size)


def parse_squares(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> tuple[int, ...]:
    """Parse ('224,320x320', '64') -> (224, 320, 64)."""
    return tuple(_square(*size) for size in parse_sizes(context, parameter, values))


def parse_floats(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Parse '0.5,0.5,0.5' -> (0.5, 0.5, 0.5)."""
    if value is None:
        return None
    numbers = [real_value(part) for part in value.replace(",", " ").split()]
    if not numbers or None in numbers:
        raise click.BadParameter(f"'{value}' is not a list of numbers, one per channel: 0.485,0.456,0.406")
    return tuple(number for number in numbers if number is not None)


def parse_counts(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse '1,5,500' -> (1, 5, 500); () without a value."""
    return _counts(value, "1,5,500")


def parse_batches(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse '1,8,32' -> (1, 8, 32), each once; () without a value."""
    batches = _counts(value, "1,8,32")
    if large := [batch for batch in batches if batch > MAX_BATCH]:
        raise click.BadParameter(f"'{large[0]}' images are too many for a run: give at most {MAX_BATCH}")
    return tuple(dict.fromkeys(batches))


def parse_batch(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse '8' -> 8; None without a value."""
    batches = parse_batches(context, parameter, value)
    if len(batches) > 1:
        raise click.BadParameter(f"'{value}' is several: this command runs one number of images")
    return batches[0] if batches else None


def parse_cores(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse '8-10,2' -> (2, 8, 9, 10), if this process may use them; () without a value."""
    if value is None:
        return ()
    found = set[int]()
    for part in value.split(","):
        first, dash, last = part.partition("-")
        if not (_CORE.fullmatch(first) and _CORE.fullmatch(last if dash else first)):
            raise click.BadParameter(f"'{value}' is no list of cores: write 8-15 or 4,5")
        found |= set(range(int(first), int(last if dash else first) + 1))
    if not found:
        raise click.BadParameter(f"'{value}' has no core in it: write 8-15 or 4,5")
    if beyond := sorted(found - _movable(found)):
        raise click.BadParameter(f"this process may not use core {beyond[0]}; nproc says how many there are")
    return tuple(sorted(found))


def _movable(cores: set[int]) -> set[int]:
    """Return the cores to which this process could move, which may be more than those of its present affinity."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        return set(os.sched_getaffinity(0))
    except OSError:
        return set()
    finally:
        os.sched_setaffinity(0, before)


def parse_device(_: click.Context, __: click.Parameter, value: str) -> str:
    """Return the name of a device, if it is one."""
    if not is_device_name(value):
        raise click.BadParameter(f"'{printable(value)}' is not a device: give auto, cuda, cuda:N or cpu")
    return value


def parse_devices(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse 'cuda:0,cuda:1' -> ('cuda:0', 'cuda:1'); 'cpu:2' -> ('cpu', 'cpu'); None without a value."""
    try:
        return None if value is None else split_devices(value)
    except DeviceError as error:
        raise click.BadParameter(printable(str(error))) from error


def parse_shard(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parse '3/16' -> (3, 16): the process of that number, counted from 0, and the number of processes."""
    if value is None:
        return None
    number, slash, count = value.partition("/")
    place, places = digits_value(number, MOST_COUNT), digits_value(count, MOST_COUNT)
    if not slash or place is None or places is None or place >= places:
        raise click.BadParameter(f"'{printable(value)}' is not I/N, as in 0/16: I from 0 to N - 1")
    return place, places


def parse_ray(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return the place of a Ray cluster: auto, local, local:N, HOST:PORT, ray://HOST:PORT."""
    if value is None or value == "auto" or _RAY.fullmatch(value):
        return value
    raise click.BadParameter(f"'{printable(value)}' is no Ray cluster: give auto, HOST:PORT, local or local:N")


def parse_outputs(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...] | None:
    """Parse ('relu3_3,features.22', 'y') -> ('relu3_3', 'features.22', 'y'); None without any."""
    names = [part.strip() for value in values for part in value.split(",")]
    if not all(names):
        raise click.BadParameter("a name is empty: give names with commas, as in relu3_3,features.22")
    return tuple(dict.fromkeys(names)) or None


def parse_names(accepted: Sequence[str]) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...]]:
    """Return a callback for an option that takes some of the accepted names: 'a,b' -> ('a', 'b')."""

    def parse(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
        wanted = [part.strip() for part in value.split(",")] if value is not None else []
        known = ", ".join(f"'{name}'" for name in accepted)
        for name in wanted:
            if name not in accepted:
                raise click.BadParameter(f"'{name}' is not one of {known}.")  # as click says it of a single one
        return tuple(dict.fromkeys(wanted))

    return parse


def _size(value: str) -> tuple[int, int]:
    sides = [digits_value(part, MOST_PIXELS) or 0 for part in value.lower().split("x")]
    if len(sides) > 2 or 0 in sides:
        raise click.BadParameter(f"'{value}' is not a size: give pixels (244), or height x width (224x320)")
    return sides[0], sides[-1]


def _square(height: int, width: int) -> int:
    if height != width:
        raise click.BadParameter(f"'{height}x{width}' is not square, as images are here: give one number, {height}")
    return height


def _counts(value: str | None, example: str) -> tuple[int, ...]:
    counts = [digits_value(part.strip(), MOST_COUNT) or 0 for part in value.split(",")] if value is not None else []
    if 0 in counts:
        raise click.BadParameter(
            f"'{value}' is not a list of positive whole numbers, as in {example}, each {MOST_COUNT:,} at most"
        )
    return tuple(counts)
