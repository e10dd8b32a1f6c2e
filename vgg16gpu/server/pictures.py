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
from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Served
from vgg16gpu.server.slots import File, SlotLayout

DECODERS: Final = 2  # threads of a front end: each may hold a picture of the most pixels
_PICTURES: Final = 8  # that the device's room holds at least
PIXEL_NBYTES: Final = 8  # of a picture that is decoded and converted


def limit_pixels(most: int) -> None:
    """Have Pillow refuse larger pictures in this process; what it does not decode `decoded` judges."""
    Image.MAX_IMAGE_PIXELS = -(-most // 2)  # twice as many are an error


def decoded(served: Served, pictures: Sequence[bytes]) -> Pixels:
    """(N, H, W, C) in the network's order of channels. Raises RefusedError: 400, or 413 for too many pixels."""
    channels, height, width = served.description.sample
    preprocess = served.preprocess or default_preprocess(channels)
    rows = []
    for number, data in enumerate(pictures):
        name = f"picture {number}"
        if shape := jpeg_shape(data, channels):
            _check_pixels(served, name, *shape)
        try:
            check_target(name, channels, height, width)
            rows.append(fitted(data, name, channels, height, width, preprocess))
        except InputError as error:
            raise RefusedError(413 if "decompression bomb" in str(error) else 400, str(error)) from error
    return np.stack(rows)


class DeviceFiles:
    """Which pictures the device decodes: JPEG files of the usual kind that fit into a slot, and several into its room.

    Clients are strangers: a file is none for the device unless all parsers must find the same picture in it.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._layout = SlotLayout.of(served.description)
        self._most = served.description.room_nbytes // _PICTURES
        self._decoder = Decoder(InputSpec(served.description.sample, preprocess=served.preprocess))

    def of(self, pictures: Sequence[bytes]) -> list[File] | None:
        """All pictures of a request; None where one of them is not for the device. Raises RefusedError (413)."""
        files = []
        for number, data in enumerate(pictures):
            shape = self._decoder.file_shape(data) if self._layout.holds(len(data)) else None
            if shape is None or self._decoder.room_nbytes(*shape) > self._most or not holds_one_picture(data):
                return None
            _check_pixels(self._served, f"picture {number}", *shape[:2])
            files.append(File(np.frombuffer(data, np.uint8), *shape))
        return files


def _check_pixels(served: Served, name: str, height: int, width: int) -> None:
    """Raise RefusedError (413) for too many."""
    if height * width > served.bounds.pixels:
        raise RefusedError(413, f"'{name}' has {width}x{height} pixels, at most {served.bounds.pixels:,} are taken")
