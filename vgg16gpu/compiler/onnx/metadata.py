"""What a model file says about itself, so that `infer` needs no options for it: ONNX `metadata_props`.

| key                       | value                                                                               |
|---------------------------|-------------------------------------------------------------------------------------|
| `vgg16gpu.preprocess`     | what is done to pictures: JSON object, the fields of `Preprocess`     |
| `vgg16gpu.mean`, `...std` | the short form: JSON lists, one number a channel, input = (pixel / 255 - mean) / std |
| `vgg16gpu.labels`         | JSON list of class names, one per score                                             |
| `vgg16gpu.note`           | one line for people, printed beside the answer                                      |

The short form is for RGB, cropped, or grey, stretched (`default_preprocess`); it counts where the long one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto, StringStringEntryProto

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.onnx.file import OnnxFile
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.preprocessing import Origin, Preprocess, default_preprocess
from vgg16gpu.io.shown import shown

PREPROCESS_KEY: Final = "vgg16gpu.preprocess"
MEAN_KEY: Final = "vgg16gpu.mean"
STD_KEY: Final = "vgg16gpu.std"
LABELS_KEY: Final = "vgg16gpu.labels"
NOTE_KEY: Final = "vgg16gpu.note"

RANDOM_NOTE: Final = "random weights: the names mean nothing"


def metadata_of(file: OnnxFile) -> Mapping[str, str]:
    """Return the metadata of an ONNX file."""
    return {entry.key: entry.value for entry in file.model.metadata_props}


def encoded(metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of metadata as the end of an ONNX file; appended to a whole file, they add it."""
    entries = [StringStringEntryProto(key=key, value=value) for key, value in metadata.items()]
    return bytes(ModelProto(metadata_props=entries).SerializeToString())


def model_preprocess(path: str | Path, metadata: Mapping[str, str], graph: Graph, shape: Shape) -> Preprocess:
    """Return the preprocessing of pictures from a file's metadata, else the one assumed for its simplified graph.

    `shape` is (N, C, H, W). Raises ModelError for metadata that is wrong or of another number of channels.
    """
    try:
        found = _preprocess_in(path, metadata, shape[1])
    except InputError as error:
        raise ModelError(f"{path}: its metadata '{_used_key(metadata)}' is wrong: {error}; correct it") from error
    if found:
        return found
    from vgg16gpu.compiler.graph.first_layers import assumed  # noqa: PLC0415 - a file with metadata does without

    return assumed(graph, shape)


def metadata_list(metadata: Mapping[str, str], key: str, path: str | Path) -> list[Any]:
    """Return a JSON list of the metadata; empty without that key. Raises ModelError if it is not a list."""
    try:
        values = parse_json(metadata.get(key, "[]"), key)
    except InputError:
        values = None
    if not isinstance(values, list):
        raise ModelError(f"{path}: its metadata '{key}' is {shown(metadata[key])}, expected a JSON list")
    return values


def _preprocess_in(path: str | Path, metadata: Mapping[str, str], channels: int) -> Preprocess | None:
    if PREPROCESS_KEY in metadata:
        found = Preprocess.from_json(metadata[PREPROCESS_KEY]).with_origin(Origin("file"))
    elif MEAN_KEY in metadata or STD_KEY in metadata:
        usual = default_preprocess(channels)
        mean, std = (tuple(metadata_list(metadata, key, path)) for key in (MEAN_KEY, STD_KEY))
        found = replace(
            usual, mean=mean if MEAN_KEY in metadata else usual.mean, std=std if STD_KEY in metadata else usual.std
        )
        missing = [key for key in (MEAN_KEY, STD_KEY) if key not in metadata]
        found = found.with_origin(
            Origin("assumed", f"the file's metadata has no {missing[0]}") if missing else Origin("file")
        )
    else:
        return None
    if found.channels != channels:
        raise InputError(f"it is of {found.channels} channels, the model takes {channels}")
    return found


def _used_key(metadata: Mapping[str, str]) -> str:
    return next(key for key in (PREPROCESS_KEY, MEAN_KEY, STD_KEY) if key in metadata)
