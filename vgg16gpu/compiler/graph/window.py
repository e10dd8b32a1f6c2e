"""Sliding windows: their geometry as ONNX means it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Pads(NamedTuple):
    """Rows and columns of padding around a feature map."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


NO_PADS = Pads()


@dataclass(frozen=True, eq=False)
class Window:
    """Geometry of a sliding window, with every ONNX default filled in.

    same: "upper" or "lower" for auto_pad SAME_UPPER and SAME_LOWER: the padding follows from the map, so that there are
    ceil(size / stride) outputs; `pads` is unused then. ceil: sizes are rounded up, but no window begins in the padding
    behind the map (ONNX, MaxPool and AveragePool, ceil_mode).
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: Pads = NO_PADS
    dilations: tuple[int, int] = (1, 1)
    same: Literal["", "upper", "lower"] = ""
    ceil: bool = False

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns from the first to the last element of a window, both included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[return-value]

    def padding(self, height: int, width: int) -> Pads:
        """Return the padding in pixels for a map of (height, width)."""
        if not self.same:
            return self.pads
        ends = []
        for size, stride, extent in zip((height, width), self.strides, self.extent, strict=True):
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            small, large = total // 2, total - total // 2
            ends.append((small, large) if self.same == "upper" else (large, small))
        (top, bottom), (left, right) = ends
        return Pads(top, left, bottom, right)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (OH, OW) for a map of (height, width); below 1 where the window does not fit."""
        pads = self.padding(height, width)
        rows = self._count(height, pads.top, pads.bottom, 0)
        return rows, self._count(width, pads.left, pads.right, 1)

    def _count(self, size: int, before: int, after: int, axis: int) -> int:
        stride, room = self.strides[axis], size + before + after - self.extent[axis]
        if room < 0 or not self.ceil:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= size + before else count

    @property
    def is_plain(self) -> bool:
        """Return whether kernel, strides and pads say it all."""
        return self.dilations == (1, 1) and not self.same and not self.ceil


MAX_POOL_2X2 = Window(kernel=(2, 2), strides=(2, 2))


def same_window(first: Window, second: Window) -> bool:
    """Return whether two windows of plain geometry are equal; one that is not plain is like no other."""
    if not (first.is_plain and second.is_plain):
        return False
    return (first.kernel, first.strides, Pads(*first.pads)) == (second.kernel, second.strides, Pads(*second.pads))
