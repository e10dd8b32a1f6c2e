"""Whether memory grows with the number of pictures: `infer` over lists that name the folder's files again and again."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from testbench.pipeline.wanted import Work
from testbench.pipeline.watching import infer_command, watch
from testbench.pipeline.whole_runs import options
from vgg16gpu.bench.measure.cold_start import with_byte_code
from vgg16gpu.pictures.listing import list_files

FLAT: Final = 0.05  # of the peak before the last: so much may it grow, names apart


@dataclass(frozen=True)
class Memory:
    """Of one process. names_nbytes: what reading the list of names takes at most, which does grow."""

    pictures: int
    peak_memory_nbytes: int
    names_nbytes: int

    @property
    def apart(self) -> int:
        """The peak without the names."""
        return self.peak_memory_nbytes - self.names_nbytes


def measure_memory(work: Work, precision: str, decode: str, folder: Path, say: Callable[[str], None]) -> list[Memory]:
    """One process for each number of pictures that is wanted, smallest first. Raises Error as `watch` does."""
    found = []
    for count in sorted(set(work.wanted.memory)):
        say(f"{precision}: memory, {count:,} pictures")
        names, output = folder / "names", folder / "memory.csv"
        files = itertools.islice(itertools.cycle(work.files), count)
        names.write_bytes(b"\0".join(map(os.fsencode, files)) + b"\0")  # a name may hold a line break
        output.unlink(missing_ok=True)
        words = ("--files-from", names, "--null", *options(work.wanted, precision, decode), "--output", output)
        ended = watch(infer_command(*words), output, with_byte_code(str(folder / "byte-code")))
        found.append(Memory(count, ended.peak_memory_nbytes, _names_nbytes(names)))
    return found


def is_flat(found: Sequence[Memory]) -> bool | None:
    """Whether the last peak is that of the run before, names apart; None of fewer than two.

    The smaller runs may take less: rings and windows, which bound the memory, are not full yet.
    """
    if len(found) < 2:
        return None
    before, last = found[-2:]
    return last.apart - before.apart <= FLAT * before.peak_memory_nbytes


def fields(found: Sequence[Memory]) -> list[dict[str, Any]]:
    """As plain data."""
    return [asdict(each) for each in found]


def _names_nbytes(names: Path) -> int:
    tracemalloc.start()
    try:
        list_files((), str(names), null=True)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
