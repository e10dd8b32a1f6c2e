"""Some 500 things that a folder of pictures should not hold: hostile names, hostile contents, links, pipes."""

from __future__ import annotations

import os
import socket
import struct
import zlib
from functools import cache
from pathlib import Path

from tests.support.picture_files import every_kind, jpeg, resized_jpeg

TENTHS = range(10)
NAMES = [
    b"\xff\xfe.png",
    b"latin-\xe9\xe8.jpg",
    b"\xc3.jpg",
    b"line\nbreak.jpg",
    b"line\r\nbreak.png",
    b"tab\tstop.png",
    b'double"quote.png',
    b"single'quote.png",
    b"comma,semi;colon.png",
    b"back\\slash.png",
    b"$(touch harmed).png",
    b"`touch harmed`.png",
    b"%s%n%d.png",
    b"{0}{name}.png",
    b"[bold]markup[bold].png",
    b"\x1b[31mred\x1b[0m.png",
    b"bell\x07.png",
    b"\x01\x02\x7f.png",
    b" leading and trailing .png ",
    b"   .png",
    b"-",
    b"--output",
    b"-rf.png",
    b"~.png",
    b"*?.png",
    b"=1+1.png",
    "\U0001f600\U0001f469\u200d\U0001f52c.png".encode(),
    "\u202egnp.exe".encode(),
    "e\u0301.png".encode(),
    "\u00e9.png".encode(),
    "\u4e2d\u6587.png".encode(),
    "\ufeffbom.png".encode(),
    "\u2028line.png".encode(),
    b"\xed\xa0\x80.png",
    b"\xf4\x90\x80\x80.png",
    b"con.png",
    b"a.png.",
    b"a..png",
    b"none",
    b"jpg",
    b"UPPER.PNG",
    b"two.jpg.png",
    b"n" * 251 + b".png",
    b"\xff" * 251 + b".jpg",
]
NO_PICTURES = {
    "empty": b"",
    "zero": b"\0",
    "zeros": bytes(4096),
    "text": b"this is no picture\n",
    "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>',
    "script": b"#!/bin/sh\ntouch harmed\n",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(harmed) (w) file\n%%EOF\n",
    "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "zip": b"PK\x03\x04" + bytes(60),
    "numpy": b"\x93NUMPY\x01\0v\0{'descr': '|O', 'fortran_order': False, 'shape': (9,), }".ljust(128) + b"\n",
    "pickle": b"\x80\x04\x95" + bytes(9),
    "program": b"\x7fELF\x02\x01\x01" + bytes(57),
    "icon": b"\0\0\x01\0\x01\0" + bytes(60),
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40),
    "bmw": b"BMW is no bitmap, and longer than its header would be.",
    "jpeg start": b"\xff\xd8\xff",
    "jpeg markers": b"\xff\xd8" + b"\xff" * 5000,
    "png start": b"\x89PNG\r\n\x1a\n",
    "gif start": b"GIF89a",
    "tiff start": b"II*\0\xff\xff\xff\xff",
    "webp start": b"RIFF\xff\xff\xff\xffWEBPVP8 ",
    "avif start": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1",
}
ENDINGS = (".jpg", ".PNG", ".bmp", ".webp", ".gif", ".tiff", ".avif", ".txt", ".npy", ".xml", "")


def make_hostile(folder: Path) -> int:
    """Fill a folder that is there; how many files a listing takes, and things it leaves out, together."""
    files = {**_names(), **_cut_short(), **_wrong_endings(), **_without_pictures(), **bombs()}
    for name, content in files.items():
        (folder / os.fsdecode(name)).write_bytes(content)
    return len(files) + _others(folder)


