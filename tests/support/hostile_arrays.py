"""Arrays that nobody can read, .npy and .npz, written byte by byte: each is one input without an answer."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

SHAPE = (1, 32, 32)  # of an input of the shipped net


def npy(array: object) -> bytes:
    """Return what numpy.save writes."""
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def header(text: str, data: bytes = b"", version: bytes = b"\1\0", length: int | None = None) -> bytes:
    """Return a .npy file with this text for a header."""
    size = len(text) if length is None else length
    packed = struct.pack("<H" if version == b"\1\0" else "<I", size & (0xFFFF if version == b"\1\0" else 0xFFFFFFFF))
    return b"\x93NUMPY" + version + packed + text.encode() + data


def described(shape: object, descr: object = "<f4", order: object = False, data: bytes = b"") -> bytes:
    """Return a .npy file whose header says this."""
    return header(str({"descr": descr, "fortran_order": order, "shape": shape}), data)


def npz(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive of members as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def bomb(nbytes: int) -> bytes:
    """Return an archive of a few kilobytes with an array of so many bytes."""
    return npz({"x.npy": described((nbytes // 4,)) + bytes(nbytes)})


def _with_wrong_sum() -> bytes:
    data = npz({"x.npy": npy(np.ones(SHAPE, np.float32))}, zipfile.ZIP_STORED)
    return data.replace(np.float32(1).tobytes() * 9, np.float32(2).tobytes() * 9, 1)


def _encrypted() -> bytes:
    data = bytearray(npz({"x.npy": npy(np.ones(SHAPE, np.float32))}))
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    return bytes(data)


def _claiming(size: int) -> bytes:
    """Return an archive whose directory says another size of its member."""
    data = bytearray(npz({"x.npy": npy(np.ones(SHAPE, np.float32))}))
    place = data.rindex(b"PK\1\2") + 24
    data[place : place + 4] = struct.pack("<I", size)
    return bytes(data)


GOOD = np.ones(SHAPE, np.float32)
_FLOATS = GOOD.tobytes()
_DEEP = "[" * 3000 + "]" * 3000


def hostile_arrays() -> dict[str, bytes]:
    """Return files by their names."""
    return {
        "negative.npy": described((-1, 1, 32, 32), data=_FLOATS),
        "negative-pair.npy": described((-1, 1, -32, 32), data=_FLOATS),
        "huge.npy": described((1 << 40, 1, 32, 32), data=_FLOATS),
        "beyond.npy": described((1 << 62, 1 << 62), data=_FLOATS),
        "beyond-and-zero.npy": described((1 << 70, 0), data=_FLOATS),
        "digits.npy": described("9" * 5000, data=_FLOATS),
        "fraction.npy": described((1.0, 32, 32), data=_FLOATS),
        "list.npy": described([1, 32, 32], data=_FLOATS),
        "none.npy": described(None, data=_FLOATS),
        "dims.npy": described((1,) * 40 + SHAPE, data=_FLOATS),
        "deep.npy": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {_DEEP}}}"),
        "deep-descr.npy": header(f"{{'descr': {_DEEP}, 'fortran_order': False, 'shape': (1,)}}"),
        "no-dict.npy": header("(1, 32, 32)"),
        "code.npy": header("__import__('os').system('touch harmed')"),
        "keys.npy": header("{'descr': '<f4'}"),
        "quote.npy": header("{'descr': '<f4"),
        "zero-bytes.npy": header("\0" * 100),
        "order.npy": described(SHAPE, order="yes", data=_FLOATS),
        "records.npy": described(SHAPE, [("a", "<f4"), ("b", "<i4")], data=_FLOATS * 2),
        "parts.npy": described((32, 32), ("<f4", (1,)), data=_FLOATS),
        "objects.npy": described(SHAPE, "|O", data=pickle.dumps([1])),
        "text.npy": described(SHAPE, "<U1", data=_FLOATS),
        "empty-text.npy": described(SHAPE, "<U0"),
        "nothing.npy": described(SHAPE, "|V0"),
        "date.npy": described(SHAPE, "<M8[s]", data=_FLOATS * 2),
        "large-element.npy": described((1,), "|V2147483647"),
        "unknown.npy": described(SHAPE, "<q9"),
        "complex.npy": npy(GOOD.astype(np.complex64)),
        "version-3.npy": header("{}", version=b"\3\0"),
        "version-9.npy": header("{}", version=b"\x09\0"),
        "long-header.npy": header(" " * 100, version=b"\2\0", length=0xFFFFFFFF),
        "short-header.npy": header("{'descr'", length=60000),
        "cut.npy": npy(GOOD)[:-1],
        "cut-header.npy": npy(GOOD)[:40],
        "magic.npy": b"\x93NUMPY",
        "empty.npy": b"",
        "no-inputs.npy": npy(np.empty((0, *SHAPE), np.float32)),
        "pickle.npy": pickle.dumps({"a": 1}),
        "picture-size.npy": npy(np.ones((1, 1, 33, 32), np.float32)),
        "integers.npy": npy(np.ones(SHAPE, np.int32)),
        "overflow.npy": npy(np.full(SHAPE, 1e300)),
        "words.txt": b"1 2 three",
        "zeros.txt": bytes(1000),
        "half.txt": b"\xff\xfe1",
        "empty.txt": b"",
        "count.txt": b"1 2 3",
        "not.npz": b"PK\3\4",
        "empty.npz": npz({}),
        "notes.npz": npz({"readme.txt": b"hello"}),
        "member-cut.npz": npz({"x.npy": npy(GOOD)[:-8]}),
        "member-negative.npz": npz({"x.npy": described((-1, 1, 32, 32), data=_FLOATS)}),
        "member-pickle.npz": npz({"x.npy": described(SHAPE, "|O", data=pickle.dumps([1]))}),
        "member-folder.npz": npz({"x/": b""}),
        "member-long-header.npz": npz({"x.npy": header("", bytes(1 << 24), b"\2\0", 0xFFFFFFFF)}),
        "sum.npz": _with_wrong_sum(),
        "encrypted.npz": _encrypted(),
        "claims-less.npz": _claiming(10),
        "method.npz": npz({"x.npy": npy(GOOD)}, zipfile.ZIP_BZIP2),
        "cut.npz": npz({"x.npy": npy(GOOD)})[:-30],
        "bomb.npz": bomb(1 << 26),
        "fortran-bomb.npz": npz({"x.npy": described((1 << 28, *SHAPE), order=True, data=bytes(1 << 22))}),
    }


def good_array(value: float) -> Any:
    """Return an input that can be read."""
    return np.full(SHAPE, value, np.float32)
