"""References: scores of another implementation, read from files or stored beside the package."""

from __future__ import annotations

import logging
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.onnx.file import OnnxFile
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.lines import read_bytes
from vgg16gpu.io.normalize import Floats, Pixels, normalise
from vgg16gpu.io.results import read_scores
from vgg16gpu.io.results.parquet_results import storable
from vgg16gpu.io.scores import Scores
from vgg16gpu.io.shown import printable, shown
from vgg16gpu.io.text import parse_numbers

_TEXT: Final = ".txt"


@dataclass(frozen=True, eq=False)
class References:
    """What a file has for some inputs."""

    file: str
    scores: Scores  # (n, K): a row for each input that has an answer, in their order
    answered: npt.NDArray[np.bool_]  # for each input whether it has one
    unanswered: tuple[str, ...]  # the names of the others
    has_names: bool  # so that rows were found by them
    unused: int  # rows of the file that are for other inputs


def read_references(path: Path, names: Sequence[str], classes: int) -> References:
    """Read the rows for inputs of these names; K is `classes`. Raises InputError unless each has one."""
    if not path.is_file():
        raise InputError(f"references '{path}' do not exist")
    if path.suffix.lower() == _TEXT:  # numbers need not be a line an input
        found, rows = None, parse_numbers(read_bytes(path, f"references '{path}'"), str(path))[:, None]
    else:
        found, rows = read_scores(path)
    if found is None:
        scores = _in_order(path, rows, len(names), classes)
    else:
        scores = _named(path, found, rows, names)
        _check_classes(path, scores, len(names), classes)
    answered = np.asarray(~np.isnan(scores).all(axis=1))
    if not answered.any():
        raise InputError(f"references '{path}' have an answer for none of the {len(names)} inputs: all are NaN")
    return References(
        file=str(path),
        scores=scores[answered],
        answered=answered,
        unanswered=tuple(name for name, has_one in zip(names, answered, strict=True) if not has_one),
        has_names=found is not None,
        unused=0 if found is None else len(set(found)) - len(set(names)),
    )


def _in_order(path: Path, rows: Scores, count: int, classes: int) -> Scores:
    """Return (count, classes) of rows without names; single numbers are read in sequence. Raises InputError."""
    if rows.shape[1] == 1 and rows.size == count * classes:
        return rows.reshape(count, classes)
    if rows.shape[1] == 1 and rows.size and rows.size % classes == 0:
        rows = rows.reshape(-1, classes)
    elif rows.shape[1] == 1 and rows.size and rows.size % count == 0:
        rows = rows.reshape(count, -1)
    elif rows.shape[1] == 1:
        raise InputError(
            f"references '{path}' have {rows.size} numbers; {count} inputs with {classes} scores each need "
            f"{count * classes}"
        )
    _check_classes(path, rows, count, classes)
    if len(rows) != count:
        raise InputError(
            f"references '{path}' have {len(rows)} rows, there are {count} inputs; without names each row belongs to "
            "the input in its place: give a row for each, or a file with names (.csv, .jsonl, .parquet, .npz, .json)"
        )
    return rows


def _check_classes(path: Path, rows: Scores, count: int, classes: int) -> None:
    if rows.shape[1] != classes:
        raise InputError(
            f"references '{path}' have {rows.shape[1]} scores for each of {count} inputs, the model {classes}"
        )


def _named(path: Path, found: Sequence[str], rows: Scores, names: Sequence[str]) -> Scores:
    """Return the rows of these names, in this order. Raises InputError for a missing or double name."""
    places = {name: place for place, name in enumerate(found)}
    keys = [name if name in places else storable(name) for name in names]  # .parquet has no bytes that are no UTF-8
    missing = [name for name, key in zip(names, keys, strict=True) if key not in places]
    if missing:
        theirs = f"; their first row is of '{printable(found[0])}'" if found else ""
        raise InputError(
            f"references '{path}' have no row for {len(missing)} of {len(names)} inputs, the first is "
            f"'{printable(missing[0])}'{theirs}; name the inputs as they were named when the references were made"
        )
    counts = Counter(found)
    if doubled := next((key for key in keys if counts[key] > 1), None):
        raise InputError(
            f"references '{path}' have {counts[doubled]} rows for '{printable(doubled)}'; leave one for each input"
        )
    return rows[[places[key] for key in keys]]


_log = logging.getLogger(__name__)

_PACKAGE: Final = Path(__file__).resolve().parents[1]
# A wheel has the files inside the package; a checkout has them beside it.
_FOLDERS: Final = (_PACKAGE / "references", _PACKAGE.parent / "testbench" / "references")
_TEXTS: Final = ("model", "inputs", "model_sha256", "onnxruntime", "provider")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_UNREADABLE: Final = (  # what numpy and zipfile raise for a damaged archive
    OSError,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, eq=False)
