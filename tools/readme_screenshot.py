"""Draw what a command prints, and the picture that it reads, for the README: docs/images/infer.svg.

The command is run, nothing is typed by hand. --check runs it too, draws nothing, and exits with 1 unless the drawing
says what the command prints today, but for times and devices.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
DRAWING = ROOT / "docs" / "images" / "infer.svg"
PICTURE = "vgg16gpu/data/digit_sample.png"
COMMAND = ("infer", "--model", "digits", PICTURE)
COLUMNS: Final = 92
PIXELS: Final = 32  # a side of the picture, as the network reads it
SIDE: Final = 256  # of the picture in the drawing
GAP: Final = 24

# Of rich's own form what is inside, below a line of width and height. The font is one that the reader has, where rich
# asks a web server, which a drawing in a README must not. At 21 pixels the frames of tables have no gaps.
FORM: Final = """\
{width} {height}
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: 21px; line-height: {line_height}px; white-space: pre }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
"""
_TEXT: Final = re.compile(r'<text [^>]*?x="([\d.]+)"[^>]*? y="([\d.]+)"[^>]*?textLength="([\d.]+)"[^>]*>([^<]*)</text>')
_TIME: Final = re.compile(r"\d[\d.,]* (?:s|ms|us)\b|(?<=steady run )-")
_DEVICE: Final = re.compile(r"Device: [^;]*;")


def printed() -> str:
    """What the command says on a terminal of COLUMNS columns, colours and all. Raises SystemExit where it fails."""
    command = [sys.executable, "-m", "vgg16gpu", *COMMAND]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.PIPE) as running,
    ):
        os.close(theirs)
        said = _read(terminal).decode().replace("\r\n", "\n")
        assert running.stderr is not None
        remarks = running.stderr.read().decode()
    if running.returncode:
        raise SystemExit(f"{' '.join(COMMAND)} ended with exit code {running.returncode}: {remarks}")
    return remarks + said


def _read(terminal: io.FileIO | io.RawIOBase) -> bytes:
    """All of it; Linux reports the end of a terminal as an error."""
    parts = []
    while True:
        try:
            part = terminal.read(65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def drawing(text: str) -> str:
    """The text as a terminal shows it, below the command, and beside it the picture."""
    prompt = f"$ python -m vgg16gpu {' '.join(COMMAND)}"
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(prompt, style="bold"))
    console.print(Text.from_ansi(text.rstrip("\n")))
    terminal = console.export_svg(title="", code_format=FORM, unique_id="infer", font_aspect_ratio=0.6)
    return _with_picture(terminal)


def _with_picture(terminal: str) -> str:
    """The drawing of a terminal and the picture beside it, which is drawn as squares: no file within the file."""
    size, _, inside = terminal.partition("\n")
    width, height = map(float, size.split())
    grey = np.asarray(Image.open(ROOT / PICTURE).convert("L").resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))
    square = SIDE / PIXELS
    squares = "\n".join(
        f'<rect x="{x * square:g}" y="{y * square:g}" width="{square:g}" height="{square:g}" fill="rgb({v},{v},{v})"/>'
        for (y, x), v in np.ndenumerate(grey)
    )
    place = f"translate({width + GAP:g}, {(height - SIDE) / 2:g})"
    return (
        f'<svg viewBox="0 0 {width + SIDE + 2 * GAP:g} {height:g}" xmlns="http://www.w3.org/2000/svg" role="img">\n'
        f"<title>{html.escape(' '.join(COMMAND))}</title>\n{inside}"
        f'<g transform="{place}" shape-rendering="crispEdges">\n{squares}\n</g>\n</svg>\n'
    )


def text_of(svg: str) -> str:
    """What the terminal in a drawing shows below the command, line by line."""
    rows: dict[float, list[tuple[float, float, str]]] = {}
    for x, y, length, text in _TEXT.findall(svg):
        shown = html.unescape(text).replace("\xa0", " ")
        rows.setdefault(float(y), []).append((float(x), float(length), shown))
    lines = []
    for _, parts in sorted(rows.items()):
        line = ""
        for x, length, text in sorted(parts):
            line = line.ljust(round(x * len(text) / length)) + text
        lines.append(line.rstrip())
    return "\n".join(lines[1:])


def lasting(text: str) -> str:
    """A text without what differs from run to run: times, devices, and where lines are broken for them."""
    words = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())
    return _DEVICE.sub("Device: ...;", _TIME.sub("...", words))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="draw nothing, compare")
    text = printed() if not (check := parser.parse_args(arguments).check) or DRAWING.is_file() else ""
    if not check:
        DRAWING.parent.mkdir(parents=True, exist_ok=True)
        DRAWING.write_text(drawing(text), encoding="utf-8")
        print(f"Written: {DRAWING.relative_to(ROOT)}")
        return 0
    if DRAWING.is_file() and lasting(text_of(DRAWING.read_text(encoding="utf-8"))) == lasting(text):
        return 0
    print(f"{DRAWING.relative_to(ROOT)} is not what the command prints: python tools/readme_screenshot.py draws it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
