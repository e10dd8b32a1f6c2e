"""int8 scales from images: an fp32 engine runs them, and what its values were like decides the steps.

(`zoo/center_scores.py` is something else: it centres the scores of generated models.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.compiler.quantization.histogram import Histogram
from vgg16gpu.compiler.quantization.scheme import Scale, quantised_inputs
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.inputs import NamedInput, batched
from vgg16gpu.runtime.counting import Counting
from vgg16gpu.runtime.engine import Engine


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
