"""Four pictures that explain kernels, drawn with matplotlib: all numbers in them are computed from addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vgg16gpu_lab.figures.draw import COLOURS

LANES: Final = 32  # of a warp, and banks of shared memory
FLOAT: Final = 4  # bytes
SECTOR: Final = 32  # bytes

_BLUE, _ORANGE = COLOURS[0], COLOURS[4]
_GREY: Final = "#D9D9D9"
_EDGE: Final = "white"
_WIDTH: Final = 5.0  # inches: text of 9 points can still be read where the picture is as wide as a telephone
_TEXT: Final = 9  # points


@dataclass(frozen=True)
class Lesson:
    """A picture: its title, what it shows in words, and what draws it."""

    title: str
    caption: str
    draw: Callable[[], Any]


def sectors(offsets: Sequence[int]) -> dict[int, set[int]]:
    """Return the 32-byte sectors of floats at these offsets, each with its floats that are used."""
    found: dict[int, set[int]] = {}
    for offset in offsets:
        found.setdefault(offset // SECTOR, set()).add(offset % SECTOR // FLOAT)
    return found


def passes(words: Sequence[int]) -> tuple[Counter[int], int]:
    """Return how many different words (of 4 bytes) a warp wants of each bank, and how many turns that takes."""
    banks = Counter(word % LANES for word in set(words))
    return banks, max(banks.values())


def loads_an_output(tile: int, kernel: int = 3) -> float:
    """Return the values of a channel that a block loads for each of its tile x tile outputs."""
    return (tile + kernel - 1) ** 2 / tile**2


def lessons() -> tuple[Lesson, ...]:
    """Return all four lessons, in the order of the exercises."""
    return (
        Lesson(
            "What addresses a warp touches",
            "Memory delivers sectors of 32 bytes. Blue floats are wanted by a lane, grey ones come along unused.",
            _draw_addresses,
        ),
        Lesson(
            "Tile and halo",
            "What a block of 4x4 outputs needs of a channel for a 3x3 filter: its tile and a halo of one value, zero "
            "where it lies beside the image. The larger the tile, the smaller the halo's share.",
            _draw_tile,
        ),
        Lesson(
            "Register tile",
            "Orange: what a thread loads from shared memory for one step of the sum. Blue: the products that it makes "
            "of it. More outputs a thread, fewer loads a product.",
            _draw_registers,
        ),
        Lesson(
            "Bank conflicts",
            "Shared memory has 32 banks of 4 bytes. A bank serves one word a turn; lanes that want other words of the "
            "same bank wait. One column more in each row of the array, never used, puts a column into all banks.",
            _draw_banks,
        ),
    )


# What addresses a warp touches


def _draw_addresses() -> Any:
    pitch = 1024 * FLOAT  # of an image with rows of 1024
    cases = (
        ("x[j]: neighbours", [FLOAT * lane for lane in range(LANES)]),
        ("x[j + 1]: neighbours, begun in the middle of a sector", [FLOAT * (lane + 1) for lane in range(LANES)]),
        ("x[i * 1024]: each lane in another row", [pitch * lane for lane in range(LANES)]),
    )
    rows = [-(-len(sectors(offsets)) // 8) for _, offsets in cases]
    figure, axes = _figure(3.7, rows=3, height_ratios=[1 + count for count in rows])
    for at, (title, offsets), count in zip(axes, cases, rows, strict=True):
        found = sectors(offsets)
        for place, (_, used) in enumerate(sorted(found.items())):
            for cell in range(SECTOR // FLOAT):
                left, top = place % 8 * 9 + cell, place // 8 * 1.5
                _cell(at, left, top, _BLUE if cell in used else _GREY)
        fetched = SECTOR * len(found)
        _title(at, f"{title}\n{len(found)} sectors, {FLOAT * len(set(offsets))} of {fetched} bytes used")
        _frame(at, 72, 1.5 * count)
    return figure


# Tile and halo


def _draw_tile() -> Any:
    tile, size = 4, 10
    figure, (at, beside) = _figure(3.1, columns=2, width_ratios=[1.25, 1])
    for row in range(-1, size):
        for column in range(-1, size):
            outputs = 0 <= row < tile and 0 <= column < tile
            needed = row <= tile and column <= tile
            inside = row >= 0 and column >= 0
            if needed and not inside:
                _cell(at, column, row, "white", hatch="////", edge=_ORANGE)
            elif inside:
                _cell(at, column, row, _BLUE if outputs else _ORANGE if needed else _GREY)
    _title(at, "blue: outputs of the block\norange: halo; hatched: zero")
    at.set_xlim(-1.1, size + 0.1)
    at.set_ylim(size + 0.1, -1.1)
    at.set_aspect("equal")
    at.axis("off")
    tiles = (4, 8, 16, 32)
    values = [loads_an_output(side) for side in tiles]
    bars = beside.bar([str(side) for side in tiles], values, 0.7, color=_ORANGE)
    beside.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=_TEXT)
    _title(beside, "loads an output\n(9 without a tile)")
    beside.set_xlabel("tile: outputs a side", fontsize=_TEXT)
    beside.tick_params(labelsize=_TEXT)
    beside.set_yticks([])
    beside.spines[["top", "right", "left"]].set_visible(False)
    beside.set_ylim(0, 1.15 * max(values))
    return figure


# Register tile


def _draw_registers() -> Any:
    tiles = (1, 2, 4)
    figure, axes = _figure(2.6, columns=3)
    for at, tile in zip(axes, tiles, strict=True):
        for place in range(tile):
            _cell(at, -1.5, place, _ORANGE)
            _cell(at, place, -1.5, _ORANGE)
            for other in range(tile):
                _cell(at, place, other, _BLUE)
        plural = "s" if tile > 1 else ""
        _title(at, f"{tile}x{tile} output{plural}\n{2 * tile} loads, {tile**2} product{plural}\n{2 / tile:g} a product")
        at.set_xlim(-1.6, 4.1)
        at.set_ylim(4.1, -1.6)
        at.set_aspect("equal")
        at.axis("off")
    return figure


# Bank conflicts


def _draw_banks() -> Any:
    cases = (
        ("tile[0][lane]: a row", list(range(LANES))),
        ("tile[lane][0] of tile[32][32]: a column", [LANES * lane for lane in range(LANES)]),
        ("tile[lane][0] of tile[32][33]: padded", [(LANES + 1) * lane for lane in range(LANES)]),
    )
    figure, axes = _figure(3.7, rows=3)
    for at, (title, words) in zip(axes, cases, strict=True):
        banks, turns = passes(words)
        at.bar(range(LANES), [banks[bank] for bank in range(LANES)], 0.8, color=_ORANGE if turns > 1 else _BLUE)
        _title(at, f"{title}: {turns} turn{'s' if turns > 1 else ''}")
        at.set_ylim(0, LANES)
        at.set_yticks([0, LANES])
        at.set_xticks([0, 8, 16, 24, 31])
        at.tick_params(labelsize=_TEXT)
        at.spines[["top", "right"]].set_visible(False)
    axes[1].set_ylabel("words of a bank", fontsize=_TEXT)
    axes[-1].set_xlabel("bank", fontsize=_TEXT)
    return figure


# What they share


def _figure(height: float, rows: int = 1, columns: int = 1, **ratios: Any) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=(_WIDTH, height), dpi=120, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **ratios).flat)


def _cell(axes: Any, left: float, top: float, colour: str, hatch: str = "", edge: str = _EDGE) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    axes.add_patch(Rectangle((left, top), 1, 1, facecolor=colour, edgecolor=edge, linewidth=0.6, hatch=hatch or None))


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=_TEXT, loc="left")


def _frame(axes: Any, width: float, height: float) -> None:
    axes.set_xlim(-0.2, width)
    axes.set_ylim(height, -0.2)
    axes.axis("off")
