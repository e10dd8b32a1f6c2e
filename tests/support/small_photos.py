"""A folder of small JPEG files that differ."""

from __future__ import annotations

from pathlib import Path

from tests.support.picture_files import jpeg


def small_photos(folder: Path, count: int) -> Path:
    """So many pictures of 24x32 grey pixels, 00.jpg, 01.jpg and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:02}.jpg").write_bytes(jpeg(24, 32, channels=1, seed=number))
    return folder
