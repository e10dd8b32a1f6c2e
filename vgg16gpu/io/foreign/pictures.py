"""Picture files that somebody else wrote: each kind is opened by its own reader of Pillow."""

from __future__ import annotations

import importlib
import io
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from PIL import ImageFile

# Not Image.open: that tries formats which are no pictures (EPS runs a program), and warns through what is all threads'.
KINDS: Final = {  # as Pillow names their modules and classes
    "JPEG": "Jpeg",
    "PNG": "Png",
    "BMP": "Bmp",
    "WEBP": "WebP",
    "GIF": "Gif",
    "TIFF": "Tiff",
    "AVIF": "Avif",
}


def opened_picture(kind: str, data: bytes) -> ImageFile.ImageFile:
    """Open the bytes of a picture of one of KINDS; its pixels are decoded when they are asked for.

    Raises whatever the reader stumbles over in a damaged file, and ImportError where this Pillow has none.
    """
    name = KINDS[kind]
    reader: Any = getattr(importlib.import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    opened: ImageFile.ImageFile = reader(io.BytesIO(data))
    return opened
