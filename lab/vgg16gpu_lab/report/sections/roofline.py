"""The roofline of a benchmark's steps as SVG: each a numbered dot below what the device can do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from vgg16gpu_lab.report.html.markup import Html, element, number

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 706, 40, 372  # of the axes
_DOT: Final = 4.0  # radius
_LETTER, _LINE = 7.2, 13.0  # width and height of a digit
_AROUND: Final = tuple(product((13, 20, 28, 38, 50, 64), range(0, 360, 30)))  # where a number may stand, nearest first
_NEAR: Final = 16  # from which distance on a line leads to the number
_KEYS: Final = (0, 200, 420)  # where the explanations of lines begin

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Dot:
    """A step."""

    number: int
    label: str
    intensity: float  # FLOP per byte that has to be moved at least
    flop_per_s: float


@dataclass(frozen=True)
class Roof:
    """What a device can do at most in a precision; None where a rate is not known or not to be drawn."""

    bytes_per_s: float
    ffma: float | None  # FLOP/s
    tensor: float | None
    unit: str = "FLOP"  # OP where products are of integers

    @property
    def top(self) -> float:
        """The higher of the rates; where none is known what a byte each operation would give."""
        return max(self.ffma or 0.0, self.tensor or 0.0) or self.bytes_per_s


def roof_of(ceilings: dict[str, Any], precision: str) -> Roof:
    """Return the ceilings of a benchmark in a precision."""
    tensor = ceilings.get("tensor_flop_per_s", {}).get(precision)
    ffma = ceilings["flop_per_s"] if precision == "fp32" or not tensor else None
    return Roof(ceilings["bytes_per_s"], ffma, tensor, "OP" if precision == "int8" else "FLOP")


def dots_of(layers: Sequence[dict[str, Any]]) -> list[Dot]:
    """Return the steps that compute something, numbered as in the table of all steps."""
    return [
        Dot(place, layer["label"], layer["flop"] / layer["nbytes"], layer["flop_per_s"])
        for place, layer in enumerate(layers)
        if layer["flop"] and layer["nbytes"]
    ]


def draw(dots: Sequence[Dot], roof: Roof, title: str) -> Html:
    """Draw the chart; on both axes the scale is logarithmic."""
    axes = _Axes.around(dots, roof)
    unit, per = (f"T{roof.unit}/s", 1e12) if roof.top >= 1e12 else (f"G{roof.unit}/s", 1e9)
    return element(
        "svg",
        element("title", title),
        *_grid(axes, unit, per, roof.unit),
        *_bounds(axes, roof, unit, per),
        *(_mark(axes, dot, unit, per, roof.unit) for dot in dots),
        *_numbers(axes, dots),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
    )


@dataclass(frozen=True)
class _Axes:
    """Decimal logarithms at the ends."""

    left: float
    right: float
    bottom: float
    top: float

    @staticmethod
    def around(dots: Sequence[Dot], roof: Roof) -> _Axes:
        """Return axes with all dots and the ridge inside."""
        ridge = roof.top / roof.bytes_per_s
        x = [*(dot.intensity for dot in dots), ridge]
        y = [*(dot.flop_per_s for dot in dots), roof.top]
        return _Axes(math.log10(min(x) / 2), math.log10(max(x) * 2), math.log10(min(y) / 2), math.log10(max(y) * 2))

    def x(self, intensity: float) -> float:
        """Return the place in units of the picture."""
        return _LEFT + (_RIGHT - _LEFT) * (math.log10(intensity) - self.left) / (self.right - self.left)

    def y(self, flop_per_s: float) -> float:
        """Return the place in units of the picture, downwards."""
        return _BOTTOM - (_BOTTOM - _TOP) * (math.log10(flop_per_s) - self.bottom) / (self.top - self.bottom)


def _grid(axes: _Axes, unit: str, per: float, operation: str) -> Iterator[Html]:
    for value in _ticks(axes.left, axes.right):
        x = _at(axes.x(value))
        yield element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=_BOTTOM)
        yield _text(f"{value:g}", x, _BOTTOM + 16, "middle")
    for value in _ticks(axes.bottom, axes.top):
        y = axes.y(value)
        yield element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=_at(y), y2=_at(y))
        yield _text(f"{value / per:g}", _LEFT - 6, _at(y + 4), "end")
    yield _text(f"arithmetic intensity, {operation}/byte (log scale)", (_LEFT + _RIGHT) // 2, _HEIGHT - 12, "middle")
    middle = (_TOP + _BOTTOM) // 2
    turned = f"rotate(-90 14 {middle})"
    yield element("text", f"{unit} (log scale)", x=14, y=middle, text_anchor="middle", transform=turned)


def _ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, and twice and five times that where there is room."""
    steps = (1, 2, 5) if high - low < 3.2 else (1,)
    found = (step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps)
    return [value for value in found if low <= math.log10(value) <= high]


