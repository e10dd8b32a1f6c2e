"""Where the time of a run went, as the report has it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from vgg16gpu.cli.infer.engines import ReportedEngine
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.arrays import Images

STEADY_RUNS = 3  # for a steady time
STEADY_BUDGET = 1.0  # seconds that they may take together
_PRIME = 251  # no row of a picture is as the one before
_LIMITED = 0.8  # a stage at work for so much of the time is what the others wait for


@dataclass(frozen=True)
class Stages:
    """Seconds of each stage; they work beside each other.

    reading, decoding: of `threads` threads together, and `held`, in which these waited for the stages behind them.
    """

    wall: float  # from the start of reading to the last row
    building: float  # of it, until the engine was there
    threads: int
    reading: float
    decoding: float
    held: float
    computing: float  # uploading, and waiting for the device
    starved: float  # the device without inputs
    ranking: float
    writing: float
    decoders: int = 0  # of the GPU
    decoding_on_gpu: float = 0.0  # of these together

    @classmethod
    def of(cls, folder: FilePipeline, stream: AnswerStream, answering: float, writing: float) -> Stages:
        """Those of a run that ends now. answering: seconds since the engine was there."""
        loading, device, told = folder.loader.seconds, stream.seconds, stream.decoded
        wall = time.perf_counter() - folder.started
        return cls(
            wall,
            wall - answering,
            folder.loader.threads,
            loading.reading,
            loading.decoding,
            loading.waiting,
            device.computing,
            device.waiting,
            stream.ranking_seconds,
            writing,
            told.decoders if told else 0,
            told.seconds if told else 0.0,
        )

    @property
    def answering(self) -> float:
        """From there to the last row."""
        return self.wall - self.building

    @property
    def shares(self) -> Mapping[str, float]:
        """How much of the time each stage was at work."""
        seconds = {
            "building": self.building,
            "reading": self.reading / self.threads,
            "decoding": self.decoding / self.threads,
            "computing": self.computing,
            "ranking": self.ranking,
            "writing": self.writing,
        }
        if self.decoders:
            seconds["decoding on the GPU"] = self.decoding_on_gpu / self.decoders
        return {name: value / self.wall for name, value in seconds.items()}

    @property
    def limit(self) -> str:
        """The stage that was at work nearly all the time; "start" where none was, or nothing but building."""
        shares = {name: share for name, share in self.shares.items() if name != "building"}
        loading = shares["reading"] + shares["decoding"]
        busiest = max(shares, key=lambda name: shares[name])
        if max(loading, shares[busiest]) < _LIMITED:
            return "start"
        if loading >= shares[busiest]:
            return "reading" if shares["reading"] > shares["decoding"] else "decoding"
        return busiest


def steady_seconds(engine: ReportedEngine, run: Callable[[Images], object], first_run: float) -> float | None:
    """A run of the engine's batch by `run`, once warm, host to host: the median of some; None where one takes long.

    Of numbers that mean nothing: times do not depend on them.
    """
    runs = min(STEADY_RUNS, int(STEADY_BUDGET / max(first_run, 1e-6)))
    entries = engine.program.input.entries
    shape = engine.program.input.shape
    pixels = np.arange(_PRIME, dtype=np.uint8)  # numpy's random numbers take 10 ms to import
    x: Images
    if "uint8" in entries:
        x = np.resize(pixels, (shape[0], *shape[2:], shape[1]))
    else:
        x = np.resize(pixels.astype(np.float32) / np.float32(_PRIME), engine.graph.input.in_file(shape))
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run(x)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) if seconds else None
