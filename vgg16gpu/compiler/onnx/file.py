"""An ONNX file, opened without copying its weights.

VGG16 is 553 MB of weights and a few kB of structure. The file is mapped, its wire format walked once (`wire.py`), and
a small message without the large tensor bodies parsed by `onnx`. Large tensors are handed out as read-only views of the
mapping, wherever they lie: in the file, in a Constant node, or in external data. So loading takes almost no memory.

Nothing in a file is believed before it is checked: sizes against what is there before anything is allocated, external
data against the model's folder. Opening a file allocates at most 20 bytes for each byte of its structure, which is all
but the large tensor bodies, 256 for each field, and 1 MiB; structure is limited too (`wire.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import mmap
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, TensorProto

from vgg16gpu.compiler.onnx.normal_form import normalise
from vgg16gpu.compiler.onnx.wire import (
    BODIES,
    CODED,
    INSIDE,
    LARGE_CODED,
    MalformedError,
    UnreasonableError,
    decode_varints,
    strip_model,
)
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shipped import NAME
from vgg16gpu.io.shown import printable

Constant: TypeAlias = npt.NDArray[Any]

_log = logging.getLogger(__name__)

_OF_KERAS: Final = (".keras", ".h5", ".hdf5")
LFS_POINTER: Final = b"version https://git-lfs"
MAX_RANK: Final = 32  # dimensions of a tensor; what every numpy takes
MOST_WRITTEN: Final = (1 << 31) - (1 << 20)  # bytes of weights; protobuf's limit, less what the nodes need

_MOST_LOOKED_AT: Final = 10_000  # files of a folder, for one of a near name
_IN_MEMORY: Final = Path("the model in memory")
IR_VERSION, OPSET = 8, 17  # of a model that is made here: what torch's exporter writes

_DTYPES: Final[Mapping[int, np.dtype[Any]]] = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.DOUBLE: np.dtype("<f8"),
    TensorProto.FLOAT16: np.dtype("<f2"),
    TensorProto.INT32: np.dtype("<i4"),
    TensorProto.INT64: np.dtype("<i8"),
    TensorProto.INT8: np.dtype("i1"),
    TensorProto.UINT8: np.dtype("u1"),
    TensorProto.BOOL: np.dtype("?"),
}
# The field that holds the values of an element type where raw_data does not; int32_data for all others.
_TYPED: Final[Mapping[int, str]] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
}
_HELD: Final = (*BODIES, "uint64_data", "string_data")  # every field that can hold values


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """A parsed model whose large tensors are still in the file. The file must not be rewritten in place meanwhile.

    path: of the file, or what errors call a model in memory. folder: where its external data lies, if it may have any.
    A model that was made of arrays (`hold_arrays`) has its initializers there, and `path` may be the file of these.
    """

    path: Path
    folder: Path | None
    model: onnx.ModelProto
    _data: memoryview
    _external: dict[str, memoryview] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _arrays: Mapping[str, Constant] = field(default_factory=dict, repr=False)

    @property
    def is_on_disk(self) -> bool:
        """Return whether `path` is that of a file."""
        return self.path is not _IN_MEMORY

    @property
    def is_onnx(self) -> bool:
        """Return whether `content` is that of the file, without a copy; not so of a model that was made of arrays."""
        return not self._arrays

    @property
    def content(self) -> memoryview:
        """The bytes of the file, without external data. A model made of arrays is written as one ONNX file, a copy.

        Raises ModelError where that would be too large.
        """
        return self._data if self.is_onnx else memoryview(self._written())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file, and those of external data that were read from beside it; none of a model in memory."""
        folder = self.folder or Path()
        return (self.path, *(folder / name.replace("\\", "/") for name in self._external)) if self.is_on_disk else ()

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the file, and of the external data that was read from beside it.

        For a model made of arrays: of its graph and its weights, so that it does not depend on their origin.
        """
        digest = hashlib.sha256(self._data)
        for name in sorted(self._arrays):
            digest.update(np.ascontiguousarray(self._arrays[name]).view(np.uint8).data)
        for name in sorted(self._external):
            digest.update(self._external[name])
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a model in memory, as its bytes or its arrays. One of a file is opened anew: `Model` does."""
        if self.is_onnx:
            return parse_onnx, (bytes(self._data), self.folder)
        graph = GraphProto()
        graph.CopyFrom(self.model.graph)
        graph.ClearField("initializer")
        metadata = {entry.key: entry.value for entry in self.model.metadata_props}
        return hold_arrays, (graph, dict(self._arrays), metadata)

    def warn(self, message: str) -> None:
        """Log a warning that names this file, once however often it is loaded."""
        if message not in self._said:
            self._said.add(message)
            _log.warning("%s: %s", printable(str(self.path)), message)

    def error(self, message: str) -> ModelError:
        """Return a ModelError that names this file."""
        return ModelError(f"{printable(str(self.path))}: {message}")

    def array(self, tensor: TensorProto) -> Constant:
        """Return a tensor of this model: a read-only view of the mapping when it is large (maybe unaligned).

        Only booleans, and values in int32_data or int64_data, are always decoded into memory of their own. Raises
        ModelError when its type is unknown or its bytes are missing, short, or outside the model's folder.
        """
        if tensor.name in self._arrays:
            return self._arrays[tensor.name]
        name = tensor.name or "of a Constant node"
        dtype = _DTYPES.get(tensor.data_type)
        if dtype is None:
            kind = element_type(tensor.data_type)
            raise self.error(f"tensor '{name}' has element type {kind}; export the model in float32")
        shape = self._shape(tensor, name, dtype)
        held = [place for place in _HELD if len(getattr(tensor, place))]
        outside = tensor.data_location == TensorProto.EXTERNAL
        if len(held) + outside > 1:
            places = " and ".join([*held, *["external data"] * outside])
            raise self.error(f"tensor '{name}' has values in {places}, one place is needed; export the model again")
        if outside:
            array = self._mapped(tensor, name, dtype, shape)
        elif held == ["raw_data"]:
            self._fits(name, shape, math.prod(shape) * dtype.itemsize, len(tensor.raw_data))
            array = np.frombuffer(tensor.raw_data, dtype)
        else:
            array = self._typed(tensor, name, dtype, held)
            self._holds(name, shape, array.size)
        array = (array.view(np.uint8) != 0 if dtype == np.bool_ else array).reshape(shape)
        array.flags.writeable = False
        return array

    def _written(self) -> bytes:
        nbytes = sum(array.nbytes for array in self._arrays.values())
        if nbytes > MOST_WRITTEN:
            raise self.error(f"has {nbytes:,} bytes of weights; one ONNX file holds at most {MOST_WRITTEN:,}")
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            tensor.raw_data = self._arrays[tensor.name].tobytes()
        return bytes(model.SerializeToString())

    def _shape(self, tensor: TensorProto, name: str, dtype: np.dtype[Any]) -> tuple[int, ...]:
        rank = len(tensor.dims)
        if rank > MAX_RANK:
            raise self.error(f"tensor '{name}' has {rank} dimensions, at most {MAX_RANK} are supported")
        shape = tuple(tensor.dims)
        if any(dim < 0 for dim in shape):
            raise self.error(f"tensor '{name}' has a negative dimension {shape}; the file is broken, export it again")
        # An empty tensor needs no bytes, but numpy multiplies its other dimensions nevertheless.
        if 0 in shape and math.prod(dim or 1 for dim in shape) * dtype.itemsize >= 1 << 62:
            raise self.error(f"tensor '{name}' has the dimensions {shape}; the file is broken, export it again")
        return shape

    def _fits(self, name: str, shape: tuple[int, ...], need: int, given: int) -> None:
        if given != need:
            raise self.error(f"tensor '{name}' of shape {shape} needs {need} bytes, the file gives it {given}")

    def _holds(self, name: str, shape: tuple[int, ...], count: int) -> None:
        if count != math.prod(shape):
            raise self.error(f"tensor '{name}' does not hold its {shape} values but {count}; export the model again")

    def _typed(self, tensor: TensorProto, name: str, dtype: np.dtype[Any], held: list[str]) -> Constant:
        """Return the values of a typed field."""
        place = _TYPED.get(tensor.data_type, "int32_data")
        if held and held != [place]:
            raise self.error(
                f"tensor '{name}' of element type {element_type(tensor.data_type)} has its values in {held[0]}, "
                f"where {place} is needed; export the model again"
            )
        values = getattr(tensor, place)
        return (
            self._from_integers(name, np.array(values, np.int64), dtype) if place in CODED else np.array(values, dtype)
        )

    def _from_integers(self, name: str, values: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> Constant:
        """Convert a field of integers to an element type: the numbers themselves, or the bits of float16."""
        stored = np.dtype("<u2") if dtype == np.float16 else np.dtype("u1") if dtype == np.bool_ else dtype
        limits = np.iinfo(stored)
        if values.size and not (limits.min <= values.min() and values.max() <= limits.max):
            raise self.error(
                f"tensor '{name}' has values from {values.min()} to {values.max()}, "
                f"{stored} takes {limits.min} to {limits.max}; export the model again"
            )
        return values.astype(stored).view(dtype)

    def _mapped(self, tensor: TensorProto, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Constant:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if len(entries) != len(tensor.external_data):
            raise self.error(f"tensor '{name}' says twice where its values are; export the model again")
        location = entries.get("location", "")
        source = self._data if location == INSIDE else self._external_data(name, location)
        count = math.prod(shape)
        coded = location == INSIDE and entries.get("field") in CODED
        need = count * dtype.itemsize
        offset, length = self._number(name, entries, "offset", 0), self._number(name, entries, "length", need)
        if not coded:
            self._fits(name, shape, need, length)
        if offset < 0 or length < 0 or offset + length > len(source):
            place = "" if location == INSIDE else f" in '{printable(location)}'"
            raise self.error(
                f"tensor '{name}' needs bytes {offset} to {offset + length}{place}, which has {len(source)}; "
                "the file is truncated, copy or download it again"
            )
        if isinstance(source.obj, mmap.mmap) and source.obj.size() < len(source):  # reading on would be a bus error
            raise self.error(f"tensor '{name}' is in a file that has become shorter; load the model again")
        if coded:
            return self._decoded(name, np.frombuffer(source, np.uint8, length, offset), shape, dtype)
        return np.frombuffer(source, dtype, count, offset)

    def _number(self, name: str, entries: Mapping[str, str], key: str, default: int) -> int:
        text = entries.get(key, str(default))
        if not re.fullmatch("-?[0-9]{1,100}", text):
            raise self.error(f"tensor '{name}': offset or length is not a number; export the model again")
        return int(text)

    def _decoded(
        self, name: str, data: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Constant:
        """Decode the numbers of a large packed field, piece by piece."""
        pieces = range(0, data.size, LARGE_CODED)
        self._holds(name, shape, sum(int(np.count_nonzero(data[at : at + LARGE_CODED] < 0x80)) for at in pieces))
        array = np.empty(math.prod(shape), dtype)
        done = at = 0
        while at < data.size:
            try:
                values, used = decode_varints(data[at : at + LARGE_CODED])
            except MalformedError as error:
                raise self.error(f"tensor '{name}' is damaged; copy or download the file again") from error
            array[done : done + values.size] = self._from_integers(name, values, dtype)
            done, at = done + values.size, at + used
        return array

    def _external_data(self, name: str, location: str) -> memoryview:
        if location not in self._external:
            self._external[location] = self._map_external(name, location)
        return self._external[location]

    def _map_external(self, name: str, location: str) -> memoryview:
        shown = printable(location)
        relative = PurePosixPath(location.replace("\\", "/"))
        parts = relative.parts
        if not parts or relative.is_absolute() or ".." in parts or ":" in parts[0] or "\0" in location:
            raise self.error(
                f"tensor '{name}' asks for external data at '{shown}'; only files in the model's own folder are read"
            )
        if self.folder is None:
            raise self.error(
                f"tensor '{name}' asks for external data at '{shown}'; say in which folder the model's files are"
            )
        folder = self.folder.resolve()
        target = Path(os.path.realpath(folder / relative))  # Path.resolve() raises for links that go in circles
        if not target.is_relative_to(folder):
            raise self.error(
                f"external data '{shown}' is a link that leaves the model's folder; put a copy beside the model"
            )
        try:
            return map_file(target)
        except FileNotFoundError:
            raise self.error(f"its external data '{shown}' is missing; put that file beside the model") from None
        except (OSError, UnreasonableError) as error:
            raise self.error(f"its external data '{shown}' {_problem(error)}") from error


def element_type(number: int) -> str:
    """Return onnx.proto's name of an element type; its number if it has none."""
    return TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else str(number)


def is_known_type(number: int) -> bool:
    """Return whether tensors of an element type can be read."""
    return number in _DTYPES


def open_onnx(path: str | Path) -> OnnxFile:
    """Map and parse an ONNX file. Raises ModelError with one line that says what the file is instead."""
    path = Path(path)
    named = printable(str(path))
    try:
        data = map_file(path)
    except FileNotFoundError as error:
        near = _near(path)
        remedy = f"did you mean '{printable(near)}'" if near else "`python -m vgg16gpu model make` writes a model"
        raise ModelError(f"{named}: no such file; {remedy}") from error
    except IsADirectoryError as error:
        raise ModelError(f"{named}: is a folder; name the .onnx file in it") from error
    except (OSError, ValueError, UnreasonableError) as error:
        raise ModelError(f"{named}: {_problem(error)}") from error
    return OnnxFile(path, Path(os.path.realpath(path.parent)), _parse(path, data), data)


def parse_onnx(data: bytes, folder: Path | None = None) -> OnnxFile:
    """Parse a model in memory; without `folder` it may have no external data. Raises ModelError as `open_onnx` does."""
    view = memoryview(data)
    try:
        _check_start(view)
    except UnreasonableError as error:
        raise ModelError(f"{_IN_MEMORY}: {error}") from error
    return OnnxFile(_IN_MEMORY, folder, _parse(_IN_MEMORY, view), view)


def hold_arrays(
    graph: GraphProto, arrays: Mapping[str, Constant], metadata: Mapping[str, str], path: Path | None = None
) -> OnnxFile:
    """Return a model whose initializers are these float32 arrays, which are neither copied nor written.

    graph: has no initializers. path: the file that the arrays are from; None: they are in memory alone.
    """
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="vgg16gpu", graph=graph)
    model.opset_import.append(onnx.OperatorSetIdProto(version=OPSET))
    views = {}
    for name, array in arrays.items():
        model.graph.initializer.append(TensorProto(name=name, dims=array.shape, data_type=TensorProto.FLOAT))
        views[name] = array.view()
        views[name].flags.writeable = False
    data = memoryview(model.SerializeToString(deterministic=True))
    model.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in metadata.items())
    return OnnxFile(path or _IN_MEMORY, None, model, data, _arrays=views)


def _parse(path: Path, data: memoryview) -> onnx.ModelProto:
    try:
        model = normalise(cast(onnx.ModelProto, onnx.ModelProto.FromString(strip_model(data))))
    except (MalformedError, DecodeError) as error:
        raise _not_a_model(path, data) from error
    except UnreasonableError as error:
        raise ModelError(f"{printable(str(path))}: {error}") from error
    if not model.HasField("graph"):
        raise _not_a_model(path, data)
    return model


def map_weights(path: Path) -> memoryview:
    """Return the bytes of a file that is no ONNX file, mapped read-only. Raises ModelError."""
    named = printable(str(path))
    try:
        return map_file(path)
    except FileNotFoundError as error:
        raise ModelError(f"{named}: no such file") from error
    except IsADirectoryError as error:
        raise ModelError(f"{named}: is a folder; name the file in it") from error
    except (OSError, ValueError, UnreasonableError) as error:
        raise ModelError(f"{named}: {_problem(error)}") from error


def map_file(path: Path) -> memoryview:
    """Map the bytes of a regular file, read-only. Raises OSError, ValueError or UnreasonableError."""
    _check_regular(path.stat())  # before it is opened: opening a device can do things
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(number)
        _check_regular(status)
        data = memoryview(mmap.mmap(number, status.st_size, access=mmap.ACCESS_READ) if status.st_size else b"")
    finally:
        os.close(number)
    _check_start(data)
    return data


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise UnreasonableError("is not a regular file; save the model to disk first")


def _check_start(data: memoryview) -> None:
    if len(data) == 0:
        raise UnreasonableError("is empty; copy or download it again")
    if bytes(data[: len(LFS_POINTER)]) == LFS_POINTER:
        raise UnreasonableError("is a git-LFS pointer, not the file itself; run `git lfs pull`")


def _near(path: Path) -> str:
    """Return an existing model whose name is near to that of a missing one; "" if there is none."""
    import difflib  # noqa: PLC0415 - for a message

    names = {NAME: NAME} if path.parent == Path() else {}
    try:
        found = itertools.islice(path.parent.iterdir(), _MOST_LOOKED_AT)
        names |= {each.name: str(each) for each in found if each.suffix.lower() == ".onnx"}
    except OSError:
        pass
    close = difflib.get_close_matches(path.name, names, 1, cutoff=0.7)
    return names[close[0]] if close else ""


def _problem(error: Exception) -> str:
    if isinstance(error, UnreasonableError):
        return str(error)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"cannot be read ({reason}); check the path and its permissions"


def _not_a_model(path: Path, data: memoryview) -> ModelError:
    # Every exporter writes ir_version first: field 1 as a varint.
    if data[0] == 1 << 3:
        reason = f"is truncated or damaged after {len(data)} bytes; copy or download it again"
    else:
        how = 'model.export("m.onnx", format="onnx")' if path.suffix in _OF_KERAS else "torch.onnx.export"
        reason = f"is not an ONNX model; export one, for example with {how}"
    return ModelError(f"{printable(str(path))}: {reason}")