@cache
def bombs() -> dict[bytes, bytes]:
    """Small files that claim, or become, what no memory holds or no patience waits for."""
    progressive = jpeg(64, 64, progressive=True, quality=1)
    last_scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    return {
        b"bomb.png": _png(65535, 65535, bytes(1000)),
        b"bomb1.png": _png(1 << 30, 1, bytes(1000)),
        b"bomb-data.png": _png(1, 1, bytes(30_000_000)),
        b"bomb-text.png": _png(1, 1, bytes(8), [(b"zTXt", b"a\0\0" + zlib.compress(bytes(20_000_000)))]),
        b"bomb-profile.png": _png(1, 1, bytes(8), [(b"iCCP", b"a\0\0" + zlib.compress(bytes(20_000_000)))]),
        b"bomb.gif": b"GIF89a\xff\xff\xff\xff\0\0\0" + _gif_frame(0xFFFF, 0xFFFF),
        b"bomb-frame.gif": b"GIF89a\x01\0\x01\0\0\0\0" + _gif_frame(0xFFFF, 0xFFFF),
        b"bomb.tif": _tiff(1 << 20, 1 << 20),
        b"bomb-bits.tif": _tiff(1 << 31, 1 << 31),
        b"bomb-strips.tif": _tiff(64, 64, strips=1_000_000),
        b"bomb-packed.tif": _tiff(60_000, 60_000, compression=8),
        b"bomb.webp": b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\xff\xff" * 2,
        b"bomb-lossless.webp": b"RIFF\x11\0\0\0WEBPVP8L\x05\0\0\0\x2f\xff\xff\xff\x0f\0",
        b"bomb.bmp": b"BM" + struct.pack("<LLLLllHHLLLLLL", 54, 0, 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
        b"bomb-run.bmp": _run_length_bmp(),
        b"bomb.jpg": resized_jpeg(jpeg(), 65_500, 65_500),
        b"bomb-flat.jpg": resized_jpeg(jpeg(), 1, 65_500),
        b"bomb-scans.jpg": resized_jpeg(progressive[:-2] + last_scan * 20_000, 10_000, 10_000) + b"\xff\xd9",
    }


def _names() -> dict[bytes, bytes]:
    whole = every_kind()["colour.png"]
    return dict.fromkeys(NAMES, whole)


def _cut_short() -> dict[bytes, bytes]:
    """Every kind cut at every tenth, and once more under a name without an ending."""
    found = {}
    for name, content in every_kind().items():
        stem, _, ending = name.rpartition(".")
        for tenth in TENTHS:
            cut = content[: len(content) * tenth // 10]
            found[f"{stem}-{ending}-cut{tenth}.{ending}".encode()] = cut
            if stem in ("colour", "plain", "palette"):
                found[f"{stem}-{ending}-cut{tenth}".encode()] = cut
    return found


def _wrong_endings() -> dict[bytes, bytes]:
    """One of each kind under the ending of another, or of none at all."""
    kinds = {name.rpartition(".")[2]: content for name, content in reversed(every_kind().items())}
    return {
        f"{kind}-as{ending}".encode(): content
        for kind, content in kinds.items()
        for ending in ENDINGS
        if ending.lower() != f".{kind}"
    }


def _without_pictures() -> dict[bytes, bytes]:
    return {
        f"{name}{ending}".encode(): content
        for name, content in NO_PICTURES.items()
        for ending in (".jpg", ".png", ".tif", "")
    }


def _others(folder: Path) -> int:
    """Links, pipes, folders: so many things."""
    outside = folder.parent / f"{folder.name}-beside"
    outside.mkdir()
    (outside / "linked.png").write_bytes(every_kind()["colour.png"])
    links = {
        "self.png": "self.png",
        "ring1.jpg": "ring2.jpg",
        "ring2.jpg": "ring1.jpg",
        "nothing.png": "there is no such file.png",
        "null.png": "/dev/null",
        "zero-device.jpg": "/dev/zero",
        "endless": "/dev/urandom",
        "linked.png": str(outside / "linked.png"),
        "here": ".",
        "parent": "..",  # leads to the folder beside, and back to this one
        "beside": str(outside),
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    for name in ("pipe.jpg", "pipe"):
        os.mkfifo(folder / name)
    with socket.socket(socket.AF_UNIX) as bound:
        place = os.open(folder, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{place}/socket.png")  # a socket's path is short
        os.close(place)
    hidden = ("._colour.png", ".hidden.jpg", ".DS_Store")
    for name in hidden:
        (folder / name).write_bytes(every_kind()["colour.jpg"])
    (folder / ".git").mkdir()
    (folder / ".git" / "inside.png").write_bytes(every_kind()["colour.png"])
    (folder / "folder.png").mkdir()  # empty
    deep = folder
    for level in range(40):
        deep = deep / f"level {level}"
        deep.mkdir()
    (deep / "deep.png").write_bytes(every_kind()["colour.png"])
    locked = folder / "locked.png"
    locked.write_bytes(every_kind()["colour.png"])
    locked.chmod(0)
    (folder / "locked").mkdir()
    (folder / "locked" / "inside.png").write_bytes(every_kind()["colour.png"])
    (folder / "locked").chmod(0)
    # Two for the link to the parent: both folders there are met before.
    return (
        len(links) + 1 + len(("pipe.jpg", "pipe", "socket", ".git", "deep.png", "locked.png", "locked")) + len(hidden)
    )


def _png(width: int, height: int, data: bytes, chunks: list[tuple[bytes, bytes]] | None = None) -> bytes:
    header = (b"IHDR", struct.pack(">LLBBBBB", width, height, 8, 2, 0, 0, 0))
    every = [header, *(chunks or []), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">L", len(content)) + kind + content + struct.pack(">L", zlib.crc32(kind + content))
        for kind, content in every
    )


def _gif_frame(width: int, height: int) -> bytes:
    return b",\0\0\0\0" + struct.pack("<HHB", width, height, 0) + b"\x08\x02\x4c\x01\0;"


def _tiff(width: int, height: int, strips: int = 1, compression: int = 1) -> bytes:
    """RGB, all strips at the same place."""
    behind = 8 + 2 + 9 * 12 + 4
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, compression),
        (262, 3, 1, 2),
        (273, 4, strips, behind if strips > 1 else 8),
        (277, 3, 1, 3),
        (278, 4, 1, 1 if strips > 1 else height & 0xFFFFFFFF),
        (279, 4, strips, behind + 4 * strips if strips > 1 else 64),
    ]
    directory = b"".join(struct.pack("<HHLL", *entry) for entry in entries)
    lists = struct.pack("<L", 8) * strips + struct.pack("<L", 192) * strips if strips > 1 else b""
    return b"II*\0" + struct.pack("<LH", 8, len(entries)) + directory + bytes(4) + lists + bytes(256)


def _run_length_bmp() -> bytes:
    """Runs and jumps that would write far beyond the picture."""
    header = struct.pack("<LLLLllHHLLLLLL", 1078, 0, 1078, 40, 4000, 4000, 1, 8, 1, 0, 0, 0, 0, 0)
    return b"BM" + header + bytes(1024) + b"\0\x02\xff\xff" * 2000 + b"\xff\x01" * 2000
