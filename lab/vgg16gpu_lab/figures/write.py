"""The figures of a run, as PNG and SVG: each that the report has, drawn from the record, ours beside theirs."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vgg16gpu.io.figure import save_figure
from vgg16gpu.io.files import atomic_writer
from vgg16gpu_lab.figures.data import Content
from vgg16gpu_lab.figures.draw import draw_picture
from vgg16gpu_lab.figures.seeds import pictures

SUFFIXES: Final = ("png", "svg")
NO_MATPLOTLIB: Final = "no figures: matplotlib is not installed: pip install 'vgg16gpu[plot]'"


@dataclass(frozen=True)
class Drawn:
    """What was written, and why something was not."""

    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def draw(record: Content, folder: Path) -> Drawn:
    """Write every figure of a record into the folder. Raises ModelError when a file cannot be written."""
    if importlib.util.find_spec("matplotlib") is None:
        return Drawn(notes=(NO_MATPLOTLIB,))
    paths: list[Path] = []
    notes: list[str] = []
    for picture in pictures(record):
        if picture.is_empty:
            notes.append(f"no figure {picture.name}: {picture.reason}")
            continue
        figure = draw_picture(picture)
        for suffix in SUFFIXES:
            paths.append(folder / f"{picture.name}.{suffix}")
            with atomic_writer(paths[-1]) as file:
                save_figure(figure, file, suffix, "lab")
    return Drawn(tuple(paths), tuple(notes))
