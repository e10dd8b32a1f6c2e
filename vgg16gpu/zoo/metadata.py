"""What a model file says about itself, so that `infer` needs no options for it: ONNX `metadata_props`.

| key               | value                                                                       |
|-------------------|-----------------------------------------------------------------------------|
| `vgg16gpu.mean`   | JSON list, one number a channel: input = (pixel / 255 - mean) / std         |
| `vgg16gpu.std`    | JSON list, one number a channel                                             |
| `vgg16gpu.labels` | JSON list of class names, one per score                                     |
| `vgg16gpu.note`   | one line for people, printed beside the answer                              |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vgg16gpu.onnx_file import open_onnx

MEAN_KEY: Final = "vgg16gpu.mean"
STD_KEY: Final = "vgg16gpu.std"
LABELS_KEY: Final = "vgg16gpu.labels"
NOTE_KEY: Final = "vgg16gpu.note"

RANDOM_NOTE: Final = "random weights: the names mean nothing"


def model_metadata(path: str | Path) -> Mapping[str, str]:
    """The metadata of an ONNX file. Reads its structure only, not its weights. Raises ModelError if it is no model."""
    return {entry.key: entry.value for entry in open_onnx(path).model.metadata_props}
