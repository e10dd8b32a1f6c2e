"""What clients send: several requests of each form, in turns."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from testbench.server.target import Body, Served
from vgg16gpu.errors import InputError
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.pictures.content import read_file
from vgg16gpu.pictures.inputs import listed

JPEG, UINT8, FP32 = "jpeg", "uint8", "fp32"
FORMS: Final = (JPEG, UINT8, FP32)

_COUNT: Final = 16  # different images
_WIDTH, _HEIGHT = 500, 375  # of pictures that are made, as photographs of ImageNet often have
_QUALITY: Final = 85
_NOISE: Final = 10  # levels, so that a file has about as many bytes as a photograph of that size
_SEED: Final = 20
_LENGTH: Final = "Inference-Header-Content-Length"


def bodies(form: str, served: Served, images: int, folder: Path | None) -> list[Body]:
    """Several requests of a form, of so many images each. folder: of pictures in place of those that are made.

    Raises InputError for a form that the model does not take, and for a folder without pictures.
    """
    count = max(1, _COUNT // images)
    if form == JPEG:
        if served.pixels is None:
            raise InputError(f"--bodies {JPEG}: '{served.name}' takes no pictures; leave it out")
        files = _files(folder) if folder else _made()
        parts = [[files[(i * images + j) % len(files)] for j in range(images)] for i in range(count)]
        return [_request(served, "BYTES", (images,), b"".join(map(_element, part)), b"".join(part)) for part in parts]
    dice = np.random.default_rng(_SEED)
    if form == UINT8:
        if served.pixels is None:
            raise InputError(f"--bodies {UINT8}: '{served.name}' takes no pixels; leave it out")
        shape = (images, *served.pixels)
        rows = [dice.integers(0, 256, shape, np.uint8).tobytes() for _ in range(count)]
        return [_request(served, "UINT8", shape, row, row) for row in rows]
    numbers = [dice.standard_normal((images, *served.sample), np.float32).tobytes() for _ in range(count)]
    return [_request(served, "FP32", (images, *served.sample), row, row) for row in numbers]


def plain(bodies: Sequence[Body]) -> list[Body]:
    """The same without a protocol around the images."""
    headers = {"Content-Type": "application/octet-stream"}
    return [Body(body.plain, headers, body.images, body.plain) for body in bodies]


def _request(served: Served, datatype: str, shape: tuple[int, ...], raw: bytes, plain: bytes) -> Body:
    given = {"name": served.input, "datatype": datatype, "shape": shape}
    message = {"inputs": [given | {"parameters": {"binary_data_size": len(raw)}}]}
    head = json.dumps(message | {"parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", _LENGTH: str(len(head))}
    return Body(head + raw, headers, shape[0], plain)


def _element(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _files(folder: Path) -> Sequence[bytes]:
    files = listed([folder]).files[:_COUNT]
    if not files:
        raise InputError(f"--pictures '{folder}' has no pictures; name another folder, or leave it out")
    return [read_file(file) for file in files]


def _made() -> Sequence[bytes]:
    dice = np.random.default_rng(_SEED)
    pictures = structured_images(_COUNT, _WIDTH, _SEED)[:, :_HEIGHT].astype(np.int16)
    found = []
    for picture in pictures:
        noisy = np.clip(picture + dice.integers(-_NOISE, _NOISE + 1, picture.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=_QUALITY)
        found.append(file.getvalue())
    return found
