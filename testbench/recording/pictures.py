"""Write pictures to choose int8's scales from: `python testbench/recording/pictures.py FOLDER`. They never change."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from vgg16gpu.io.synthetic import structured_images

COUNT, SIZE, SEED = 64, 256, 16
FIRST, LAST = "00.png", f"{COUNT - 1:02}.png"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write them as 00.png, 01.png and so on."""
    parser = argparse.ArgumentParser(prog="testbench/recording/pictures.py", description="Pictures to calibrate with.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(structured_images(COUNT, SIZE, SEED)):
        Image.fromarray(pixels).save(folder / f"{number:02}.png")


if __name__ == "__main__":
    main()
