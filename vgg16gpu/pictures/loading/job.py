"""What a loading process is told and tells, and how processes of this package are started."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.loading.pace import Seconds
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.pictures.slots import Failure, SampleRow, Slot

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
        """Write this and the names of the files to a new memory file; return its descriptor."""
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
    """Read what `written` wrote; it stays mapped as long as this process runs."""
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


@dataclass(frozen=True)
class LoaderEnded:
    """A process is done. decoded: pictures; threads: that have begun."""

    decoded: int
    threads: int
    seconds: Seconds

    def line(self) -> bytes:
        """Return the message as it is sent."""
        return _line(asdict(self))


def slot_line(slot: Slot) -> bytes:
    """Return a full slot as it is sent, without names: they are those of the files."""
    rows = [(row.file, *row[3:]) for row in slot.rows]
    failures = [(failure.file, failure.problem) for failure in slot.failures]
    return _line([slot.number, slot.used, slot.needed, rows, failures, slot.ends])


def read_line(line: bytes, ring: SharedBufferPool, files: Sequence[str]) -> Slot | LoaderEnded:
    """Parse a message."""
    told: Any = json.loads(line)
    if isinstance(told, dict):
        return LoaderEnded(told["decoded"], told["threads"], Seconds(**told["seconds"]))
    number, used, needed, rows, failures, ends = told
    slot = ring.slot(number)
    slot.used, slot.needed = used, needed
    slot.rows = [SampleRow(file, 0, files[file], *places) for file, *places in rows]
    slot.failures = [Failure(file, 0, files[file], problem) for file, problem in failures]
    slot.ends = [(file, count) for file, count in ends]
    return slot


def _line(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def start_child(module: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run `main` of a module, whose arguments are numbers of descriptors that it shares with this process.

    It imports what this process would. Ctrl-C does not reach it: that is for this process, which ends its children.
    Raises OSError.
    """
    paths = [path or str(Path.cwd()) for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {module} import main; main()", *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )


def how_it_ended(status: int) -> str:
    """Describe the exit status of a process that ended before its work did: "was ended by SIGKILL"."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
