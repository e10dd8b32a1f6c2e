"""Image files as pixels of the network's size, as a `Preprocess` says. Normalisation is the engine's.

A picture is converted to RGB, or to grey for one channel (EXIF orientation applied, transparency dropped, of several
frames the first), and fitted: its shorter side is resized to size * 256 / 224 and the centre cropped, or the whole is
stretched to the size. Pillow resizes: bilinear and bicubic average over what they shrink (antialiased), as
torchvision's do on its pictures.

All of this may run in many threads at once, and lets go of Python's lock where pixels are decoded, converted, resized.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.arrays import reason_of
from vgg16gpu.io.foreign.pictures import KINDS, opened_picture
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import Preprocess, default_preprocess, resized_shape
from vgg16gpu.pictures.content import HEAD_NBYTES, picture_kind, read_file
from vgg16gpu.pictures.jpeg import NotDecodedError, decode_jpeg, jpeg_shape
from vgg16gpu.pictures.limits import MAX_PIXELS, check_header, check_size
from vgg16gpu.pictures.tiff import TiffForm

if TYPE_CHECKING:
    from PIL import Image

MAX_ASPECT = 100  # a longer strip would be resized to gigabytes before the crop

_CUT_SHORT: Final = (struct.error, IndexError, KeyError, TypeError)
_ADVICE: Final = "convert it to .png or .jpg"


def load_image(path: Path, channels: int, height: int, width: int, preprocess: Preprocess | None = None) -> Pixels:
    """Load one image file as (height, width, channels) uint8, fitted, its channels in the network's order.

    Without `preprocess` `default_preprocess` is assumed. Raises InputError when the file is not an image, is broken, or
    the model takes neither 1 nor 3 channels, or so many pixels that the image would have to be blown up beyond
    `MAX_PIXELS`.
    """
    check_target(str(path), channels, height, width)
    return fitted(read_file(str(path)), str(path), channels, height, width, preprocess or default_preprocess(channels))


def check_target(name: str, channels: int, height: int, width: int) -> None:
    """Raise InputError, before a picture is decoded, where none can become an input of that form."""
    if channels not in (1, 3):
        raise InputError(
            f"'{name}' is an image, and the model takes {channels} channels: "
            "images fit models of 1 or 3 channels; give numbers instead (.npy, .npz or .txt)"
        )
    _check_pixels(height, width, name)


def fitted(data: bytes, name: str, channels: int, height: int, width: int, preprocess: Preprocess) -> Pixels:
    """Decode and fit an image file's bytes: (height, width, channels) uint8, channels in the network's order.

    Raises InputError that begins with the file's `name`.
    """
    return fit(_decoded(data, name, channels), height, width, preprocess, name)


def decode(data: bytes, name: str, channels: int) -> Pixels:
    """Decode an image file's bytes: (h, w, channels) uint8, upright, RGB or grey, as large as the picture is.

    Raises InputError that begins with the file's `name`.
    """
    pixels = _decoded_fast(data, channels, channels)
    return decode_by_pillow(data, name, channels) if pixels is None else pixels


def decode_by_pillow(data: bytes, name: str, channels: int) -> Pixels:
    """Return the result of `decode` for files that `decode_jpeg` does not take. Raises InputError."""
    picture = _opened(data, name, channels)
    try:
        return _pixels(picture)
    except Exception as error:  # there may be memory for the picture alone
        raise _unreadable(name, error) from error


def fit(picture: Image.Image, height: int, width: int, preprocess: Preprocess, name: str) -> Pixels:
    """Fit a picture in RGB, RGBX or L: (height, width, channels) uint8, in the network's order of channels.

    Raises InputError that begins with `name` where it is a strip, or would be resized beyond `MAX_PIXELS`.
    """
    from PIL import Image  # noqa: PLC0415 - only runs on images pay for it

    check_fit(picture.height, picture.width, (height, width), preprocess, name)
    resampling = Image.Resampling[preprocess.interpolation.upper()]
    try:
        if preprocess.fit == "crop":
            picture = _resize_and_crop(picture, height, width, resampling)
        else:
            picture = picture.resize((width, height), resampling)
        return in_channel_order(_pixels(picture), preprocess)
    except Exception as error:
        raise _unreadable(name, error) from error


def check_fit(height: int, width: int, to: tuple[int, int], preprocess: Preprocess, name: str) -> None:
    """Raise InputError where a picture of (height, width) is a strip, or would be resized beyond `MAX_PIXELS`."""
    if preprocess.fit != "crop":
        return
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise InputError(
            f"'{name}' is {width}x{height} pixels, a strip more than {MAX_ASPECT} times as long as wide; "
            "cut it to the part that matters"
        )
    _check_pixels(*resized_shape(height, width, to), name)


def in_channel_order(pixels: Pixels, preprocess: Preprocess) -> Pixels:
    """Return (..., C) pixels in RGB in the network's order of channels."""
    return np.ascontiguousarray(pixels[..., ::-1]) if preprocess.channel_order == "bgr" else pixels


