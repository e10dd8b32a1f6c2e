"""Encoded pictures as rows of pixels, as `vgg16gpu infer` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from PIL import Image

from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import default_preprocess
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.images import check_target, fitted
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.jpeg import jpeg_shape
from vgg16gpu.pictures.jpeg_header import holds_one_picture
from vgg16gpu.pictures.slots import Bytes
from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Served
from vgg16gpu.server.slots import Picture, put_head, put_picture, room_for

DECODERS: Final = 2  # threads of a front end: each may hold a picture of the most pixels
_PICTURES: Final = 8  # that the device's room holds at least
PIXEL_NBYTES: Final = 8  # of a picture that is decoded and converted


def limit_pixels(most: int) -> None:
    """Have Pillow refuse larger pictures in this process; what it does not decode `decoded` judges."""
    Image.MAX_IMAGE_PIXELS = -(-most // 2)  # twice as many are an error


def decoded(served: Served, pictures: Sequence[bytes], first: int = 0) -> Pixels:
    """(N, H, W, C) in the network's order of channels. Raises RefusedError: 400, or 413 for too many pixels.

    first: the number by which errors call the first one.
    """
    channels, height, width = served.description.sample
    preprocess = served.preprocess or default_preprocess(channels)
    rows = []
    for number, data in enumerate(pictures, first):
        name = f"picture {number}"
        if shape := jpeg_shape(data, channels):
            _check_pixels(served, number, *shape)
        try:
            check_target(name, channels, height, width)
            rows.append(fitted(data, name, channels, height, width, preprocess))
        except InputError as error:
            raise RefusedError(413 if "decompression bomb" in str(error) else 400, str(error)) from error
    return np.stack(rows)


class DevicePictures:
    """Pictures for a device that resizes: as files that it decodes, as pixels, or of the network's size already.

    What it gets of each depends on nothing but that picture: the file, if it decodes files, and this is a JPEG file of
    the usual kind; else pixels as they were decoded, if it is a JPEG file that Pillow is not needed for; else what
    `decoded` makes of it. The first two have to fit into a slot, and several of them into the device's room. Clients
    are strangers: a file is none for the device unless all parsers must find the same picture in it.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._most = served.description.room_nbytes // _PICTURES
        self._decoder = Decoder(InputSpec(served.description.sample, preprocess=served.preprocess))

    def put(self, pictures: Sequence[bytes], rows: Sequence[Bytes], *, as_files: bool) -> bool:
        """Into rows of input; whether there is a file among them. as_files: whether there may be.

        Raises RefusedError: 400, or 413 for too many pixels.
        """
        has_files = False
        for number, (data, row) in enumerate(zip(pictures, rows, strict=True)):
            if as_files and self._put_file(data, row, number):
                has_files = True
            elif not self._put_pixels(data, row, number):
                put_picture(row, Picture(decoded(self._served, [data], number).reshape(-1)))
        return has_files

    def _put_file(self, data: bytes, row: Bytes, number: int) -> bool:
        place = room_for(row, len(data))
        shape = self._decoder.file_shape(data) if place is not None else None
        if shape is None or self._decoder.room_nbytes(*shape) > self._most or not holds_one_picture(data):
            return False
        _check_pixels(self._served, number, *shape[:2])
        put_picture(row, Picture(np.frombuffer(data, np.uint8), *shape))
        return True

    def _put_pixels(self, data: bytes, row: Bytes, number: int) -> bool:
        shape = self._decoder.shape(data)
        if shape is None:
            return False
        _check_pixels(self._served, number, *shape)
        place = room_for(row, shape[0] * shape[1] * self._decoder.channels)
        if place is None or place.nbytes > self._most or not self._decoder.decode_into(data, place):
            return False
        put_head(row, place.nbytes, *shape)
        return True


def _check_pixels(served: Served, number: int, height: int, width: int) -> None:
    """Raise RefusedError (413) for too many."""
    if height * width > served.bounds.pixels:
        most = f"at most {served.bounds.pixels:,} are taken"
        raise RefusedError(413, f"'picture {number}' has {width}x{height} pixels, {most}")
