"""Small valid models of every form that is accepted, to be damaged by `cases.py`, and the files around them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

Inputs: TypeAlias = Mapping[str, npt.NDArray[Any]]

CORPUS: Final = Path(__file__).parent / "corpus"  # its README says what each file is
# In this order: a case is damaged by its number.
NAMES: Final = (
    *("vgg", "norm", "dropout", "view", "dynamo", "branches", "external", "functions", "quantised", "inputs"),
    *("general", "alex", "half"),
)
WEIGHTS: Final = "weights.bin"
SECRET: Final = "secret.bin"  # beside the model's folder, never in it
FLOATS: Final = np.random.default_rng(1).uniform(-1, 1, 4096).astype(np.float32).tobytes()


@dataclass(frozen=True, eq=False)
class Seed:
    """A valid model with an input for it and the files that lie beside it.

    tolerance: how far from onnxruntime's answer another one may be, as a part of the largest value.
    """

    name: str
    data: bytes
    inputs: Inputs
    files: Mapping[str, bytes] = field(default_factory=dict)
    tolerance: float = 1e-4


def furnish(folder: Path) -> None:
    """Put into a folder, and beside it, what the paths in hostile models lead to."""
    files = folder / "model"
    files.mkdir(parents=True)
    (folder / SECRET).write_bytes(FLOATS)
    (folder / "beside").mkdir()
    (folder / "beside" / SECRET).write_bytes(FLOATS)
    for seed in seeds():
        for name, content in seed.files.items():
            (files / name).write_bytes(content)
    (files / "empty.bin").touch()
    (files / "pointer.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    (files / "folder").mkdir()
    for link, target in LINKS.items():
        (files / link).symlink_to(target)
    os.mkfifo(files / "pipe")


LINKS: Final = {
    "link.bin": f"../{SECRET}",
    "absolute.bin": "/etc/passwd",
    "zero.bin": "/dev/zero",
    "loop.bin": "loop.bin",
    "away": "../beside",
    "here.bin": WEIGHTS,
}
PATHS: Final = (
    f"../{SECRET}",
    f"folder/../../{SECRET}",
    f"./../{SECRET}",
    f"..\\{SECRET}",
    f"away/{SECRET}",
    "/etc/passwd",
    "//etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    "file:///etc/passwd",
    "C:\\weights.bin",
    "pipe",
    "folder",
    "empty.bin",
    "pointer.bin",
    "absent.bin",
    "model.onnx",
    "",
    ".",
    "..",
    "\0",
    "a\nb",
    "a" * 5000,
    "weights.bin/",
    "weights.bin/x",
    "./weights.bin",
    *LINKS,
)


@cache
def seeds() -> tuple[Seed, ...]:
    """Every seed model."""
    return tuple(map(_seed, NAMES))


def _seed(name: str) -> Seed:
    data = (CORPUS / f"{name}.onnx").read_bytes()
    graph = ModelProto.FromString(data).graph
    random = np.random.default_rng(len(name))
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {}
    for value in graph.input:
        if value.name not in weights:
            shape = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            inputs[value.name] = random.uniform(-1, 1, shape).astype(dtype)
    files = {WEIGHTS: (CORPUS / WEIGHTS).read_bytes()} if name == "external" else {}
    return Seed(name, data, inputs, files, 5e-3 if name == "half" else 1e-4)  # onnxruntime rounds after every node


def send_out(tensor: TensorProto, location: str, offset: object, length: object) -> None:
    for place in ("raw_data", "float_data"):
        tensor.ClearField(place)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
