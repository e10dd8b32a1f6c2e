"""Calibration on several devices: each counts the values of its images, and the counts are added up."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np

from vgg16gpu.cluster.building import PoolEngine
from vgg16gpu.cluster.crew import DeviceState
from vgg16gpu.cluster.pool import EnginePool
from vgg16gpu.compiler.model import ModelSource
from vgg16gpu.compiler.quantization.scheme import Histogram, quantised_inputs
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.pictures.inputs import NamedInput, batched
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.calibration import Calibration, Counting, calibration_options, chosen
from vgg16gpu.runtime.engine import Engine


def calibration_pool(model: ModelSource, devices: str | Sequence[str], **options: Any) -> EnginePool:
    """Return a pool for `calibrate_on`, with further options of `EnginePool`."""
    opened, wanted = calibration_options(model, options)
    return EnginePool(opened, devices=devices, **wanted)


def calibrate_on(pool: EnginePool, inputs: Iterable[NamedInput]) -> Calibration:
    """Calibrate as `runtime.calibration.calibrate` does, on all devices of a `calibration_pool`: the same scales.

    A device that fails is taken out, and others run its images again, which are kept for that. Raises as that function,
    and what the last device raises.
    """
    signed = quantised_inputs(pool.engine.graph)
    whole = {name: Histogram() for name in signed}
    source = _Source(inputs, min(program.batch for program in pool.engine.plan.programs))
    batches: Iterator[Images] = source
    with ThreadPoolExecutor(len(pool.engines), "vgg16gpu-calibrate") as threads:
        while True:
            shares = list(threads.map(partial(_count, pool, _Shared(batches)), pool.roll.working))
            for share in shares:
                for name, histogram in share.histograms.items():
                    whole[name].add_all(histogram)
            lost = [images for share in shares for images in share.lost]
            if not lost:
                return chosen(whole, signed, source.images, source.digest.hexdigest())
            batches = iter(lost)


class _Source:
    """The images of all inputs as batches of one size, and what is told of them together."""

    def __init__(self, inputs: Iterable[NamedInput], size: int) -> None:
        self.images, self.digest = 0, hashlib.sha256()
        self._batches = batched(inputs, size)

    def __iter__(self) -> Iterator[Images]:
        return self

    def __next__(self) -> Images:
        images = cast(Images, np.stack([item.array for item in next(self._batches)]))
        self.digest.update(images.reshape(-1).data)
        self.images += len(images)
        return images


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, batches: Iterator[Images]) -> None:
        self._batches, self._lock = batches, threading.Lock()

    def __iter__(self) -> Iterator[Images]:
        return self

    def __next__(self) -> Images:
        with self._lock:
            return next(self._batches)


class _Counted:
    """What one device counted, or what it had of the images when it failed."""

    def __init__(self, histograms: Mapping[str, Histogram], lost: Sequence[Images] = ()) -> None:
        self.histograms, self.lost = histograms, lost


def _count(pool: EnginePool, batches: Iterable[Images], member: DeviceState[PoolEngine]) -> _Counted:
    done: list[Images] = []
    engine = member.engine
    names = tuple(quantised_inputs(engine.graph))
    try:
        with Counting(engine, names) if isinstance(engine, Engine) else engine.counting(names) as counting:
            for images in batches:
                done.append(images)
                counting.count(images)
            histograms = counting.histograms()
    except (DeviceError, KernelError) as error:
        if not pool.roll.take_out(member, error):
            raise
        return _Counted({}, done)
    member.share.images += sum(map(len, done))
    member.share.batches += len(done)
    return _Counted(histograms)
