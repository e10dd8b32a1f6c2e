"""The header of a JPEG file with nothing unusual in it: whatever Pillow might read in another way makes it None.

Pillow looks at more than libjpeg: it turns a picture as EXIF or XMP say, and refuses files over damaged segments that
libjpeg passes over. So every segment in front of the picture is checked as strictly as Pillow does, or more so.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

_PROGRESSIVE: Final = 0xC2
_FRAMES: Final = frozenset((0xC0, 0xC1, _PROGRESSIVE))  # Huffman codes; arithmetic and lossless ones are unusual
_APP1, _ADOBE, _SCAN, _END = 0xE1, 0xEE, 0xDA, 0xD9
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # in coded pixels: neither a byte 255 of theirs nor a restart
_MOST_SEGMENTS: Final = 1000
_ALONE: Final = frozenset((0x01, 0xD8))  # without a length
# Without meaning for the pixels, or checked by libjpeg: Huffman tables, restart intervals, comments, APP3 to 12, 15.
_PASSED: Final = frozenset((0xC4, 0xDD, 0xFE, *range(0xE3, 0xED), 0xEF))
_SAMPLINGS: Final = frozenset((0x11, 0x21, 0x22, 0x12, 0x41))  # of the luminance; the colours have 0x11

_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_ENTRIES: Final = {b"II*\0": struct.Struct("<HHL4s"), b"MM\0*": struct.Struct(">HHL4s")}  # tag, type, count, value
_ORIENTATION, _RESOLUTION, _RESOLUTION_UNIT = 0x0112, 0x011A, 0x0128
_SHORT, _RATIONAL = 3, 5
_UNITS: Final = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4)  # bytes of each type
_XMP_ORIENTATION: Final = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


class JpegHeader(NamedTuple):
    """What is to be known of a picture before it is decoded. It is upright."""

    height: int
    width: int
    components: int  # 1 or 3
    has_one_scan: bool
    sampling: int  # of the luminance, in units of the colours': 0x22 is 4:2:0
    identities: bytes  # of the components; without other marks "RGB" says that they are no luminance and two colours


def read_header(data: bytes) -> JpegHeader | None:
    """Return the header of a JPEG file; None where there is anything unusual in it, or it is not a JPEG."""
    try:
        return _read_header(data)
    except (IndexError, struct.error):  # cut short
        return None


def count_scans(data: bytes) -> int:
    """Return the number of scans of a JPEG file; those behind its end or in previews are not counted."""
    markers = (marker for marker, _ in _markers(data))
    return sum(marker == _SCAN for marker in takewhile(lambda marker: marker != _END, markers))


def holds_one_picture(data: bytes) -> bool:
    """Return whether behind the head of the first scan there are coded pixels, then the end of file and picture.

    So that no decoder finds another size, or another picture, behind what `read_header` has read.
    """
    is_scanned = False
    for marker, end in _markers(data):
        if marker == _END or is_scanned:
            return marker == _END and end == len(data)
        is_scanned = marker == _SCAN
    return False


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker, and where it ends; those within segments are not looked at."""
    place = 2
    while found := _MARKER.search(data, place):
        marker, place = found[0][1], found.end()
        yield marker, place
        if marker not in _ALONE:
            place += int.from_bytes(data[place : place + 2], "big")


def _read_header(data: bytes) -> JpegHeader | None:
    found = _segments(data)
    if found is None:
        return None
    for marker, check in _CHECKS:
        if marker in found and not all(map(check, found[marker])):
            return None
    frames = [(marker, frame) for marker in _FRAMES for frame in found.get(marker, ())]
    if len(frames) != 1 or not _is_upright(found.get(_APP1, ())):
        return None
    marker, frame = frames[0]
    components = frame[5]
    if components == 3 and not all(map(_is_ycc, found.get(_ADOBE, ()))):
        return None
    (scan,) = found[_SCAN]
    has_one_scan = marker != _PROGRESSIVE and scan[0] == components
    height, width = frame[1] << 8 | frame[2], frame[3] << 8 | frame[4]
    return JpegHeader(height, width, components, has_one_scan, frame[7], frame[6::3])


def _segments(data: bytes) -> dict[int, list[bytes]] | None:
    """Return the segments of each marker, the first scan's being the last; None where one is unusual."""
    if not data.startswith(b"\xff\xd8"):
        return None
    found: dict[int, list[bytes]] = {}
    place, count = 2, 0
    while _SCAN not in found:
        start, count = place + 4, count + 1
        if count > _MOST_SEGMENTS:  # a profile has 255 at most
            return None
        if data[place] != 0xFF:
            return None
        marker = data[place + 1]
        place += 2 + (data[place + 2] << 8 | data[place + 3])
        if not start <= place <= len(data):
            return None
        if marker in _READ:
            found.setdefault(marker, []).append(data[start:place])
        elif marker not in _PASSED:
            return None
    return found


