"""What comes in any order, given out in the order of files and of the samples in them."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class InOrder(Generic[T]):
    """Values by (file, sample), from `first` on. A file is over when `end` has told how many samples it holds."""

    def __init__(self, first: tuple[int, int] = (0, 0)) -> None:
        self.file, self._sample = first  # `file`: the first that is not over
        self._values: dict[tuple[int, int], T] = {}
        self._ends: dict[int, int] = {}

    def add(self, file: int, sample: int, value: T) -> None:
        """A value; what lies before it may come later."""
        self._values[file, sample] = value

    def end(self, file: int, samples: int) -> None:
        """How many samples a file has."""
        self._ends[file] = samples

    def ready(self) -> list[T]:
        """The values whose turn has come, each given out once."""
        found: list[T] = []
        while True:
            if (value := self._values.pop((self.file, self._sample), None)) is not None:
                found.append(value)
                self._sample += 1
            elif self._ends.get(self.file) == self._sample:
                del self._ends[self.file]
                self.file, self._sample = self.file + 1, 0
            else:
                return found
