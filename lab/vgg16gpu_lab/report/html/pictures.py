"""Pictures inside the page: those that lie beside a record, else drawn from it where matplotlib is installed."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.figure import save_figure
from vgg16gpu_lab.report.html.markup import Html, element, wide

NO_MATPLOTLIB: Final = "No picture: matplotlib is not installed (pip install 'vgg16gpu[plot]')."

_TYPES: Final = {".svg": "image/svg+xml", ".png": "image/png"}


def picture(alt: str, beside: Iterable[Path], draw: Callable[[], Any], caption: str = "") -> Html:
    """Show the first existing file of `beside` (.svg, .png), else what `draw` returns, a matplotlib figure."""
    for path in beside:
        if path.is_file():
            return _figure(alt, _read(path), _TYPES[path.suffix], caption)
    if importlib.util.find_spec("matplotlib") is None:
        return element("p", f"{alt}. {NO_MATPLOTLIB}", class_="missing")
    return _figure(alt, _svg(draw()), _TYPES[".svg"], caption)


def files(folder: Path, name: str) -> list[Path]:
    """Return where a recorded picture may lie: SVG first, which is sharp at every size."""
    return [folder / f"{name}{suffix}" for suffix in _TYPES]


def _figure(alt: str, image: bytes, kind: str, caption: str) -> Html:
    source = f"data:{kind};base64,{base64.b64encode(image).decode()}"
    shown = wide(element("img", src=source, alt=alt))
    return element("figure", shown, element("figcaption", caption) if caption else None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}") from error


def _svg(figure: Any) -> bytes:
    stream = io.BytesIO()
    save_figure(figure, stream, "svg", "report", bbox_inches="tight", pad_inches=0.15)
    return stream.getvalue()
