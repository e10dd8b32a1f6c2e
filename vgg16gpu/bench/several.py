"""How several devices share arrays in memory, beside one of the devices."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.bench.measure.environment import environment, gpu_readings
from vgg16gpu.bench.records.record import Content, model_identity
from vgg16gpu.cluster.pool import EnginePool
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.devices.several import resolve_devices
from vgg16gpu.errors import InputError
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.runtime.engine import Engine

SCHEMA: Final = 1
WHAT: Final = "one device, and several that share the work"
REPEATS: Final = 3
SECONDS: Final = 3.0  # of a stream, in each repeat
BATCHES: Final = {"cuda": 128, "cpu": 8}
ARRAYS: Final = 8  # different ones, a batch each, that a stream gets again and again

Say = Callable[[str], None]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class DevicesConfig:
    """What to measure. devices: names, as --devices has them."""

    model: Model
    devices: tuple[str, ...]
    precisions: tuple[str, ...]
    kernels: str
    size: tuple[int, int] | None
    batch: int | None
    repeats: int = REPEATS
    seconds: float = SECONDS


@dataclass(frozen=True)
class Streamed:
    """Images a second through `stream`, in each repeat. by_one: the same bits as one device gave."""

    precision: str
    devices: int
    samples_per_s: tuple[float, ...]
    shares: tuple[int, ...]  # images of each device, in all repeats; of one device 1
    by_one: bool

    @property
    def per_s(self) -> float:
        """The median."""
        return statistics.median(self.samples_per_s)


def measure_several(wanted: DevicesConfig, say: Say) -> Content:
    """Measure 1, 2, 4, ... and all of the devices; plain data, ready for a file.

    One is an `Engine`, several are a pool. Raises what building engines raises.
    """
    names = resolve_devices(wanted.devices)
    if len(names) < 2:
        raise InputError(f"--devices: there is one device, {names[0]}; to measure how several share, name several")
    runs: list[Streamed] = []
    told: dict[str, Any] = {}
    for precision in wanted.precisions:
        expected: list[Any] | None = None
        for count in _counts(len(names)):
            say(f"{precision}: {count} of {len(names)} devices")
            with _pool(wanted, names[:count], precision) as pool:
                arrays = _arrays(pool)
                found = list(pool.stream(arrays))
                expected = found if expected is None else expected
                by_one = all(np.array_equal(*pair, equal_nan=True) for pair in zip(found, expected, strict=True))
                runs.append(_streamed(wanted, pool, arrays, precision, by_one))
                told = told or _told(pool)
    return {
        "schema": SCHEMA,
        "what": WHAT,
        "model": {**model_identity(wanted.model.path, tuple(told.pop("shape")))},
        "devices": list(names),
        "cores": usable_cores(),
        **told,
        "repeats": wanted.repeats,
        "seconds": wanted.seconds,
        "streams": [_fields(run, runs) for run in runs],
        "pictures": None,
        "failures": [
            f"{run.precision}: {run.devices} devices give other bits than one" for run in runs if not run.by_one
        ],
    }


def _counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... and all."""
    return [*itertools.takewhile(lambda count: count < most, (1 << power for power in range(most))), most]


def _pool(wanted: DevicesConfig, names: Sequence[str], precision: str) -> EnginePool:
    kind = "cpu" if names[0] == "cpu" else "cuda"
    graph = wanted.model.graph(precision)
    shape = resolve_input_shape(graph, graph.input.shape[0] or 1, wanted.size)
    return EnginePool(
        wanted.model,
        devices=list(names),
        precision=precision,
        kernels=wanted.kernels,
        batch=wanted.batch or graph.input.shape[0] or BATCHES[kind],
        size=shape[2:] if len(shape) == 4 else None,
    )


def _arrays(pool: EnginePool) -> list[Images]:
    """Return batches of pictures as bytes, as a user has them in memory."""
    batch, channels, height, width = pool.engine.program.input.shape
    pictures = structured_images(ARRAYS, max(height, width), seed=0)[:, :height, :width]
    pictures = np.resize(pictures, (ARRAYS, height, width, channels)).astype(np.uint8)
    return [
        np.ascontiguousarray(np.roll(np.resize(pictures, (batch, height, width, channels)), i, 0)) for i in range(8)
    ]


def _streamed(
    wanted: DevicesConfig, pool: EnginePool, arrays: Sequence[Images], precision: str, by_one: bool
) -> Streamed:
    before = [share.images for share in pool.shares]
    is_alone = len(pool.engines) == 1
    alone = pool.engine
    stream = alone.stream if is_alone and isinstance(alone, Engine) else pool.stream
    rates = [_rate(stream(_until(arrays, time.perf_counter() + wanted.seconds))) for _ in range(wanted.repeats)]
    shares = tuple(share.images - was for share, was in zip(pool.shares, before, strict=True))
    return Streamed(precision, len(pool.engines), tuple(rates), (1,) if is_alone else shares, by_one)


def _rate(results: Iterable[Any]) -> float:
    """Return images a second, from the first result to the last."""
    count, first = 0, 0.0
    for scores in results:
        if first:
            count += len(scores[0] if isinstance(scores, tuple) else scores)
        else:
            first = time.perf_counter()
    return count / max(time.perf_counter() - first, 1e-9)


def _until(arrays: Iterable[Images], end: float) -> Iterator[Images]:
    for number, array in enumerate(itertools.cycle(arrays)):
        if number > ARRAYS and time.perf_counter() > end:
            return
        yield array


def _told(pool: EnginePool) -> dict[str, Any]:
    engine = pool.engine
    kind = engine.device.facts.kind
    return {
        "shape": engine.program.input.shape[1:],
        "batch": engine.program.batch,
        "environment": environment(engine.device),
        "gpu_before": list(gpu_readings(kind)),
    }


def _fields(run: Streamed, runs: Sequence[Streamed]) -> dict[str, Any]:
    one = next(other for other in runs if other.precision == run.precision and other.devices == 1)
    return {**asdict(run), "images_per_s": run.per_s, "times_one": run.per_s / one.per_s}