def _is_usual_frame(frame: bytes) -> bool:
    """Return whether a frame has 8 bits, and is grey or has colours in a sampling that libjpeg has a name for."""
    bits, components = frame[0], frame[5]
    if bits != 8 or len(frame) != 6 + 3 * components:
        return False
    if components == 1:
        return frame[7] == 0x11
    identities, samplings = frame[6::3], frame[7::3]
    return (
        components == 3
        and len(set(identities)) == components
        and samplings[0] in _SAMPLINGS
        and samplings[1:] == b"\x11\x11"
    )


def _is_ycc(adobe: bytes) -> bool:
    """Return whether the block leaves three components what they are without it."""
    return not adobe.startswith(b"Adobe") or adobe[11] == 1


def _is_upright(blocks: Iterable[bytes]) -> bool:
    """Return whether the picture is to be shown as it is stored: Pillow asks XMP where EXIF says nothing."""
    said = 0
    is_turned_by_xmp = has_exif = False
    for block in blocks:
        if block.startswith(_XMP):
            is_turned_by_xmp |= _is_turned_by_xmp(block)
        elif block.startswith(_EXIF):
            found = _orientation(block[len(_EXIF) :])
            if found is None or has_exif:  # Pillow joins several
                return False
            said, has_exif = found, True
    return said == 1 or not is_turned_by_xmp


def _orientation(exif: bytes) -> int | None:
    """Return 1 if upright, 0 if nothing is said, None if turned, or the block is damaged."""
    entry = _ENTRIES.get(exif[:4])
    if entry is None:
        return None
    order = entry.format[0]
    (first,) = struct.unpack_from(f"{order}L", exif, 4)
    (count,) = struct.unpack_from(f"{order}H", exif, first)
    end = first + 2 + entry.size * count
    if end + 4 > len(exif):
        return None
    said = 0
    for tag, kind, number, value in entry.iter_unpack(exif[first + 2 : end]):
        size = number * _UNITS[kind] if kind < len(_UNITS) else 0
        if size > 4 and struct.unpack(f"{order}L", value)[0] + size > len(exif):
            return None
        if tag == _ORIENTATION:
            if said or (kind, number, value[:2]) != (_SHORT, 1, b"\1\0" if order == "<" else b"\0\1"):
                return None
            said = 1
        elif (tag == _RESOLUTION and (kind, number) != (_RATIONAL, 1)) or (
            tag == _RESOLUTION_UNIT and (kind, number) != (_SHORT, 1)
        ):
            return None  # Pillow computes with these
    return said


def _is_turned_by_xmp(segment: bytes) -> bool:
    if b"tiff:Orientation" not in segment:
        return False
    found = _XMP_ORIENTATION.search(segment)
    return found is None or found[1] != b"1"


def _are_bytes_tables(tables: bytes) -> bool:
    """Return whether quantisation tables are of bytes; those of 16 bits are unusual."""
    return bool(tables) and not len(tables) % 65 and max(tables[::65]) < 4


def _is_whole_adobe(segment: bytes) -> bool:
    return not segment.startswith(b"Adobe") or len(segment) >= 12


def _is_whole_jfif(segment: bytes) -> bool:
    return not segment.startswith(b"JFIF") or len(segment) >= 14


def _is_whole_profile(segment: bytes) -> bool:
    return not segment.startswith(b"ICC_PROFILE\0") or len(segment) >= 14


def _is_whole_photoshop(segment: bytes) -> bool:
    """Return whether each block of the segment has its name's length, which Pillow reads whether it is there or not."""
    if not segment.startswith(b"Photoshop 3.0\0"):
        return True
    place = 14
    while segment[place : place + 4] == b"8BIM":
        place += 7 + segment[place + 6]
        place += place & 1
        place += 4 + int.from_bytes(segment[place : place + 4], "big")
        place += place & 1
    return True


_CHECKS: Final[Sequence[tuple[int, Callable[[bytes], bool]]]] = (
    (0xDB, _are_bytes_tables),
    (0xE0, _is_whole_jfif),
    (0xE2, _is_whole_profile),
    (0xED, _is_whole_photoshop),
    (_ADOBE, _is_whole_adobe),
    *((marker, _is_usual_frame) for marker in sorted(_FRAMES)),
)
_READ: Final = frozenset((_APP1, _ADOBE, _SCAN, *(marker for marker, _ in _CHECKS)))