def _pixels(picture: Image.Image) -> Pixels:
    """Return (h, w, channels) uint8 of a picture in RGB, RGBX or L."""
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[..., np.newaxis] if pixels.ndim == 2 else np.ascontiguousarray(pixels[..., :3])


def _decoded(data: bytes, name: str, channels: int) -> Image.Image:
    """Return the picture, upright: L for one channel, else RGB or RGBX."""
    from PIL import Image  # noqa: PLC0415 - arrays of numbers need no Pillow

    # Pillow keeps RGB as four bytes: such pixels become a picture without a copy.
    mode, nbytes = ("L", 1) if channels == 1 else ("RGBX", 4)
    pixels = _decoded_fast(data, channels, nbytes)
    if pixels is None:
        return _opened(data, name, channels)
    return Image.frombuffer(mode, pixels.shape[1::-1], pixels, "raw", mode, 0, 1)


def _decoded_fast(data: bytes, channels: int, nbytes: int) -> Pixels | None:
    """Return (h, w, nbytes) of a JPEG file; None where Pillow is to decode it, or to report missing memory."""
    shape = jpeg_shape(data, channels)
    if shape is None:
        return None
    with contextlib.suppress(NotDecodedError, MemoryError):
        pixels = np.empty((*shape, nbytes), np.uint8)
        decode_jpeg(data, nbytes, pixels)
        return pixels
    return None


def _opened(data: bytes, name: str, channels: int) -> Image.Image:
    """Decode the picture by Pillow, upright: L for one channel, else RGB. Raises InputError."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - arrays of numbers need no Pillow

    kind = picture_kind(data[:HEAD_NBYTES])
    if kind is None:
        content = f"its content is none of {', '.join(KINDS)}" if data else "it is empty"
        raise InputError(f"'{name}' is not a readable image: {content}; {_ADVICE}")
    check_header(data, kind, name)
    form = TiffForm.of(data) if kind == "TIFF" else TiffForm()
    if form.kind:
        raise InputError(
            f"'{name}' has {form.kind} {form.bits}-bit pixels, and nothing says which numbers are black and white; "
            "save it with 8 or 16 bits a channel, unsigned"
        )
    most = None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS  # where Image.open refuses, too
    try:
        with opened_picture(kind, form.as_black_zero(data)) as file:
            check_size(data, kind, file.size, most, name)
            ImageOps.exif_transpose(file, in_place=True)
            return _to_mode(file, "L" if channels == 1 else "RGB", form, name)
    except InputError:
        raise
    except Exception as error:  # Pillow's readers raise whatever they stumble over in a damaged file
        if kind == "TIFF" and "unknown pixel mode" in str(error):
            raise InputError(f"'{name}' has {form.words}, a form of TIFF that is not read; {_ADVICE}") from error
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputError:
    reason = reason_of(error)
    if isinstance(error.__cause__ or error, _CUT_SHORT):  # Pillow says then what Python said
        reason = "its header is damaged or cut short"
    return InputError(f"'{name}' is not a readable image: {reason}; {_ADVICE}")


def _check_pixels(rows: int, columns: int, name: str) -> None:
    if rows * columns > MAX_PIXELS:
        raise InputError(
            f"'{name}' would have to be resized to {rows}x{columns} pixels (height x width), at most {MAX_PIXELS:,} "
            "pixels are possible; choose a smaller --size"
        )


def _to_mode(picture: Image.Image, mode: str, form: TiffForm, name: str) -> Image.Image:
    from PIL import Image  # noqa: PLC0415 - arrays of numbers need no Pillow

    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG"):  # Pillow before 10.3
        # Pillow's own conversion clips 16-bit grey at 255 instead of scaling it.
        grey = np.minimum(np.asarray(picture, dtype=np.uint16).astype(np.uint32), form.white)
        grey = form.white - grey if form.is_white_zero else grey
        picture = Image.fromarray(((grey * 255 + form.white // 2) // form.white).astype(np.uint8))
    elif picture.mode in ("I", "F"):
        raise InputError(f"'{name}' has 32-bit pixels (mode {picture.mode}); save it with 8 or 16 bits a channel")
    elif "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert(mode)  # a copy at least: what was opened knows its file still


def _resize_and_crop(picture: Image.Image, height: int, width: int, resampling: Image.Resampling) -> Image.Image:
    rows, columns = resized_shape(picture.height, picture.width, (height, width))
    resized = picture.resize((columns, rows), resampling)
    left, top = round((columns - width) / 2), round((rows - height) / 2)
    return resized.crop((left, top, left + width, top + height))