class StoredReferences:
    """N pictures of S pixels a side with C channels, and the scores of onnxruntime for them.

    model: which model, in words. model_sha256, model_bytes: of its file. inputs: which pictures, in words.
    pictures: (N, S, S, C) uint8. mean, std: (C,) float64, of values 0 to 1. scores: (N, K) float32.
    onnxruntime, provider: the version and the execution provider that computed the scores.
    """

    model: str
    model_sha256: str
    model_bytes: int
    inputs: str
    pictures: Pixels
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    scores: Scores
    onnxruntime: str
    provider: str
    path: Path = Path()

    def normalised(self) -> Floats:
        """Return the pictures as the model takes them: (N, C, S, S) float32."""
        return normalise(self.pictures, self.mean.tolist(), self.std.tolist())

    def write(self, path: Path) -> None:
        """Write the file: the same bytes for the same references. Raises ModelError where it cannot be written."""
        fields: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "path"}
        with atomic_writer(path) as stream:
            np.savez_compressed(stream, **fields)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. Raises InputError, which names the file, where it is damaged or has other fields."""
        try:
            if not zipfile.is_zipfile(path):
                raise zipfile.BadZipFile("it is not a .npz archive, or is truncated")
            with np.load(path, allow_pickle=False) as archive:
                fields = {name: archive[name] for name in archive.files}
        except _UNREADABLE as error:
            raise InputError(f"stored references '{printable(str(path))}' cannot be read: {error}") from error
        if fault := _fault(fields):
            raise InputError(f"stored references '{printable(str(path))}' are damaged: {fault}")
        plain: dict[str, Any] = {name: str(fields[name]) for name in _TEXTS}
        plain |= {name: fields[name] for name in ("pictures", "mean", "std", "scores")}
        return cls(path=path, model_bytes=int(fields["model_bytes"]), **plain)


def reference_files() -> list[Path]:
    """Return the files of all stored references, sorted by name; none where the installation has no such folder."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return sorted(folder.glob("*.npz")) if folder else []


def find_stored(model: OnnxFile, shape: tuple[int, ...], classes: int) -> StoredReferences | None:
    """Return the stored references of a model that takes (C, H, W) images, or None.

    A model is hashed only if its length is that of a known one. Files that are damaged, or hold arrays of another shape
    than `shape` and `classes`, are logged as warnings and left out.
    """
    candidates = [stored for stored in _readable() if stored.model_bytes == len(model.content)]
    if not candidates:
        return None
    digest = model.digest()
    for stored in candidates:
        if stored.model_sha256 == digest:
            _, height, width, channels = stored.pictures.shape
            if ((channels, height, width), stored.scores.shape[1]) == (shape, classes):
                return stored
            fault = f"pictures of shape {stored.pictures.shape[1:]}, scores of {stored.scores.shape[1]} classes"
            _warn(f"stored references '{printable(str(stored.path))}' are not for this model, which they name: {fault}")
    return None


def _readable() -> Iterator[StoredReferences]:
    for path in reference_files():
        try:
            yield StoredReferences.read(path)
        except InputError as error:
            _warn(str(error))


def _warn(fault: str) -> None:
    _log.warning("%s; they are not used: install vgg16gpu again", fault)


def _fault(fields: dict[str, npt.NDArray[Any]]) -> str:
    """Describe what is wrong with the fields of a file; empty where nothing is."""
    for name, dtype, rank in (
        ("pictures", np.uint8, 4),
        ("mean", np.float64, 1),
        ("std", np.float64, 1),
        ("scores", np.float32, 2),
        ("model_bytes", np.int64, 0),
    ):
        array = fields.get(name)
        if array is None or array.dtype != dtype or array.ndim != rank:
            found = "missing" if array is None else f"{array.dtype} of rank {array.ndim}"
            return f"'{name}' is {found}, {np.dtype(dtype)} of rank {rank} is needed"
    for name in _TEXTS:
        if name not in fields or fields[name].dtype.kind != "U" or fields[name].ndim:
            return f"'{name}' is not a text"
    if not _SHA256.fullmatch(str(fields["model_sha256"])):
        return f"'model_sha256' is {shown(str(fields['model_sha256']))}, 64 hexadecimal digits are needed"
    pictures, scores = fields["pictures"], fields["scores"]
    if not len(pictures) or len(scores) != len(pictures) or not scores.shape[1]:
        return f"there are {len(pictures)} pictures, and scores of shape {scores.shape}"
    if not len(fields["mean"]) == len(fields["std"]) == pictures.shape[3]:
        return f"there are {len(fields['mean'])} means and {len(fields['std'])} stds for {pictures.shape[3]} channels"
    if not all(np.isfinite(fields[name]).all() for name in ("mean", "std", "scores")) or not fields["std"].all():
        return "a number is NaN or infinite, or a std is 0"
    return ""
