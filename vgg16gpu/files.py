"""Files that are whole or not there: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from vgg16gpu.errors import ModelError

Progress: TypeAlias = Callable[[int, int], None]  # (done, total), in units of the caller's choice


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends well and vanishes otherwise.

    Raises ModelError when the file cannot be written.
    """
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; name a file in it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with temporary.open("wb") as stream:
                yield stream
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> ModelError:
    """One line that says why `path` was not written and what to do."""
    reason = error.strerror or str(error)
    return ModelError(f"{path}: cannot be written ({reason}); give --output a folder that exists and has room")
