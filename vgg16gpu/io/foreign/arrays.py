"""Readers of arrays and pictures: whatever they raise becomes an error of the input that was read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vgg16gpu.errors import Error, InputError
from vgg16gpu.io.shown import printable


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any exception inside into an InputError that names `what`.

    Foreign files make readers raise anything: MemoryError for a size they claim, OverflowError, RecursionError,
    struct.error, zlib.error. Errors of the package pass as they are; so do KeyboardInterrupt and SystemExit.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            reason = "it needs more memory than there is"
        raise InputError(f"{what} cannot be read: {printable(str(reason).splitlines()[0])}") from error
