"""What a benchmark of the road from a folder to rows is asked for, and the folder and model once they are opened."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.choices import CPU
from vgg16gpu.pictures.inputs import InputSpec, listed, spec_of
from vgg16gpu.pictures.listing import Listing

REPEATS: Final = 3
COMPUTING_SECONDS: Final = 3.0  # of load for the engine alone, in each repeat
TOP: Final = 5  # classes of each picture, as `infer` writes by default
PEERS: Final = ("torch",)


@dataclass(frozen=True)
class Wanted:
    """What to measure. batch, size: None as `infer` chooses; memory: how many pictures, each a process of its own.

    devices: several that share a whole run, in place of `device`; () for that alone. decode: who decodes JPEG,
    "cpu" and "gpu" or one of them; each has whole runs of its own.
    """

    folder: Path
    model: Model
    device: str = "auto"
    precisions: tuple[str, ...] = ("fp32",)
    kernels: str = "auto"
    size: tuple[int, int] | None = None
    batch: int | None = None
    repeats: int = REPEATS
    seconds: float = COMPUTING_SECONDS
    against: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    decode: tuple[str, ...] = (CPU,)


@dataclass(frozen=True)
class Work:
    """The pictures of the folder, and what the model makes of one. shape: (C, H, W)."""

    wanted: Wanted
    listing: Listing
    nbytes: int  # of all files
    graph: Graph
    shape: tuple[int, int, int]
    preprocess: Preprocess

    @classmethod
    def of(cls, wanted: Wanted) -> Work:
        """List the folder, look at the model. Raises InputError without a picture, ModelError, for numbers as well."""
        if not wanted.folder.is_dir():
            what = "is no folder" if wanted.folder.exists() else "does not exist"
            raise InputError(f"--pictures '{wanted.folder}' {what}; name a folder of pictures")
        listing = listed([wanted.folder])
        graph = wanted.model.graph(wanted.precisions[0])
        _, *sample = resolve_input_shape(graph, graph.input.shape[0] or 1, wanted.size)
        if len(sample) != 3:
            raise InputError(
                f"{wanted.model.name} takes {sample[0]} numbers, and --pictures pictures; name another model"
            )
        shape = (sample[0], sample[1], sample[2])
        nbytes = sum(os.stat(file).st_size for file in listing.files)  # noqa: PTH116 - many files
        return cls(wanted, listing, nbytes, graph, shape, wanted.model.preprocess(graph, (1, *shape)))

    @property
    def files(self) -> tuple[str, ...]:
        """The pictures, in order."""
        return self.listing.files

    @property
    def spec(self) -> InputSpec:
        """What one sample must be."""
        return spec_of(self.graph.input, self.shape, self.preprocess)