def _bounds(axes: _Axes, roof: Roof, unit: str, per: float) -> Iterator[Html]:
    """Yield the roofs, and what they are."""
    start = max(10**axes.left, 10**axes.bottom / roof.bytes_per_s)
    begin = axes.x(start), axes.y(start * roof.bytes_per_s)
    rates = [(rate, style, name) for rate, style, name in _rates(roof) if rate]
    yield from _bound("", begin, _end(axes, roof, roof.top))
    yield from _key(0, "", f"copy {number(roof.bytes_per_s / 1e9)} GB/s")
    for place, (rate, style, name) in enumerate(rates, 1):
        yield from _bound(style, _end(axes, roof, rate), (_RIGHT, axes.y(rate)))
        yield from _key(place, style, f"{name} {number(rate / per)} {unit}")


def _rates(roof: Roof) -> tuple[tuple[float | None, str, str], ...]:
    return (roof.tensor, "", "tensor cores"), (roof.ffma, " ffma", "FFMA")


def _end(axes: _Axes, roof: Roof, rate: float) -> tuple[float, float]:
    """Return where a rate's roof meets that of memory."""
    return axes.x(rate / roof.bytes_per_s), axes.y(rate)


def _bound(style: str, begin: tuple[float, float], end: tuple[float, float]) -> Iterator[Html]:
    (x1, y1), (x2, y2) = begin, end
    yield element("line", class_=f"bound{style}", x1=_at(x1), y1=_at(y1), x2=_at(x2), y2=_at(y2))


def _key(place: int, style: str, text: str) -> Iterator[Html]:
    x = _LEFT + _KEYS[place]
    yield element("line", class_=f"bound{style}", x1=x, x2=x + 26, y1=16, y2=16)
    yield _text(text, x + 33, 20, "start")


def _mark(axes: _Axes, dot: Dot, unit: str, per: float, operation: str) -> Html:
    told = f"{dot.number}: {dot.label}: {number(dot.flop_per_s / per)} {unit}, {number(dot.intensity)} {operation}/byte"
    x, y = _at(axes.x(dot.intensity)), _at(axes.y(dot.flop_per_s))
    return element("circle", element("title", told), class_="dot", cx=x, cy=y, r=_DOT)


def _numbers(axes: _Axes, dots: Sequence[Dot]) -> Iterator[Html]:
    """Yield each number beside its dot where there is room, else a little further off with a line to it."""
    places = [(axes.x(dot.intensity), axes.y(dot.flop_per_s)) for dot in dots]
    taken: list[Box] = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in places]
    for dot, (x, y) in zip(dots, places, strict=True):
        width = _LETTER * len(str(dot.number))
        distance, box = _free(x, y, width, taken)
        taken.append(box)
        middle, base = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if distance > _NEAR:
            yield element("line", class_="leader", x1=_at(x), y1=_at(y), x2=_at(middle), y2=_at(base))
        yield _text(str(dot.number), _at(middle), _at(base + 4), "middle")


def _free(x: float, y: float, width: float, taken: Sequence[Box]) -> tuple[float, Box]:
    """Return the nearest free box about a dot, and how far away it is; the farthest if there is none."""
    for distance, angle in _AROUND:
        middle = x + distance * math.cos(math.radians(angle)), y - distance * math.sin(math.radians(angle))
        box = middle[0] - width / 2, middle[1] - _LINE / 2, middle[0] + width / 2, middle[1] + _LINE / 2
        inside = box[0] >= _LEFT and box[2] <= _RIGHT and box[1] >= _TOP and box[3] <= _BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            break
    return distance, box


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _text(text: str, x: object, y: object, anchor: str) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _at(value: float) -> str:
    return f"{value:.1f}"
