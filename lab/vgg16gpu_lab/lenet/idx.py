"""IDX files, the format of MNIST and Fashion-MNIST: a header, then bytes in row-major order; gzipped or plain.

Header: two zero bytes, the element type (8: unsigned byte), the number of dimensions, each dimension as a big-endian
32-bit number. Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", section "File formats".
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError

_GZIP: Final = b"\x1f\x8b"
_UNSIGNED_BYTE: Final = 8
_MOST_DIMENSIONS: Final = 8
_MOST_NBYTES: Final = 2**31  # Fashion-MNIST has 47 MB


def read_idx(path: str | Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read the array of an IDX file of unsigned bytes with that many dimensions.

    Raises InputError, with one line that says what is wrong, for a file that cannot be read, is no such IDX file, is
    damaged, shorter than its header says, or longer.
    """
    path = Path(path)
    try:
        with path.open("rb") as plain:
            start = plain.read(len(_GZIP))
            plain.seek(0)
            if start == _GZIP:
                with gzip.open(plain) as unpacked:
                    return _read(path, cast(BinaryIO, unpacked), dimensions)
            return _read(path, plain, dimensions)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); download it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def _read(path: Path, stream: BinaryIO, dimensions: int) -> npt.NDArray[np.uint8]:
    shape = _shape(path, stream, dimensions)
    nbytes = math.prod(shape)
    if nbytes > _MOST_NBYTES:
        raise InputError(f"{path}: {'x'.join(map(str, shape))} bytes by its header, at most {_MOST_NBYTES} are read")
    data = stream.read(nbytes)
    if len(data) < nbytes:
        raise InputError(f"{path}: ends after {len(data)} of {nbytes} bytes of data; download it again")
    if stream.read(1):
        raise InputError(f"{path}: has more than the {nbytes} bytes of data that its header says; download it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _shape(path: Path, stream: BinaryIO, dimensions: int) -> tuple[int, ...]:
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or not 1 <= head[3] <= _MOST_DIMENSIONS:
        raise InputError(f"{path}: is no IDX file (it starts with {head.hex(' ') or 'nothing'}, IDX with 00 00 08)")
    if head[2] != _UNSIGNED_BYTE:
        raise InputError(f"{path}: holds elements of IDX type 0x{head[2]:02x}; only 0x08, unsigned bytes, is read")
    if head[3] != dimensions:
        kinds = {1: "labels have 1", 3: "images have 3"}
        wanted = kinds.get(dimensions, f"{dimensions} are wanted")
        raise InputError(f"{path}: has {head[3]} dimensions, {wanted}; are images and labels swapped?")
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise InputError(f"{path}: ends within its header; download it again")
    return struct.unpack(f">{dimensions}I", sizes)
