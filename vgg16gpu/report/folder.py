"""Where the records lie and how they are read: by the names that the tools give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from vgg16gpu.errors import InputError
from vgg16gpu.lab.claims import records as claims_records
from vgg16gpu.lab.claims.records import SEEDS
from vgg16gpu.lab.experiments.comparison import NAME as COMPARISON

Content: TypeAlias = dict[str, Any]
Read: TypeAlias = Callable[[Path], Content]
Shown = TypeVar("Shown")

CHECKOUT: Final = Path(__file__).resolve().parents[2] / "testbench" / "results"
SHOWN: Final = Path("testbench") / "results"  # what the checkout's is called on the page

_LAB_FOLDERS: Final = ("lab", "lab-results")
_EXPERIMENTS: Final = (*SEEDS, COMPARISON)


@dataclass(frozen=True)
class Record:
    """A file of a folder, and what it says."""

    path: Path
    content: Content

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return self.path.stem


@dataclass(frozen=True)
class Results:
    """A folder of records, and what it is called in the commands that the page names."""

    folder: Path
    shown: Path

    def records(self, *patterns: str, read: Read | None = None) -> tuple[Record, ...]:
        """The files of these names, sorted. Raises InputError for one that cannot be read."""
        found = (sorted(self.folder.glob(f"{pattern}.json"), key=lambda path: path.stem) for pattern in patterns)
        paths = [path for each_pattern in found for path in each_pattern]
        return tuple(Record(path, (read or read_json)(path)) for path in dict.fromkeys(paths))

    def lab_folders(self) -> tuple[Path, ...]:
        """Every folder here that `lab run` has written to."""
        tops = [self.folder / name for name in _LAB_FOLDERS]
        below = [path for top in tops if top.is_dir() for path in sorted(top.iterdir()) if path.is_dir()]
        return tuple(folder for folder in (self.folder, *tops, *below) if any(_experiment_files(folder)))


def find_results(folder: Path | None) -> Results:
    """The folder asked for, else the checkout's, else the current one. Raises InputError for one that is none."""
    if folder is None:
        return Results(CHECKOUT, SHOWN) if CHECKOUT.is_dir() else Results(Path(), Path())
    if not folder.is_dir():
        raise InputError(f"--results '{folder}' is no folder; name the one that holds the records")
    return Results(folder, folder)


def lab_records(folder: Path) -> tuple[Record, ...]:
    """The experiments of a folder that `lab run` has written to, by their names."""
    return tuple(Record(path, read_json(path)) for path in _experiment_files(folder))


def read_json(path: Path) -> Content:
    """A JSON object. Raises InputError for anything else."""
    found = claims_records.read_json(path, "move it away or make it again")
    if not isinstance(found, dict):
        raise InputError(f"'{path}' is no record: a JSON object is expected; move it away or make it again")
    return found


def each(records: Iterable[Record], show: Callable[[Record], Shown]) -> list[Shown]:
    """What `show` makes of every record. Raises InputError, naming the file, where it lacks what its kind has."""
    return [_shown(record, show) for record in records]


def _shown(record: Record, show: Callable[[Record], Shown]) -> Shown:
    try:
        return show(record)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        reason = f"{error!r} is wrong"
        raise InputError(f"'{record.path}' is a record of another version ({reason}); make it again") from error


def _experiment_files(folder: Path) -> list[Path]:
    return [path for name in _EXPERIMENTS if (path := folder / f"{name}.json").is_file()]
