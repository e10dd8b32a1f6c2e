"""A whole VGG16 on one thread of the host and by onnxruntime; the times of any network, its scores checked first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from vgg16gpu.bench.measure.timing import sample_until, summarise, wall
from vgg16gpu.checks.accuracy import PEER_TOLERANCES, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Conv, Pool, Shape
from vgg16gpu.errors import DeviceError, Error, InputError, ModelError
from vgg16gpu_lab.ladder.layers import Site, sites
from vgg16gpu_lab.ladder.rung import Net
from vgg16gpu_lab.measure.measure import Effort, Measurement, Status, Times, verdict
from vgg16gpu_lab.problem import Network

TOLERANCE: Final = PEER_TOLERANCES["fp32"]  # of scores, as the ladder's


class SequentialNet:
    """im2col and a product in numpy's plain loops: one thread of the host, no BLAS.

    Raises ModelError for a graph that is not made of simple layers.
    """

    def __init__(self, graph: Graph, shape: Shape) -> None:
        self._sites = sites(graph, shape)

    def run(self, x: Array) -> Array:
        """Return the scores (1, classes) of one image (1, C, H, W)."""
        value = x[0]
        for site in self._sites:
            value = _layer(site, value)
        scores: Array = value[np.newaxis]
        return scores

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class OnnxruntimeNet:
    """onnxruntime's CPU provider, with as many threads as it likes.

    `given` is the input of the simplified graph, where the file has another order of channels than (C, H, W).
    """

    def __init__(self, path: Path, given: GraphInput | None = None) -> None:
        self._reference, self._given = Oracle(path), given

    def run(self, x: Array) -> Array:
        """Return the scores (N, classes) of images (N, C, H, W)."""
        return self._reference.scores(np.ascontiguousarray(self._given.to_file(x)) if self._given else x)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


@dataclass(frozen=True)
class Rounds:
    """What was found with an input so many times."""

    iterations: int
    measurement: Measurement
    mean_s: float | None = None  # over all samples, as the report's times are


def work_of(graph: Graph, shape: Shape) -> Network:
    """Return the work of a run on one image (1, C, H, W)."""
    weights = [(site.y_size, site.weight) for site in sites(graph, shape) if site.weight is not None]
    products = sum(outputs * math.prod(weight.shape[1:]) for outputs, weight in weights)
    nbytes = sum(weight.nbytes for _, weight in weights) + 4 * (math.prod(shape) + weights[-1][0])
    _, channels, height, width = shape
    return Network(channels, height, width, 2 * products, nbytes)


def measure_network(
    opened: Callable[[], Net],
    iterations: Sequence[int],
    x: Array,
    expected: Array,
    effort: Effort,
    *,
    most_s: float | None,
) -> list[Rounds]:
    """Measure runs from host to host: one input `iterations` times.

    Every input is checked first, or the first alone where all would take longer than the effort's limit. The last one
    checked is the input that is timed; its checked run is the single iteration. All further iterations are made, or
    none where they would take longer than `most_s` seconds; without that they end when the effort is spent, and there
    are none of what takes longer than its limit.
    """
    try:
        with closing(opened()) as running:
            return list(_rounds(running, iterations, x, expected, effort, most_s))
    except (ModelError, InputError, DeviceError) as error:  # not for this model, this device, or as much memory
        return [Rounds(count, Measurement(Status.REFUSED, str(error))) for count in iterations]
    except Error as error:
        return [Rounds(count, Measurement(Status.FAILED, str(error))) for count in iterations]


def _rounds(
    running: Net, iterations: Sequence[int], x: Array, expected: Array, effort: Effort, most_s: float | None
) -> Iterator[Rounds]:
    images = [image[np.newaxis] for image in x]
    found: list[Array] = []
    checked: list[float] = []
    for image in images:
        checked.append(wall(lambda image=image: found.append(running.run(image))))  # type: ignore[misc]
        if len(images) * checked[0] > effort.limit:
            break
    scores = np.concatenate(found)
    error = float(score_error(scores, expected[: len(scores)]).max())
    extent = f"scores of {len(scores)} of {len(images)} images against onnxruntime's"
    judged = verdict(error, extent, TOLERANCE, "onnxruntime's scores")
    timed = images[len(scores) - 1]
    for count in iterations:
        foretold = count * checked[-1]
        if judged.status is Status.WRONG:
            yield Rounds(count, judged)
        elif most_s is not None and count > 1 and foretold > most_s:
            reason = f"not measured: {count} runs would take {foretold:.0f} s, {most_s:g} s are allowed (--full: all)"
            yield Rounds(count, Measurement(Status.MISSING, reason))
        else:
            is_enough = count == 1 or (most_s is None and checked[-1] > effort.limit)
            samples = checked[-1:] if is_enough else _samples(running, timed, count, effort, most_s)
            mean = sum(samples) / len(samples)
            yield Rounds(count, replace(judged, compute=Times(summarise(samples)), details={"mean_s": mean}), mean)


def _samples(running: Net, image: Array, iterations: int, effort: Effort, most_s: float | None) -> list[float]:
    """Return the seconds of runs of an image."""

    def sample() -> float:
        return wall(lambda: running.run(image))

    if most_s is None:
        return sample_until(sample, effort.seconds, most=min(iterations, effort.samples))
    return [sample() for _ in range(iterations)]


def _layer(site: Site, x: Array) -> Array:
    if isinstance(site.layer, Pool):
        largest: Array = _windows(site, x, -np.inf).max(axis=(3, 4))
        return largest
    weight = site.layer.weight.reshape(site.y_shape[0], -1)
    columns = _columns(site, x) if isinstance(site.layer, Conv) else x.reshape(-1, 1)
    y = np.einsum("ok,kp->op", weight, columns, optimize=False)
    if site.bias is not None:
        y += site.bias[:, np.newaxis]
    result: Array = (np.maximum(y, 0) if site.relu else y).reshape(site.y_shape)
    return result


def _columns(site: Site, x: Array) -> Array:
    """Compute im2col: (C * rows * columns of the filter, output pixels)."""
    windows = _windows(site, x, 0).transpose(0, 3, 4, 1, 2)
    return np.ascontiguousarray(windows).reshape(-1, site.y_shape[1] * site.y_shape[2])


def _windows(site: Site, x: Array, beside: float) -> Array:
    """Return (C, output rows, output columns, rows, columns of the window); `beside` the map."""
    window, pads = site.window, site.window.pads
    padded = np.pad(x, ((0, 0), (pads.top, pads.bottom), (pads.left, pads.right)), constant_values=beside)
    views: Array = np.lib.stride_tricks.sliding_window_view(padded, window.kernel, axis=(1, 2))
    return views[:, :: window.strides[0], :: window.strides[1]]
