"""Calibrate int8: run images, count values on the device, choose scales."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.compiler.op_kernels.general.magnitudes import COUNTS_NBYTES, KERNEL, MagnitudeCounts, can_count, count
from vgg16gpu.compiler.quantization.scheme import BINS, Histogram, Scale, check_finite, quantised_inputs
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.inputs import NamedInput, batched
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


@dataclass(frozen=True)
class Calibrated:
    """The scale of one value, and what was seen of it."""

    scale: Scale
    largest: float  # magnitude
    clipped: float  # share of all elements that are larger than the scale holds


@dataclass(frozen=True)
class Calibration:
    """Scales for every value that a Conv or Gemm of the model reads, and the images that they come from."""

    values: Mapping[str, Calibrated]
    images: int
    images_digest: str  # SHA-256 of their arrays, one after another

    @property
    def scales(self) -> Mapping[str, Scale]:
        """What `quantise` takes."""
        return {name: value.scale for name, value in self.values.items()}


def calibration_engine(model: ModelSource, **options: Any) -> Engine:
    """An engine for `calibrate`, with further options of `Engine`."""
    opened, wanted = calibration_options(model, options)
    return Engine(opened, **wanted)


def calibration_options(model: ModelSource, options: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """The model, and the options of an engine for calibration: `options`, and what it needs beside them.

    FFMA kernels: others may read the input where the host left it, so that nobody stores it. One size: the model's own,
    or the usual one, if none is asked for.
    """
    opened = Model.of(model)
    graph = opened.graph(options.get("precision", "fp32"), options.get("outputs"))
    size = options.get("size")
    if size is None and graph.input.is_open_in_size:
        size = resolve_input_shape(graph, graph.input.shape[0] or 1)[2:]
    return opened, {**options, "size": size, "keep_values": True, "kernels": "ffma"}


def calibrate(engine: Engine, inputs: Iterable[NamedInput]) -> Calibration:
    """Run `inputs` on a `calibration_engine`, which nobody else may run meanwhile, and choose the scales.

    Raises InputError for an engine that does not store what is asked for, for no inputs, and when a value becomes NaN
    or infinite.
    """
    signed = quantised_inputs(engine.graph)
    digest, count = hashlib.sha256(), 0
    size = min(program.batch for program in engine.plan.programs)  # more might be cut, and only the last part be kept
    with Counting(engine, signed) as counting:
        for batch in batched(inputs, size):
            x = np.stack([item.array for item in batch])
            digest.update(x.reshape(-1).data)
            count += len(batch)
            counting.count(x)
        histograms = counting.histograms()
    return chosen(histograms, signed, count, digest.hexdigest())


def chosen(
    histograms: Mapping[str, Histogram], signed: Mapping[str, bool], images: int, images_digest: str
) -> Calibration:
    """The scales that go with what was counted. Raises InputError where there were no images, or values unseen."""
    if not images:
        raise InputError("there are no images to calibrate on; give at least one")
    if unseen := [name for name, histogram in histograms.items() if histogram.is_empty]:
        raise InputError(f"the engine does not store {', '.join(unseen)}; build it with kernels='ffma' to calibrate")
    return Calibration(
        {name: _choose(histogram, signed[name]) for name, histogram in histograms.items()}, images, images_digest
    )


def _choose(histogram: Histogram, signed: bool) -> Calibrated:
    scale = histogram.best_scale(signed=signed)
    return Calibrated(scale, histogram.largest, histogram.clipped_share(scale))
