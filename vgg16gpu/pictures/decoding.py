"""One picture's bytes: as they are decoded, for a device that resizes, or as the network takes them."""

from __future__ import annotations

import math
from typing import Final

from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import default_preprocess, resized_shape
from vgg16gpu.pictures.content import read_file, read_into
from vgg16gpu.pictures.images import MAX_ASPECT, check_target, fitted
from vgg16gpu.pictures.inputs import InputSpec, image_shape
from vgg16gpu.pictures.jpeg import Buffer, NotDecodedError, baseline_shape, decode_jpeg, jpeg_shape
from vgg16gpu.pictures.limits import MAX_PIXELS
from vgg16gpu.pictures.slots import MAX_SIDE, Bytes, aligned
from vgg16gpu.program.ycbcr import planes_nbytes

_SHAPES: Final = 4096  # that are kept


class Decoder:
    """Decodes pictures for a network that takes `spec`. Several threads may use it."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec
        self.channels = spec.shape[0]
        # For rows of numbers it has nothing to do: every picture is refused.
        self._preprocess = spec.preprocess or default_preprocess(self.channels if len(spec.shape) == 3 else 1)
        self._usual_shapes: dict[tuple[int, int], bool] = {}  # what was found of each; most folders have few

    def read(self, file: str) -> bytes:
        """Read a file. Raises InputError, also where the network takes no pictures."""
        check_target(file, *image_shape(self._spec, file))
        return read_file(file)

    def read_into(self, file: str, out: Bytes) -> int | None:
        """Read a file into `out`; return its bytes, None where `out` is too short. Raises InputError."""
        check_target(file, *image_shape(self._spec, file))
        return read_into(file, out)

    def shape(self, data: bytes) -> tuple[int, int] | None:
        """Return (h, w) of a picture that `decode_into` takes and that is only resized and cropped; else None."""
        return self._usual(jpeg_shape(data, self.channels))

    def file_shape(self, data: bytes) -> tuple[int, int, int] | None:
        """Return (h, w, sampling) of such a file that a GPU may decode to planes, as in `program.ycbcr`; else None."""
        found = baseline_shape(data)
        return found if found and self._usual(found[:2]) else None

    def room_nbytes(self, height: int, width: int, sampling: int) -> int:
        """Return its bytes on the device: as planes, as RGB, or of the network's size if the CPU decodes it."""
        rgb = height * width * self.channels
        return aligned(max(planes_nbytes(height, width, sampling), rgb, math.prod(self._spec.shape)))

    def _usual(self, shape: tuple[int, int] | None) -> tuple[int, int] | None:
        if shape is None:
            return None
        if (is_usual := self._usual_shapes.get(shape)) is None:
            if len(self._usual_shapes) >= _SHAPES:
                self._usual_shapes.clear()
            is_usual = self._usual_shapes[shape] = self._is_usual(shape)
        return shape if is_usual else None

    def _is_usual(self, shape: tuple[int, int]) -> bool:
        if max(shape) > MAX_SIDE:
            return False
        if self._preprocess.fit == "stretch":
            return True
        rows, columns = resized_shape(*shape, (self._spec.shape[1], self._spec.shape[2]))
        return max(shape) <= MAX_ASPECT * min(shape) and rows * columns <= MAX_PIXELS

    def decode_into(self, data: bytes, out: Buffer) -> bool:
        """Decode a picture of known shape into h * w * channels bytes; False where only `fitted` can tell about it."""
        try:
            decode_jpeg(data, self.channels, out)
        except NotDecodedError:
            return False
        return True

    def fitted(self, data: bytes, file: str) -> Pixels:
        """Return (H, W, C) as the network takes it. Raises InputError that begins with the file's name."""
        return fitted(data, file, *image_shape(self._spec, file), self._preprocess)
