"""Histograms of an engine's values, counted on its device: of a run the host gets a word for each value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.lowering.general.magnitudes import COUNTS_NBYTES, KERNEL, MagnitudeCounts, can_count, count
from vgg16gpu.compiler.quantization.histogram import BINS, Histogram, check_finite
from vgg16gpu.program.types import Arena, Pointer, TensorDesc, aligned
from vgg16gpu.runtime.engine import Engine


class Counting:
    """Histograms of named values over the runs of an engine that keeps its values. Nobody else may run it meanwhile.

    Use as a context manager, or call `close`: each name takes 2 MB of the device.
    """

    def __init__(self, engine: Engine, names: Iterable[str]) -> None:
        """Compile the kernel and take memory. Raises DeviceError and KernelError."""
        self._engine, self._device = engine, engine.device
        self._histograms = {name: Histogram() for name in names}
        self._largest = np.zeros(len(self._histograms), np.uint32)  # words of the device, as of the last run
        self._bound: dict[tuple[tuple[TensorDesc, ...], int], Callable[[], None]] = {}
        self._start = aligned(self._largest.nbytes)  # of the counts, behind the words
        self._device.build([KERNEL])
        nbytes = self._start + COUNTS_NBYTES * len(self._histograms)
        self._address = self._device.allocate(nbytes)
        self._device.zero(self._address, nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self._device.free(self._address)

    def count(self, images: npt.NDArray[Any]) -> None:
        """Run these images, and count. Raises as `add` does."""
        self._engine.run(images)
        self.add(len(images))

    def add(self, rows: int) -> None:
        """Count the values of the last run, of its first `rows` images alone.

        What is not stored as float32 goes to the host. Raises InputError when a value is NaN or infinite, and for an
        engine that does not keep its values.
        """
        kept = {names[-1]: value for names, value in self._engine.kept_values() if names[-1] in self._histograms}
        self._launch(tuple(value for value in kept.values() if can_count(value)), rows)
        self._device.copy_out(self._largest, self._address)
        self._device.synchronize()
        seen = dict(zip(self._histograms, self._largest.view(np.float32), strict=True))
        for name, value in kept.items():
            if can_count(value):
                check_finite(float(seen[name]), name)
            else:
                self._histograms[name].add(self._engine.executor.read(value)[:rows], name)

    def histograms(self) -> Mapping[str, Histogram]:
        """Everything that was counted; once, at the end."""
        counts = np.empty((len(self._histograms), BINS), np.int64)
        self._device.copy_out(counts, self._address + self._start)
        self._device.synchronize()
        for histogram, found, largest in zip(
            self._histograms.values(), counts, self._largest.view(np.float32), strict=True
        ):
            histogram.add_counts(found, float(largest))
        return self._histograms

    def _launch(self, values: tuple[TensorDesc, ...], rows: int) -> None:
        key = values, rows
        if key not in self._bound:
            facts = self._device.facts
            steps = [count(value, min(rows, value.shape[0]), self._tally(value.name), facts) for value in values]
            self._bound[key] = self._engine.executor.bind(steps, self._address)
        self._bound[key]()

    def _tally(self, name: str) -> MagnitudeCounts:
        number = [*self._histograms].index(name)
        words = Pointer(Arena.STAGING, self._largest.itemsize * number)
        return MagnitudeCounts(Pointer(Arena.STAGING, self._start + COUNTS_NBYTES * number), words)
