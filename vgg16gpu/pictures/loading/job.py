"""What processes that load pictures are told, in a memory file that all of them map: names of files are there once."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.inputs import InputSpec

_HEAD: Final = 8  # bytes: the length of the description
_ORDER: Final = "little"


@dataclass(frozen=True)
class LoaderJob:
    """For each process the same. threads: in it; where it `begins_alone` one begins, as `Loader` says.

    nbytes, count, rows, room_nbytes: of the ring. first: of all files, the (file, sample) to begin with.
    """

    spec: InputSpec
    nbytes: int
    count: int
    rows: int
    room_nbytes: int
    threads: int
    begins_alone: bool
    first: tuple[int, int]

    def written(self, files: Sequence[str]) -> int:
        """The descriptor of a new memory file with this and the names of the files."""
        fields = asdict(replace(self, spec=replace(self.spec, preprocess=None)))
        preprocess = self.spec.preprocess
        fields["spec"]["preprocess"] = preprocess.fields() if preprocess else None
        text = json.dumps(fields).encode()
        names = [os.fsencode(name) for name in files]
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        descriptor = os.memfd_create("vgg16gpu-files")
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(len(text).to_bytes(_HEAD, _ORDER) + len(names).to_bytes(_HEAD, _ORDER) + text)
            file.write(ends.tobytes())
            file.writelines(names)
        return descriptor


class Names(Sequence[str]):
    """Names of files in a memory file; each becomes a text when it is asked for."""

    def __init__(self, data: memoryview, ends: npt.NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return os.fsdecode(self._data[self._ends[index] : self._ends[index + 1]].tobytes())


def read_job(descriptor: int) -> tuple[LoaderJob, Names]:
    """What `written` wrote, for as long as this process runs."""
    data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    length, count = (int.from_bytes(data[i * _HEAD : (i + 1) * _HEAD], _ORDER) for i in range(2))
    start = 2 * _HEAD + length
    fields = json.loads(data[2 * _HEAD : start].tobytes())
    given = fields.pop("spec")
    preprocess = given.pop("preprocess")
    spec = InputSpec(
        **{**given, "shape": tuple(given["shape"])},
        preprocess=Preprocess.from_fields(preprocess) if preprocess else None,
    )
    fields["first"] = tuple(fields["first"])
    ends = np.frombuffer(data, np.int64, count + 1, start)
    return LoaderJob(spec=spec, **fields), Names(data[start + 8 * (count + 1) :], ends)
