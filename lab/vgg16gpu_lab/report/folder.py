"""Which records the page shows, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from vgg16gpu.bench.records.record import read as read_benchmark
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import followed
from vgg16gpu.io.foreign.documents import OTHER_FORM
from vgg16gpu_lab.claims import records as claims_records
from vgg16gpu_lab.report.kinds import Kind, is_called_a_record, kind_of

Content: TypeAlias = dict[str, Any]
Shown = TypeVar("Shown")

CHECKOUT: Final = Path(__file__).resolve().parents[3] / "testbench" / "results"
SHOWN: Final = Path("testbench") / "results"  # what the checkout's is called on the page

_LAB_FOLDERS: Final = ("lab", "lab-results")
_LARGEST: Final = 64 << 20  # bytes of a record that nobody has named
_REMEDY: Final = "move it away or make it again"


@dataclass(frozen=True)
class Record:
    """A file, what it is a record of, and what it says."""

    path: Path
    kind: Kind
    content: Content

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return self.path.stem


@dataclass(frozen=True)
class Results:
    """The records of a page, whose they are, and where the commands that it names would write those that it lacks."""

    found: tuple[Record, ...]
    is_package: bool = False  # the package's own
    folder: Path = Path()

    def records(self, kind: Kind) -> tuple[Record, ...]:
        """Return the records of a kind."""
        return tuple(record for record in self.found if record.kind is kind)

    def lab_folders(self) -> tuple[tuple[Record, ...], ...]:
        """Return the lab's experiments, grouped by folder."""
        folders: dict[Path, list[Record]] = {}
        for record in self.records(Kind.LAB):
            folders.setdefault(record.path.parent, []).append(record)
        return tuple(map(tuple, folders.values()))

    def name_of(self, record: Record) -> str:
        """Return a record's file name on the page."""
        return str(SHOWN / record.path.relative_to(CHECKOUT)) if self.is_package else str(record.path)


def find_results(named: Sequence[Path] = (), *, package: bool = False) -> Results:
    """Return the records that are named, as files or folders; the package's own; or those of the current folder.

    Without a name it is the package's own where the current folder has none. Raises InputError for what is named and
    cannot be read or is no record, and where there are no records of the package's.
    """
    if package and not CHECKOUT.is_dir():
        raise InputError("an installed package has no records of its own; they are in a checkout, testbench/results")
    if package:
        return _package()
    if named:
        found = tuple({followed(record.path): record for path in named for record in _named(path)}.values())
        return Results(found, folder=named[0] if named[0].is_dir() else Path())
    own = tuple(record for record in _in_folder(Path(), is_named=False) if not _is_package(record.path))
    return _package() if CHECKOUT.is_dir() and not own else Results(own)


def read_json(path: Path) -> Content:
    """Read a JSON object. Raises InputError for anything else."""
    found = claims_records.read_json(path, _REMEDY)
    if not isinstance(found, dict):
        raise InputError(f"'{path}' is no record: a JSON object is expected; {_REMEDY}")
    return found


def each(records: Iterable[Record], show: Callable[[Record], Shown]) -> list[Shown]:
    """Apply `show` to every record. Raises InputError, naming the file, where it lacks what its kind has."""
    return [_shown(record, show) for record in records]


def _shown(record: Record, show: Callable[[Record], Shown]) -> Shown:
    try:
        return show(record)
    except InputError:
        raise
    except OTHER_FORM as error:
        reason = f"{error!r} is wrong"
        raise InputError(f"'{record.path}' is a record of another version ({reason}); make it again") from error


def _package() -> Results:
    return Results(tuple(_in_folder(CHECKOUT)), is_package=True, folder=SHOWN)


def _is_package(path: Path) -> bool:
    return followed(path).is_relative_to(CHECKOUT)


def _named(path: Path) -> Iterator[Record]:
    if path.is_dir():
        yield from _in_folder(path)
    elif path.is_file():
        yield _record(path)
    else:
        raise InputError(f"--results '{path}' is no file and no folder; name records, or the folder that holds them")


def _in_folder(folder: Path, *, is_named: bool = True) -> Iterator[Record]:
    """Yield the records of a folder, by their names, then those of the folders in it that commands write to.

    Unless the user has named the folder, files that cannot be read are no records.
    """
    for place in _places(folder):
        for path in sorted(place.glob("*.json"), key=lambda path: path.stem):
            if path.is_file() and (record := _found(path, is_named=is_named)):
                yield record


def _places(folder: Path) -> Iterator[Path]:
    for top in (folder, folder / SHOWN):
        tops = [top / name for name in _LAB_FOLDERS]
        below = (path for each_top in tops if each_top.is_dir() for path in sorted(each_top.iterdir()))
        yield from (place for place in (top, *tops, *below) if place.is_dir())


def _found(path: Path, *, is_named: bool) -> Record | None:
    """Return the record of a file that may be none. Raises InputError if it has to be one."""
    if is_named and is_called_a_record(path.stem):
        return _record(path)
    try:
        content = read_json(path) if path.stat().st_size <= _LARGEST else {}
    except (InputError, OSError):
        return None
    return _record(path) if kind_of(content) else None


def _record(path: Path) -> Record:
    """Read a record. Raises InputError for another file."""
    content = read_json(path)
    kind = kind_of(content)
    if kind is None:
        raise InputError(f"'{path}' is no record that the page shows, or one of another version; {_REMEDY}")
    return Record(path, kind, read_benchmark(path) if kind is Kind.BENCHMARK else content)
