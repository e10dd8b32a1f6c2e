"""Whose weights a model has: torchvision's, random ones, or nobody knows.

Three marks tell: the metadata of a file of `model make`; the SHA-256 of a .pth file, which begins with the eight digits
that torch hub has in the file's name; and the numbers of torchvision's vgg16 that are published of its conv1_1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.onnx.metadata import RANDOM_NOTE
from vgg16gpu.compiler.vgg.forms import PICKLED
from vgg16gpu.compiler.vgg.source import FILES
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import printable

# conv1_1 of `torchvision.models.vgg16(weights="IMAGENET1K_V1")` as torch prints it, to four digits: the first of its 64
# filters, (R, G, B) x 3 x 3, and its biases. Both stand in a public write-up of Udacity's course project "Developing an
# AI application", which loads vgg16-397923af.pth, freezes `features` and prints the state dict it saved; the biases,
# digit for digit, in a public example of torchvision 0.8.2 that prints `vgg16(pretrained=True).features[0].bias`.
# The biases alone would not tell a net whose filters were turned to BGR.
_FILTER: Final = (
    ((-0.5537, 0.1427, 0.5290), (-0.5831, 0.3566, 0.7657), (-0.6902, -0.0480, 0.4841)),
    ((0.1755, 0.0099, -0.0814), (0.0441, -0.0703, -0.2604), (0.1324, -0.1728, -0.1323)),
    ((0.3130, -0.1659, -0.4275), (0.4752, -0.0827, -0.4870), (0.6320, 0.0193, -0.2775)),
)
# fmt: off
_BIASES: Final = (
    0.4034, 0.3778, 0.4644, -0.3228, 0.3940, -0.3953, 0.3951, -0.5496, 0.2693, -0.7602, -0.3508, 0.2334, -1.3239,
    -0.1694, 0.3938, -0.1026, 0.0460, -0.6995, 0.1549, 0.5628, 0.3011, 0.3425, 0.1073, 0.4651, 0.1295, 0.0788, -0.0492,
    -0.5638, 0.1465, -0.3890, -0.0715, 0.0649, 0.2768, 0.3279, 0.5682, -1.2640, -0.8368, -0.9485, 0.1358, 0.2727,
    0.1841, -0.5325, 0.3507, -0.0827, -1.0248, -0.6912, -0.7711, 0.2612, 0.4033, -0.4802, -0.3066, 0.5807, -1.3325,
    0.4844, -0.8160, 0.2386, 0.2300, 0.4979, 0.5553, 0.5230, -0.2182, 0.0117, -0.5516, 0.2108,
)
# fmt: on
_HALF_A_DIGIT: Final = 0.5001e-4  # how far a number is from its four digits, and what float32 adds
_WEIGHTS_SHAPE: Final = (64, 3, 3, 3)
_DIGITS: Final[Mapping[str, str]] = {Path(name).stem.partition("-")[2]: name for name in FILES.values()}
_FILES_REMEMBERED: Final = 64


class ModelOrigin(Protocol):
    """What is asked of a `vgg16gpu.Model`, whose module imports this folder."""

    @property
    def is_random(self) -> bool:
        """Return whether its metadata says that its weights are random."""

    @property
    def is_on_disk(self) -> bool:
        """Return whether it was read from a file."""

    @property
    def path(self) -> Path:
        """Its file."""

    def loaded(self) -> Graph:
        """Return the graph as the file has it."""


@dataclass(frozen=True)
class Provenance:
    """Whose weights a model has. reason: how that is known, a clause that goes on behind the model's name.

    arch: which of torchvision's nets, "vgg16" say; None of others.
    """

    kind: Literal["torchvision", "random", "unknown"]
    reason: str
    arch: str | None = None


def provenance(model: ModelOrigin) -> Provenance:
    """Return whose weights a model has; what none of the marks tells is "unknown".

    A .pth file is read once more for its SHA-256; the process remembers that for as long as path, size and time of the
    file stay. Of a net whose conv1_1 is torchvision's the other layers are taken for torchvision's, too. Raises
    ModelError for a file that cannot be read, and for a model that cannot.
    """
    if model.is_random:
        return Provenance("random", f"its metadata says '{RANDOM_NOTE}'")
    if model.is_on_disk and model.path.suffix.lower() in PICKLED and (name := _hub_name(model.path)):
        return Provenance("torchvision", f"its SHA-256 is that of torchvision's {name}", name.partition("-")[0])
    if _has_published_numbers(model):
        reason = "its conv1_1 has the numbers that are published of torchvision's vgg16"
        return Provenance("torchvision", reason, "vgg16")
    return Provenance("unknown", "nothing in it says whose weights it has")


def _hub_name(path: Path) -> str | None:
    """Return the name that torch hub has for a file with these bytes, or None."""
    try:
        status = path.stat()
        digest = _sha256(path.absolute(), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{printable(str(path))}: cannot be read ({error.strerror}); check the path") from error
    return _DIGITS.get(digest[:8])


@lru_cache(_FILES_REMEMBERED)
def _sha256(path: Path, size: int, mtime: int) -> str:
    """Return the SHA-256 of a file; size and mtime (ns) are there to remember it by."""
    del size, mtime
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _has_published_numbers(model: ModelOrigin) -> bool:
    """Return whether the first convolution is conv1_1 of torchvision's vgg16."""
    first = next((op for op in model.loaded().ops if isinstance(op, Conv)), None)
    if first is None or first.weight.shape != _WEIGHTS_SHAPE or first.bias is None:
        return False
    pairs = ((first.weight[0], _FILTER), (first.bias, _BIASES))
    return all(bool((np.abs(found - np.array(known)) <= _HALF_A_DIGIT).all()) for found, known in pairs)
