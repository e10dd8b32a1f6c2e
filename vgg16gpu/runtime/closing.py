"""What holds a device until it is closed is a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, Self

from vgg16gpu.errors import InputError


class Closing(ABC):
    """The end of a `with` block closes it, whatever happened there."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held. Safe to call twice."""

    def __reduce__(self) -> NoReturn:
        """Raise InputError where somebody pickles or copies it."""
        raise InputError(
            f"{type(self).__name__} cannot be pickled or copied, as it holds a device, its memory or threads; give its "
            "model and options to the other process, and build it there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
