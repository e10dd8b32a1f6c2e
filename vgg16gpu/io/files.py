"""Files and folders that are whole or not there: written under a temporary name in the same place, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.foreign.outputs import Named, refuse_read_files, temporary_path

Progress: TypeAlias = Callable[[int, int], None]  # (done, total), in units of the caller's choice


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well and vanishes otherwise.

    A symbolic link stays: the file that it points to is written. Raises ModelError when the file cannot be written, or
    when `path` exists and is not a regular file: a folder, a device, a pipe.
    """
    target = target_of(path)
    temporary = temporary_path(target)
    try:
        try:
            with temporary.open("xb") as stream:
                yield stream
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise write_error(path, error) from error


@contextlib.contextmanager
def folder_writer(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder to write files into, which becomes `path` when the block ends well and vanishes otherwise.

    With `force` the files go into a folder that exists already, over those of the same names. Raises InputError as
    `check_new_folder` does, and ModelError when something cannot be written.
    """
    check_new_folder(path, force=force)
    target = followed(path)
    temporary = temporary_path(target / target.name if target.is_dir() else target)
    try:
        try:
            temporary.mkdir()
            yield temporary
            if temporary.parent != target:
                temporary.rename(target)
            else:
                for file in sorted(temporary.iterdir()):
                    file.replace(target / file.name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(
            f"{path}: cannot be written ({reason}); name a folder in one that exists and has room"
        ) from error


def check_new_folder(path: Path, option: str = "--output", *, force: bool = False) -> None:
    """Raise InputError when `path`, the value of `option`, cannot become a folder, or is one that holds something.

    With `force` it may hold files.
    """
    target = followed(path)
    if not target.is_dir():
        if os.path.lexists(target):
            raise InputError(f"{option} '{path}' is a file; name a folder")
        check_writable(path, option)
        return
    if not os.access(target, os.W_OK):
        raise InputError(f"{option} '{path}' cannot be written: the folder is not writable for you")
    if not force and any(target.iterdir()):
        raise InputError(f"{option} '{path}' is there and not empty; name a new folder, or --force replaces its files")


def target_of(path: Path) -> Path:
    """Return the file that writing to `path` writes, symbolic links followed. Raises ModelError for a non-file."""
    target = followed(path)
    if problem := _in_the_way(target):
        raise ModelError(f"{path}: {problem}")
    return target


def check_writable(path: Path, option: str = "--output") -> None:
    """Raise InputError now rather than after a long run when a file cannot become `path`, the value of `option`."""
    target = followed(path)
    folder = target.parent
    if problem := _in_the_way(target):
        raise InputError(f"{option} '{path}' {problem}")
    if not folder.is_dir():
        raise InputError(f"{option} '{path}' cannot be written: folder '{folder}' does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} '{path}' cannot be written: folder '{folder}' is not writable for you")


def check_outputs(outputs: Mapping[str, Path | None], reads: Iterable[Named] = ()) -> None:
    """Run `check_writable` for each option that was given; raise InputError too when two of them name the same file.

    Or when one of them is among `reads`, which are as `refuse_read_files` takes them.
    """
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        check_writable(path, option)
        if other := seen.get(followed(path)):
            raise InputError(f"{option} and {other} name the same file, '{path}'; give them different names")
        seen[followed(path)] = option
    refuse_read_files(((option, path) for option, path in outputs.items() if path), reads)


def write_error(path: Path, error: OSError) -> ModelError:
    """Return an error of one line that says why `path` was not written and what to do."""
    reason = error.strerror or str(error)
    return ModelError(f"{path}: cannot be written ({reason}); name a file in a folder that exists and has room")


def followed(path: Path) -> Path:
    """Return an absolute path without links, as far as there are any: Path.resolve() raises for those in circles."""
    return Path(os.path.realpath(path))


def _in_the_way(target: Path) -> str:
    """Describe the thing at `target` if a file must not replace it; "" if it may."""
    if target.is_dir():
        return "is a folder; name a file in it"
    if os.path.lexists(target) and not target.is_file():
        return "is no regular file but a device, a pipe or the like; name another"
    return ""
