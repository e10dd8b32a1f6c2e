"""In which order Pillow makes the two passes of a resize: versions differ, and so do the last bits of pictures."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from vgg16gpu.compiler.op_kernels.layout.resize import PassOrder

if TYPE_CHECKING:
    from PIL import Image

# (height, width) of a picture and what it becomes, on both sides of every limit that a version of Pillow has.
_TRIALS: Final = (
    ((31, 10), (20, 5)),
    ((30, 10), (20, 5)),
    ((10, 31), (5, 20)),
    ((30, 10), (29, 15)),
    ((30, 10), (31, 5)),
    ((301, 3), (200, 5)),
    ((300, 3), (200, 5)),
    ((301, 3), (299, 2)),
    ((301, 3), (400, 2)),
)


@cache
def pass_order() -> PassOrder | None:
    """Return the order of the installed Pillow, found by trying; None if it is unknown."""
    sizes, results = (np.array(side).T for side in zip(*_TRIALS, strict=True))
    found = [_goes_down_first(*trial) for trial in _TRIALS]
    for order in PassOrder:
        if found == order.down_first(*sizes, *results).tolist():
            return order
    return None


def _goes_down_first(size: tuple[int, int], result: tuple[int, int]) -> bool | None:
    """Return whether a picture is resized along its columns first; None if it is neither way."""
    from PIL import Image  # noqa: PLC0415 - whoever asks has it

    def resized(picture: Image.Image, height: int, width: int) -> Image.Image:
        return picture.resize((width, height), Image.Resampling.BICUBIC)

    (height, width), (rows, columns) = size, result
    pixels = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    picture = Image.fromarray(pixels)
    made = resized(picture, rows, columns).tobytes()
    along_rows = resized(resized(picture, height, columns), rows, columns).tobytes()
    down_columns = resized(resized(picture, rows, width), rows, columns).tobytes()
    return None if made not in (along_rows, down_columns) or along_rows == down_columns else made == down_columns
