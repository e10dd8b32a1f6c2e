"""Image files as pixels of the network's size, as a `Preprocess` says. Normalisation is the engine's.

A picture is converted to RGB, or to grey for one channel (EXIF orientation applied, transparency dropped), and fitted:
its shorter side is resized to size * 256 / 224 and the centre cropped, or the whole is stretched to the size. Pillow
resizes: bilinear and bicubic average over what they shrink (antialiased), as torchvision's do on its pictures.
"""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import Preprocess, default_preprocess, resize_target

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MAX_ASPECT = 100  # a longer strip would be resized to gigabytes before the crop
MAX_PIXELS = 178_956_970  # of any picture on the way; Pillow refuses to make larger ones, too

_BROKEN_IMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error)


def load_image(path: Path, channels: int, height: int, width: int, preprocess: Preprocess | None = None) -> Pixels:
    """One image file as (height, width, channels) uint8, fitted, its channels in the network's order.

    Without `preprocess` what is assumed of a model of so many channels: `default_preprocess`. Raises InputError when
    the file is not an image, is broken, or the model takes neither 1 nor 3 channels, or so many pixels that the image
    would have to be blown up beyond `MAX_PIXELS`.
    """
    if channels not in (1, 3):
        raise InputError(
            f"'{path}' is an image, and the model takes {channels} channels: "
            "images fit models of 1 or 3 channels; give numbers instead (.npy, .npz or .txt)"
        )
    _check_pixels(height, width, path)
    from PIL import Image  # noqa: PLC0415 - only runs on images pay for it

    wanted = preprocess or default_preprocess(channels)
    try:
        with warnings.catch_warnings():
            # Pillow warns from 89 megapixels on and refuses from 179; only the refusal matters here.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = _decode(path, "RGB" if channels == 3 else "L")
            resampling = Image.Resampling[wanted.interpolation.upper()]
            if wanted.fit == "crop":
                picture = _resize_and_crop(picture, height, width, resampling, path)
            else:
                picture = picture.resize((width, height), resampling)
    except InputError:
        raise
    except (*_BROKEN_IMAGE, Image.DecompressionBombError) as error:
        reason = str(error) if "cannot identify" not in str(error) else "its content is none that Pillow knows"
        raise InputError(f"'{path}' is not a readable image: {reason}; convert it to .png or .jpg") from error
    return in_channel_order(np.asarray(picture, dtype=np.uint8).reshape(height, width, channels), wanted)


def in_channel_order(pixels: Pixels, preprocess: Preprocess) -> Pixels:
    """(..., C) pixels in RGB as the network takes them."""
    return np.ascontiguousarray(pixels[..., ::-1]) if preprocess.channel_order == "bgr" else pixels


def resized_shape(height: int, width: int, to: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) that an image of (height, width) is resized to before the centre crop to `to`."""
    rows, columns = resize_target(to)
    if width * rows <= height * columns:
        return columns * height // width, columns
    return rows, rows * width // height


def _check_pixels(rows: int, columns: int, path: Path) -> None:
    if rows * columns > MAX_PIXELS:
        raise InputError(
            f"'{path}' would have to be resized to {rows}x{columns} pixels (height x width), at most {MAX_PIXELS:,} "
            "pixels are possible; choose a smaller --size"
        )


def _decode(path: Path, mode: str) -> Image.Image:
    from PIL import Image, ImageOps  # noqa: PLC0415

    with Image.open(path) as file:
        return _to_mode(ImageOps.exif_transpose(file), mode, path)


def _to_mode(picture: Image.Image, mode: str, path: Path) -> Image.Image:
    from PIL import Image  # noqa: PLC0415

    if picture.mode.startswith("I;16"):
        # Pillow's own conversion clips 16-bit grey at 255 instead of scaling it.
        grey = np.asarray(picture, dtype=np.uint16)
        picture = Image.fromarray(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif picture.mode in ("I", "F"):
        raise InputError(f"'{path}' has 32-bit pixels (mode {picture.mode}); save it with 8 or 16 bits a channel")
    elif "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert(mode)


def _resize_and_crop(
    picture: Image.Image, height: int, width: int, resampling: Image.Resampling, path: Path
) -> Image.Image:
    if max(picture.size) > MAX_ASPECT * min(picture.size):
        raise InputError(
            f"'{path}' is {picture.width}x{picture.height} pixels, a strip more than {MAX_ASPECT} times as long as "
            "wide; cut it to the part that matters"
        )
    rows, columns = resized_shape(picture.height, picture.width, (height, width))
    _check_pixels(rows, columns, path)
    resized = picture.resize((columns, rows), resampling)
    left, top = round((columns - width) / 2), round((rows - height) / 2)
    return resized.crop((left, top, left + width, top + height))
