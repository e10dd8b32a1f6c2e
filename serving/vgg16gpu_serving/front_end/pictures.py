"""Encoded pictures as rows of pixels, as `vgg16gpu infer` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
from PIL import Image

from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import default_preprocess
from vgg16gpu.pictures.cost import QUICK_PIXELS, Cost, cost_of, cost_of_jpeg
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.images import check_target, fitted
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.jpeg_header import holds_one_picture
from vgg16gpu.pictures.slots import Bytes
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Bounds, Served
from vgg16gpu_serving.slots import Picture, put_head, put_picture, room_for
from vgg16gpu_serving.workers import CancelToken

Encoded: TypeAlias = bytes | memoryview

PIXEL_NBYTES: Final = 8  # of a picture that is decoded and converted
_PICTURES: Final = 8  # that the device's room holds at least


def limit_pixels(most: int) -> None:
    """Limit Pillow to pictures of this size in this process."""
    Image.MAX_IMAGE_PIXELS = -(-most // 2)  # twice as many are an error


def check_costs(costs: Sequence[Cost], bounds: Bounds) -> bool:
    """Return whether the pictures of a request are decoded in a moment. Raises RefusedError (413) for too many pixels.

    What the device decodes costs the front end nothing, but its pixels count.
    """
    for number, cost in enumerate(costs):
        if cost.pixels > bounds.pixels:
            most = f"at most {bounds.pixels:,} are taken"
            raise RefusedError(413, f"'picture {number}' has {cost.width}x{cost.height} pixels, {most}")
    total = sum(cost.pixels for cost in costs)
    if total > bounds.request_pixels:
        most = f"a request may have {bounds.request_pixels:,}"
        raise RefusedError(413, f"the pictures have {total:,} pixels together, {most}; send several requests")
    return total <= QUICK_PIXELS and all(cost.is_quick for cost in costs)


def costs_of(pictures: Sequence[Encoded]) -> list[Cost]:
    """Return what each picture costs."""
    return [cost_of(bytes(data)) for data in pictures]


def decoded(served: Served, pictures: Sequence[Encoded], token: CancelToken, first: int = 0) -> Pixels:
    """Decode to (N, H, W, C) in the network's channel order. Raises RefusedError: 400, 413 if too large, 503 if late.

    first: the number by which errors call the first one.
    """
    channels, height, width = served.description.sample
    preprocess = served.preprocess or default_preprocess(channels)
    rows = []
    for number, data in enumerate(pictures, first):
        token.check()
        name = f"picture {number}"
        try:
            check_target(name, channels, height, width)
            rows.append(fitted(bytes(data), name, channels, height, width, preprocess))
        except InputError as error:
            raise RefusedError(413 if "decompression bomb" in str(error) else 400, str(error)) from error
    return np.stack(rows)


class _Way(Enum):
    """How a picture comes to the device."""

    FILE = 1
    PIXELS = 2
    FITTED = 3


@dataclass(frozen=True)
class Planned:
    """What becomes of a picture. shape: (h, w) of pixels; (h, w, sampling) of a file."""

    way: _Way
    data: bytes
    shape: tuple[int, ...]
    cost: Cost


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

    def plan(self, pictures: Sequence[Encoded], rows: Sequence[Bytes], *, as_files: bool) -> list[Planned]:
        """Find out how each gets into its row of input; nothing is decoded. as_files: whether there may be files."""
        return [self._planned(bytes(data), row, as_files) for data, row in zip(pictures, rows, strict=True)]

    def put(self, plans: Sequence[Planned], rows: Sequence[Bytes], token: CancelToken) -> bool:
        """Decode into rows of input; return whether there is a file among them.

        Raises RefusedError: 400, 413 for too many pixels, 503 if late.
        """
        for number, (plan, row) in enumerate(zip(plans, rows, strict=True)):
            token.check()
            if plan.way is _Way.FILE:
                put_picture(row, Picture(np.frombuffer(plan.data, np.uint8), *plan.shape))
            elif plan.way is _Way.FITTED or not self._put_pixels(plan, row):
                put_picture(row, Picture(decoded(self._served, [plan.data], token, number).reshape(-1)))
        return any(plan.way is _Way.FILE for plan in plans)

    def _planned(self, data: bytes, row: Bytes, as_files: bool) -> Planned:
        if as_files and (file := self._file_shape(data, row)):
            return Planned(_Way.FILE, data, file, Cost(file[0], file[1], is_quick=True))
        if (shape := self._decoder.shape(data)) is None:
            return Planned(_Way.FITTED, data, (), cost_of(data))
        return Planned(_Way.PIXELS, data, shape, cost_of_jpeg(data, *shape))

    def _file_shape(self, data: bytes, row: Bytes) -> tuple[int, int, int] | None:
        shape = self._decoder.file_shape(data) if room_for(row, len(data)) is not None else None
        if shape is None or self._decoder.room_nbytes(*shape) > self._most or not holds_one_picture(data):
            return None
        return shape

    def _put_pixels(self, plan: Planned, row: Bytes) -> bool:
        """Decode into the row; False where it has to be fitted after all: it is too large, or damaged."""
        height, width = plan.shape
        place = room_for(row, height * width * self._decoder.channels)
        if place is None or place.nbytes > self._most or not self._decoder.decode_into(plan.data, place):
            return False
        put_head(row, place.nbytes, height, width)
        return True
