"""Read VGGs from state dicts: .pth and .safetensors files, names of keys, tensors as float32."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.onnx.file import MAX_RANK, map_weights
from vgg16gpu.compiler.vgg.architecture import CONVOLUTIONS, VARIANTS, Vgg
from vgg16gpu.compiler.vgg.forms import loaded_torch
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.shown import printable, shown

Floats = npt.NDArray[np.float32]

_ACCEPTED = "floating-point numpy arrays or torch tensors are accepted"


def is_tensor(value: Any) -> bool:
    """Return whether a value of a mapping is a tensor of some kind: one that has a shape, and is not a number."""
    torch = loaded_torch()
    return isinstance(value, np.ndarray | StoredTensor) or (torch is not None and isinstance(value, torch.Tensor))


def floats_of(name: str, value: Any) -> Floats:
    """Return a tensor as a C-contiguous float32 array: a view where it is one on the host, else a copy.

    Other floating-point types are rounded to float32 as torch's `.float()` does. Raises ModelError, which names the
    tensor, for one of other numbers, and one without values of its own (sparse, quantised, on the device "meta").
    """
    if isinstance(value, StoredTensor):
        found = value.floats()
        if found is None:
            raise ModelError(f"tensor '{name}' has element type {value.dtype}; F64, F32, F16 and BF16 are accepted")
        return found
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f":
            raise ModelError(f"tensor '{name}' is {shown(value)}; {_ACCEPTED}")
        with np.errstate(over="ignore", under="ignore"):
            return np.ascontiguousarray(value, "<f4")
    return _floats_of_torch(name, value)


def _floats_of_torch(name: str, value: Any) -> Floats:
    torch = loaded_torch()
    is_dense = value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"
    if not value.is_floating_point() or not is_dense:
        raise ModelError(f"tensor '{name}' is {value.dtype}, {value.layout}, on {value.device}; {_ACCEPTED}")
    try:
        found: Floats = value.detach().to("cpu", torch.float32).contiguous().numpy()
    except (RuntimeError, NotImplementedError, TypeError) as error:  # of subclasses without values: fake, batched
        raise ModelError(f"tensor '{name}' has no values ({_first_line(error)}); {_ACCEPTED}") from error
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


MOST_HEADER: Final = 100_000_000  # bytes; the format's own limit

_LENGTH: Final = 8  # bytes before the header
_METADATA: Final = "__metadata__"
_FLOATS: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BYTES: Final[Mapping[str, int]] = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}


class _DamagedError(Exception):
    """The message says what is wrong with the file."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in the file. dtype: as the format calls it."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def floats(self) -> npt.NDArray[np.float32] | None:
        """Return its values as float32: a view (maybe unaligned) if they are, else a copy; None for other numbers."""
        if self.dtype not in _FLOATS:
            return None
        array = np.frombuffer(self.data, _FLOATS[self.dtype]).reshape(self.shape)
        if self.dtype == "BF16":
            return (array.astype("<u4") << 16).view("<f4")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return array.astype("<f4", copy=False)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a .safetensors file by name, mapped. Raises ModelError for what is no such file."""
    data = map_weights(path)
    try:
        return _tensors(data)
    except (_DamagedError, InputError) as error:
        fault = f"is not a .safetensors file, or damaged: {error}; copy or download it again"
        raise ModelError(f"{printable(str(path))}: {fault}") from error


def _tensors(data: memoryview) -> dict[str, StoredTensor]:
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or length > min(len(data) - _LENGTH, MOST_HEADER):
        raise _DamagedError(f"its header would have {length:,} bytes, the file has {len(data):,}")
    text = bytes(data[_LENGTH : _LENGTH + length])
    if not text.startswith(b"{"):
        raise _DamagedError("its header does not begin with '{'")
    header = parse_json(text, "its header", MOST_HEADER)
    values = data[_LENGTH + length :]
    header.pop(_METADATA, None)
    found = {name: _tensor(name, entry, values) for name, entry in header.items()}
    end = 0
    for name, (first, last) in sorted(((name, entry["data_offsets"]) for name, entry in header.items()), key=_place):
        if first != end:
            raise _DamagedError(f"tensor {shown(name)} begins at byte {first:,}, where {end:,} is expected")
        end = last
    if end != len(values):
        raise _DamagedError(f"its tensors have {end:,} bytes, the file has {len(values):,} for them")
    return found


def _place(item: tuple[str, list[int]]) -> list[int]:
    return item[1]


def _tensor(name: str, entry: Any, values: memoryview) -> StoredTensor:
    """Check one entry of the header against the bytes that are there."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _DamagedError(f"tensor {shown(name)} has not just dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BYTES:
        raise _DamagedError(f"tensor {shown(name)} has element type {shown(dtype)}; known: {', '.join(_BYTES)}")
    if not _are_counts(shape) or len(shape) > MAX_RANK:
        raise _DamagedError(f"tensor {shown(name)} has the shape {shown(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(values):
        raise _DamagedError(f"tensor {shown(name)} has the offsets {shown(offsets)}, the file {len(values):,} bytes")
    need = math.prod(shape) * _BYTES[dtype]
    if offsets[1] - offsets[0] != need:
        given = offsets[1] - offsets[0]
        raise _DamagedError(f"tensor {shown(name)} of shape {shown(shape)} needs {need:,} bytes, it has {given:,}")
    return StoredTensor(dtype, tuple(shape), values[offsets[0] : offsets[1]])


def _are_counts(numbers: Any) -> bool:
    """Return whether it is a list of whole numbers that are not negative and below 2^62."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


ACCEPTED: Final = (
    f"accepted: torchvision's or timm's {', '.join(CONVOLUTIONS)}, with batch normalisation or without, whole or "
    "`.features` alone; for other nets write ONNX with torch.onnx.export"
)

_MOST_LISTED: Final = 3
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod)\.")
_FEATURE: Final = re.compile(r"\d{1,6}\.\w+", re.ASCII)
_TIMM: Final = (("pre_logits.fc1", "classifier.0"), ("pre_logits.fc2", "classifier.3"), ("head.fc", "classifier.6"))
_COUNTER: Final = ".num_batches_tracked"
_NESTED: Final = ("state_dict", "model_state_dict")  # where checkpoints of a training have it


@dataclass(frozen=True, eq=False)
class Weights:
    """A net, and its tensors by the names of its graph."""

    net: Vgg
    arrays: Mapping[str, Floats]


def check_arch(arch: str | None) -> None:
    """Raise ModelError for a name that is none of `VARIANTS`."""
    if arch is not None and arch not in VARIANTS:
        raise ModelError(f"arch is {shown(arch)}; choose one of {', '.join(VARIANTS)}")


def read_weights(state: Mapping[Any, Any], arch: str | None = None, depth: int | None = None) -> Weights:
    """Return the net that a state dict is of, and its weights as float32.

    arch: one of `VARIANTS`; None: the one whose names are there. depth: how many layers of `features` are meant, of a
    net without classifier; None: all. Raises ModelError, which lists what is missing, left over, or of another shape.
    """
    check_arch(arch)
    tensors = _renamed(_flat(state))
    shapes = {name: _shape(name, value) for name, value in tensors.items()}
    known = set(shapes)
    if arch is None:
        if not {"features.0.weight"} & known:
            raise ModelError(f"these are not the weights of a VGG: found {_listed(known)}; {ACCEPTED}")
        arch = min(VARIANTS, key=lambda name: len(_feature_names(name, depth) ^ _only_features(known)))
    net = _net(arch, shapes, depth)
    expected = {name: shape for layer in net.layers for name, shape in layer.parameters}
    _compare(arch, expected, shapes)
    return Weights(net, {name: floats_of(name, tensors[name]).reshape(shape) for name, shape in expected.items()})


def _flat(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the mapping that has the tensors: the one inside of a checkpoint, else itself."""
    if not any(is_tensor(value) for value in state.values()):
        for key in _NESTED:
            if isinstance(inner := state.get(key), Mapping):
                return inner
    return state


def _renamed(state: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the tensors under torchvision's names, without counters of batches."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(key, str):
            raise ModelError(f"the state dict has the key {shown(key)}; its keys are the names of tensors")
        name = _WRAPPERS.sub("", key)
        if name.endswith(_COUNTER) or not is_tensor(value):
            continue
        for theirs, ours in _TIMM:
            if name.startswith(f"{theirs}."):
                name = f"{ours}{name.removeprefix(theirs)}"
        if name in found:
            raise ModelError(f"the state dict has '{printable(name)}' twice, with and without a prefix; give one net")
        found[name] = value
    is_features = bool(found) and all(_FEATURE.fullmatch(name) for name in found)
    return {f"features.{name}": value for name, value in found.items()} if is_features else found


def _shape(name: str, value: Any) -> tuple[int, ...]:
    """Return a tensor's shape; that of timm's convolutions as the fully connected layer that they are."""
    try:
        shape = tuple(value.shape)
    except RuntimeError as error:  # of a nested tensor
        raise ModelError(f"tensor '{printable(name)}' has no shape; {ACCEPTED}") from error
    if name in ("classifier.0.weight", "classifier.3.weight") and len(shape) == 4:
        return shape[0], shape[1] * shape[2] * shape[3]
    return shape


def _net(arch: str, shapes: Mapping[str, tuple[int, ...]], depth: int | None) -> Vgg:
    """Return the net of a name with the widths that are there."""
    width = shapes.get("features.0.weight", (64,))[:1] or (64,)
    has_classifier = depth is None and any(name.startswith("classifier.") for name in shapes)
    if not has_classifier:
        return Vgg.named(arch, width=width[0], depth=depth or len(Vgg.named(arch).convolutional))
    hidden, classes = (
        (shapes.get(f"classifier.{index}.weight") or (usual,))[0] for index, usual in ((0, 4096), (6, 1000))
    )
    return Vgg.named(arch, width=width[0], hidden=hidden, classes=classes)


@cache
def _feature_names(arch: str, depth: int | None) -> frozenset[str]:
    layers = Vgg.named(arch, depth=depth).convolutional
    return frozenset(name for layer in layers for name, _ in layer.parameters)


def _only_features(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("features.")}


def _compare(arch: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError for names and shapes that differ."""
    missing = [name for name in expected if name not in found]
    surplus = [name for name in found if name not in expected]
    misshaped = [
        f"{name} {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    kinds = (("missing", missing), ("not known", surplus), ("of another shape", misshaped))
    if faults := [f"{what}: {_listed(names)}" for what, names in kinds if names]:
        raise ModelError(f"these are not the weights of {arch}: {'; '.join(faults)}; {ACCEPTED}")


def _listed(names: Iterable[str]) -> str:
    """Return the first few of the names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{', '.join(printable(name)[:200] for name in names[:_MOST_LISTED]) or 'no tensors'}{more}"
