"""A user's own inputs, as the networks of the ladder and of the lab take them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.content import IMAGE_SUFFIXES
from vgg16gpu.pictures.inputs import NamedInput, spec_of
from vgg16gpu.pictures.reading import read_inputs

MOST: Final = 100  # inputs; every network of a table is checked on all of them
NUMBERS: Final = (".txt", ".npy", ".npz")


def given_inputs(where: Path, model: Model, graph: Graph, shape: Shape) -> Array:
    """Read inputs from a file (.txt, .npy, .npz, a picture) or a folder: float32 (N, C, H, W) or (N, F).

    A folder with pictures is read for these alone. `graph` is the simplified one, `shape` that of its input with one
    image. Pictures are prepared as the model's metadata says, or as its graph lets assume. Raises InputError, also for
    more than MOST inputs, and ModelError for metadata that is wrong.
    """
    preprocess = model.preprocess(graph, shape) if len(shape) == 4 else None
    items = read_inputs(_files(where), spec_of(graph.input, shape[1:], preprocess))
    found = [_numbers(item, graph, preprocess) for item in islice(items, MOST + 1)]
    if len(found) > MOST:
        raise InputError(f"--inputs '{where}' holds more than {MOST} inputs; give fewer")
    return np.ascontiguousarray(np.concatenate(found))


def _files(where: Path) -> list[Path]:
    """Return the path itself, or the files of a folder that has no pictures. Raises InputError."""
    if not where.exists():  # nor "-": standard input cannot be read twice
        raise InputError(f"--inputs '{where}' does not exist")
    if not where.is_dir():
        return [where]
    files = sorted(path for path in where.iterdir() if path.is_file() and not path.name.startswith("."))
    if any(path.suffix.lower() in IMAGE_SUFFIXES for path in files):
        return [where]
    numbers = [path for path in files if path.suffix.lower() in NUMBERS]
    if not numbers:
        raise InputError(f"--inputs '{where}' has no files that end in {', '.join((*NUMBERS, *IMAGE_SUFFIXES))}")
    return numbers


def _numbers(item: NamedInput, graph: Graph, preprocess: Preprocess | None) -> Array:
    """Return one input with a batch of 1, in the graph's own order."""
    if item.array.dtype == np.uint8 and preprocess:
        return normalise(item.array.astype(np.uint8), preprocess.unit_mean, preprocess.unit_std)[np.newaxis]
    return graph.input.from_file(item.array.astype(np.float32)[np.newaxis])
