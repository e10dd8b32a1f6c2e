"""Which file of results: what a path asks for, whether it can be written, and the writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import check_writable, target_of
from vgg16gpu.io.foreign.outputs import OutputLock
from vgg16gpu.io.results.columns import Columns
from vgg16gpu.io.results.parquet_results import ParquetFile, need_pyarrow, partial_path
from vgg16gpu.io.results.record import RunRecord, record_path
from vgg16gpu.io.results.results import ResultWriter
from vgg16gpu.io.results.text_results import StandardOutput, TextFile, standard_output, text_form
from vgg16gpu.io.results.whole_results import WholeFile
from vgg16gpu.io.shown import ending, printable

STANDARD_OUTPUT: Final = "-"
TEXT_KINDS: Final = ("csv", "jsonl")
RESUMED_KINDS: Final = (*TEXT_KINDS, "parquet")
KINDS: Final = (*RESUMED_KINDS, "npy", "npz", "txt", "json")


def holds_all_outputs(path: Path) -> bool:
    """Return whether a file of that ending takes more than the first output of a model."""
    return path.suffix.lower() == ".npz"


def check_output(path: Path, *, resume: bool = False, form: str | None = None) -> str:
    """Return the kind of `path`, the value of --output: one of KINDS.

    A file's ending decides; `form`, "csv" (the default) or "jsonl", is for `-`, standard output. Raises InputError
    before anything is computed: for another ending, a place that cannot be written, --resume where nothing can be
    resumed, and .parquet without pyarrow.
    """
    if str(path) == STANDARD_OUTPUT:
        return _check_standard_output(form, resume=resume)
    if form is not None:
        raise InputError(f"the form {form} is for --output {STANDARD_OUTPUT}; the ending of '{path}' says its form")
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        endings = ", ".join(f".{known}" for known in KINDS)
        raise InputError(f"output '{path}' has {ending(path.suffix)}; accepted are {endings}, and - for stdout")
    if resume and kind not in RESUMED_KINDS:
        endings = ", ".join(f".{known}" for known in RESUMED_KINDS)
        raise InputError(
            f"--resume goes on in {endings} files, and not in '{path}'; leave it out, or name another file"
        )
    if kind == "parquet":
        need_pyarrow(path)
    for file in (path, *files_beside(path)):
        _check_name(file)
        check_writable(file)
    return kind


def open_results(
    path: Path,
    columns: Columns,
    run: RunRecord | Callable[[], RunRecord],
    *,
    resume: bool = False,
    form: str | None = None,
) -> ResultWriter:
    """Return the writer of answers; nothing is written, and an older file stays, before the first answer.

    `run`, or what it returns, is the record of .csv, .jsonl and .parquet; it is not called for other files. With
    `resume` the rows of an existing file are `done`; without a file the run begins. Raises InputError as
    `check_output`, and where the existing file is not one of this run, or another process is writing it.
    """
    kind = check_output(path, resume=resume, form=form)
    if str(path) == STANDARD_OUTPUT:
        return StandardOutput(text_form(kind, columns), columns)
    lock = OutputLock(target_of(path), printable(str(path)))
    try:
        if kind not in RESUMED_KINDS:
            return WholeFile(path, columns, kind, lock)
        record = run if isinstance(run, RunRecord) else run()
        if kind == "parquet":
            return ParquetFile(path, columns, record, lock, resume=resume)
        return TextFile(path, text_form(kind, columns), columns, record, lock, resume=resume)
    except BaseException:
        lock.release()
        raise


def files_beside(path: Path) -> tuple[Path, ...]:
    """Return the files that writing to `path` writes beside it: the run's record, and rows that wait for the end."""
    target = Path(os.path.realpath(path))
    kind = path.suffix.lower().removeprefix(".")
    if kind not in RESUMED_KINDS:
        return ()
    return (record_path(target), partial_path(target)) if kind == "parquet" else (record_path(target),)


def _check_standard_output(form: str | None, *, resume: bool) -> str:
    if resume:
        raise InputError(f"--resume goes on in a file, and not in standard output (--output {STANDARD_OUTPUT})")
    if form is not None and form not in TEXT_KINDS:
        raise InputError(f"the form of --output {STANDARD_OUTPUT} is {form}; accepted are {', '.join(TEXT_KINDS)}")
    standard_output()
    return form or TEXT_KINDS[0]


def _check_name(path: Path) -> None:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return  # a missing folder is told by who looks for it
    except OSError as error:
        raise InputError(f"--output '{path}' cannot be written: {error.strerror or error}") from error
