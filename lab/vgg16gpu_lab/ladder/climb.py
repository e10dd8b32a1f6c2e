"""Climbing: each rung is opened, checked against onnxruntime on whole scores, and only then timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from vgg16gpu.bench.measure.environment import worker_threads
from vgg16gpu.bench.measure.timing import Summary, sample_until, summarise, wall
from vgg16gpu.bench.peers.base import Setting as PeerSetting
from vgg16gpu.bench.peers.base import open_peer
from vgg16gpu.checks.accuracy import PEER_TOLERANCES, score_error
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import DeviceError, Error, InputError, ModelError
from vgg16gpu_lab.ladder.rung import Rung, Running, Setting
from vgg16gpu_lab.ladder.rungs import RUNGS

SECONDS: Final = 0.5  # of timed runs
WARM_UP: Final = 0.1  # seconds of runs before them: clocks rise, memory settles
PATIENCE: Final = 2.0  # seconds: a checked run that takes as long is the only sample

# As of peers: 4608 products in one chain have several times the error of the engine's sums, which are made of groups.
# VGG16 with random weights, whose scores are small sums of large terms, makes 1e-5 of it. int8 has a bound of its own.
TOLERANCES: Final = PEER_TOLERANCES

Status = Literal["measured", "wrong", "missing"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a rung. `error` is norm-wise, of the scores; times only where it is small enough."""

    rung: Rung
    status: Status
    why: str = ""
    error: float | None = None
    times: Summary | None = None  # from host to host
    device: Summary | None = None  # input and output on the device; not of what takes seconds


@dataclass(frozen=True)
class Gains:
    """Of a rung over the one before it that was measured, the predictions of all between multiplied."""

    predicted: float | None
    measured: float | None


def onnxruntime_scores(setting: Setting, x: Array) -> tuple[Array, Summary]:
    """Return the scores of onnxruntime's CPU provider for images (N, C, H, W), and its time for the first.

    With as many threads as the cpu device, else as many as it likes. Raises PeerError where it is not installed.
    """
    device = setting.device
    threads = worker_threads(device) if device.facts.kind == "cpu" else 0
    model = setting.model.path
    with closing(open_peer("onnxruntime", PeerSetting(model, setting.shape[1:], "cpu", 0, threads))) as peer:
        ways = [peer.ways(np.ascontiguousarray(setting.graph.input.to_file(image)))[0] for image in _images(x)]
        cpu, *others = [way.make() for way in ways]
        start = time.perf_counter()
        scores = [cpu.scores()]
        first = time.perf_counter() - start
        scores += [other.scores() for other in others]
        return np.concatenate(scores).astype(np.float32), summarise(_samples(cpu.scores, first))


def _images(x: Array) -> list[Array]:
    """Return batches of one."""
    return [x[index : index + 1] for index in range(len(x))]


def climb(setting: Setting, rungs: Sequence[Rung], x: Array, reference: Array, say: Say) -> list[Outcome]:
    """Return an outcome for each of `rungs`, checked on the images x (N, C, H, W), timed on the first.

    `say` gets a line for each.
    """
    found = []
    for rung in rungs:
        say(f"{rung.letter}: {rung.name}")
        found.append(_outcome(setting, rung, x, reference))
    return found


def gains(outcomes: Sequence[Outcome]) -> list[Gains]:
    """Return gains of each outcome, in order; without a time of its own a rung has its prediction alone."""
    found = []
    before: Outcome | None = None
    for outcome in outcomes:
        if outcome.times is None:
            found.append(Gains(outcome.rung.predicted, None))
            continue
        if before is None or before.times is None:
            found.append(Gains(None, None))
        else:
            gain = before.times.median_s / outcome.times.median_s
            found.append(Gains(_predicted(before.rung, outcome.rung), gain))
        before = outcome
    return found


def _predicted(before: Rung, rung: Rung) -> float:
    between = RUNGS[RUNGS.index(before) + 1 : RUNGS.index(rung) + 1]
    return math.prod(each.predicted or 1.0 for each in between)


def _outcome(setting: Setting, rung: Rung, x: Array, reference: Array) -> Outcome:
    if reason := rung.lacks(setting.device):
        return Outcome(rung, "missing", reason)
    with ExitStack() as stack:
        try:
            running = stack.enter_context(closing(rung.open(setting)))
        except (ModelError, InputError, DeviceError) as error:  # not for this model, this device, or as much memory
            return Outcome(rung, "missing", str(error))
        except Error as error:
            return Outcome(rung, "wrong", str(error))
        try:
            return _checked(rung, running, x, reference)
        except Error as error:
            return Outcome(rung, "wrong", str(error))


def _checked(rung: Rung, running: Running, x: Array, reference: Array) -> Outcome:
    image, *others = _images(x)
    start = time.perf_counter()
    scores = [running.run(image)]
    first = time.perf_counter() - start
    scores += [running.run(other) for other in others]
    error = float(score_error(np.concatenate(scores).reshape(reference.shape), reference).max())
    bound = TOLERANCES[rung.precision]
    if not error <= bound:
        return Outcome(
            rung, "wrong", f"the scores differ by {error:.2e} from onnxruntime's, {bound:g} is allowed", error
        )
    times = summarise(_samples(lambda: running.run(image), first))
    on_device = running.device_seconds(times.samples) if first < PATIENCE else None
    return Outcome(rung, "measured", "", error, times, summarise(on_device) if on_device else None)


def _samples(run: Callable[[], object], first: float) -> list[float]:
    """Return seconds of runs, after a first one that took `first`."""
    if first >= PATIENCE:
        return [first]
    warm = first
    while warm < WARM_UP:
        warm += wall(run)
    return sample_until(lambda: wall(run), SECONDS, least=1)
