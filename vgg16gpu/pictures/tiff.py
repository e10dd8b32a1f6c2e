"""What the numbers of a TIFF file mean, by its tags: Pillow gives those of more than 8 bits as they stand there.

Tags are read here, not asked of Pillow, which refuses a form that it does not know before it tells of any. They are
those of the first picture: TIFF 6.0, sections 2 to 8 and 19, and BigTIFF.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_TAGS: Final = 4096
TOO_MANY: Final = -1  # in place of all tags

_FORMS: Final = {  # order of bytes, whether offsets have 64 bits; Pillow reads the last as either
    b"II*\0": (("<", False),),
    b"MM\0*": ((">", False),),
    b"II+\0": (("<", True),),
    b"MM\0+": ((">", True), (">", False)),
}
_TYPES: Final = {1: "B", 3: "H", 4: "L", 16: "Q"}  # of whole numbers

_BITS, _PHOTOMETRIC, _SAMPLES, _SAMPLE_FORMAT = 258, 262, 277, 339
_WHITE_IS_ZERO, _BLACK_IS_ZERO = 0, 1
_UNSIGNED, _SIGNED, _FLOAT, _UNTYPED = 1, 2, 3, 4
_NUMBERS: Final = {_UNSIGNED: "", _UNTYPED: "", _SIGNED: "signed", _FLOAT: "floating-point"}
_MOST_VALUES: Final = 16  # of a tag that are looked at, one for each sample
_USUAL_BITS: Final = range(9, 17)  # of the numbers that Pillow gives as they are


class TiffTag(NamedTuple):
    """A tag, with how many values. place: of the first in the file. order: of bytes, as `struct` names it."""

    tag: int
    type: int
    values: int
    place: int
    order: str


def entries(data: bytes) -> Iterator[list[TiffTag]]:
    """Yield the first picture's directory for each way in which Pillow may read the file, if it can be read.

    Of more than MAX_TAGS there is one entry TOO_MANY, which counts them.
    """
    for order, is_big in _FORMS.get(data[:4], ()):
        try:
            yield _directory(data, order, is_big=is_big)
        except (struct.error, OverflowError):  # cut short, or beyond all files: Pillow says so
            continue


def _directory(data: bytes, order: str, *, is_big: bool) -> list[TiffTag]:
    offset, number, head, room = ("Q", "Q", "HHQ", 8) if is_big else ("L", "H", "HHL", 4)
    (first,) = struct.unpack_from(order + offset, data, 8 if is_big else 4)
    (count,) = struct.unpack_from(order + number, data, first)
    if count > MAX_TAGS:
        return [TiffTag(TOO_MANY, 0, count, 0, order)]
    found, before = [], struct.calcsize(order + head)
    for start in range(first + struct.calcsize(order + number), len(data), before + room)[:count]:
        if start + before + room > len(data):
            break
        tag, kind, values = struct.unpack_from(order + head, data, start)
        place = start + before
        if values * struct.calcsize(f"<{_TYPES.get(kind, 'B')}") > room:
            (place,) = struct.unpack_from(order + offset, data, place)
        found.append(TiffTag(tag, kind, values, place, order))
    return found


@dataclass(frozen=True)
class TiffForm:
    """How numbers are pixels. bits: of a sample. kind: "", or what nobody can show: signed, ... is_white_zero: of grey.

    place: of the number that says so, where the file has one.
    """

    bits: int = 16
    samples: int = 1
    kind: str = ""
    is_white_zero: bool = False
    place: TiffTag | None = None

    @classmethod
    def of(cls, data: bytes) -> TiffForm:
        """Return the form in a file's tags; where they are damaged, the usual one."""
        found = {entry.tag: entry for entry in next(entries(data), [])}
        bits = max(_values(data, found.get(_BITS)), default=1)
        samples = max(_values(data, found.get(_SAMPLES)), default=1)
        kinds = {_NUMBERS.get(value, "unknown") for value in _values(data, found.get(_SAMPLE_FORMAT))} - {""}
        place = found.get(_PHOTOMETRIC)
        if place is not None and place.values != 1:  # Pillow takes none of several then
            place = None
        photometric = max(_values(data, place), default=_WHITE_IS_ZERO)  # as Pillow takes it
        return cls(bits, samples, ", ".join(sorted(kinds)), photometric == _WHITE_IS_ZERO, place)

    @property
    def white(self) -> int:
        """The largest of the numbers that Pillow gives as they are."""
        return (1 << (self.bits if self.bits in _USUAL_BITS else 16)) - 1

    @property
    def words(self) -> str:
        """The form, for messages."""
        samples = f"{self.samples} samples" if self.samples > 1 else "samples"
        return f"{samples} of {self.bits} bits" + ", zero is white" * self.is_white_zero

    def as_black_zero(self, data: bytes) -> bytes:
        """Return the file with zero for black, which more readers know; or itself if that does not apply."""
        place = self.place
        if not self.is_white_zero or place is None or self.bits not in _USUAL_BITS or not _values(data, place):
            return data
        changed = bytearray(data)
        struct.pack_into(place.order + _TYPES[place.type], changed, place.place, _BLACK_IS_ZERO)
        return bytes(changed)


def _values(data: bytes, entry: TiffTag | None) -> tuple[int, ...]:
    """Return the first numbers of a tag; none where not all of them are in the file: Pillow skips it then."""
    if entry is None or entry.type not in _TYPES:
        return ()
    if entry.place + entry.values * struct.calcsize(f"<{_TYPES[entry.type]}") > len(data):
        return ()
    form = f"{entry.order}{min(entry.values, _MOST_VALUES)}{_TYPES[entry.type]}"
    try:
        return struct.unpack_from(form, data, entry.place)
    except (struct.error, OverflowError):
        return ()
