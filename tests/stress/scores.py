"""fp32 under stress: a strange image among seven ordinary ones, and scales that fit nothing.

Errors of scores are max|y - r| / max|r|, r in float64; of an image of zeros max|y - r|. A library's strict float32 on
the same images says what is reasonable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.normalize import default_mean, default_std
from vgg16gpu.io.synthetic import TESTBENCH_SEED, typical_inputs
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.executor import Executor

Scores: TypeAlias = npt.NDArray[np.floating[Any]]
Reference: TypeAlias = Callable[[Array], Scores]

BATCH = 8
PLACE = 3  # of the strange image
FACTOR = 1.5  # largest error, in errors of the library
FLOOR = 1e-5  # which is always good enough
SPREAD = 20  # powers of two between the channels of an image
SCALES_OFF = (-12, 12)  # powers of two

COLUMNS = ("image", "second passes", "flagged", "error", "library", "worst other", "its library", "bits kept")


@dataclass(frozen=True)
class Stressed:
    """One batch with a strange image. Errors are those of each image; bits are compared with a clean batch."""

    name: str
    second_passes: int  # images of the batch that were run again
    flagged: bool  # whether the strange one is, run alone
    errors: tuple[float, ...]
    library_errors: tuple[float, ...]
    others_keep_bits: bool
    alone_keeps_bits: bool

    @property
    def passed(self) -> bool:
        """No image is worse than it may be, and none changes another."""
        pairs = zip(self.errors, self.library_errors, strict=True)
        precise = all(error <= max(FACTOR * library, FLOOR) for error, library in pairs)
        return precise and self.others_keep_bits and self.alone_keeps_bits

    def cells(self) -> tuple[object, ...]:
        """A row under COLUMNS."""
        others = [i for i in range(len(self.errors)) if i != PLACE]
        worst = max(others, key=lambda i: (np.isnan(self.errors[i]), self.errors[i]))
        errors = (values[i] for i in (PLACE, worst) for values in (self.errors, self.library_errors))
        kept = "yes" if self.others_keep_bits and self.alone_keeps_bits else "NO"
        flagged = "yes" if self.flagged else "no"
        return self.name, self.second_passes, flagged, *(f"{error:.2e}" for error in errors), kept


def measure(engine: Engine, exact: Reference, library: Reference) -> Iterator[Stressed]:
    """Every case, for an fp32 engine of batch size BATCH; wrong scales only where the plan has scales.

    `exact` computes scores in float64, `library` in strict float32.
    """
    channels, height, width = engine.program.input.shape[1:]
    mean, std = default_mean(channels), default_std(channels)
    *ordinary, other = typical_inputs(BATCH + 1, (channels, height, width), mean, std, TESTBENCH_SEED)
    x = np.stack(ordinary)
    for name, image in strange_images(other).items():
        yield stress(engine.executor, name, x, image, exact, library)
    for power in SCALES_OFF if engine.plan.calibration else ():
        with resident(calibrated_on(engine.plan, 2.0**power), engine) as wrong:
            name = f"ordinary, scales from samples times 2^{power}"
            yield stress(wrong, name, x, other, exact, library)


def strange_images(image: Array) -> Mapping[str, Array]:
    """What stands among ordinary images: one more of them, and what it becomes."""
    spread = (2.0 ** -np.linspace(0, SPREAD, len(image), dtype=np.float32))[:, None, None]
    noise = np.random.default_rng(TESTBENCH_SEED).standard_normal(image.shape, dtype=np.float32)
    pixel = image.copy()
    pixel[0, image.shape[1] // 3, image.shape[2] // 2] = 1e6
    return {
        "ordinary": image,
        "channels times 1 to 2^-20": image * spread,
        "channels times 2^10 to 2^-10": image * spread * np.float32(2.0 ** (SPREAD // 2)),
        "one value of 1e6": pixel,
        "noise of 1e6": noise * np.float32(1e6),
        "noise of 1e-6": noise * np.float32(1e-6),
        "zeros": np.zeros_like(image),
    }


def calibrated_on(plan: CompiledModel, factor: float) -> CompiledModel:
    """The plan with scales from samples that are `factor` times too large."""
    assert plan.calibration is not None
    samples = plan.calibration.samples * np.float32(factor)
    return replace(plan, calibration=replace(plan.calibration, samples=samples))


@contextmanager
def resident(plan: CompiledModel, engine: Engine) -> Iterator[Executor]:
    """A variant of the engine's plan, of the same kernels, beside it on its device."""
    made = Executor(plan, engine.device)
    try:
        yield made
    finally:
        made.close()


def stress(plan: Executor, name: str, ordinary: Array, image: Array, exact: Reference, library: Reference) -> Stressed:
    """What becomes of BATCH ordinary images when `image` takes the place of one."""
    mixed = ordinary.copy()
    mixed[PLACE] = image
    clean, _ = _run(plan, ordinary)
    y, second_passes = _run(plan, mixed)
    alone, flagged = _run(plan, mixed[PLACE : PLACE + 1])
    others = np.arange(BATCH) != PLACE
    expected = exact(mixed)
    return Stressed(
        name,
        second_passes,
        bool(flagged),
        errors(mixed, y, expected),
        errors(mixed, library(mixed), expected),
        others_keep_bits=y[others].tobytes() == clean[others].tobytes(),
        alone_keeps_bits=alone[0].tobytes() == y[PLACE].tobytes(),
    )


def errors(x: Array, y: Scores, expected: Scores) -> tuple[float, ...]:
    """The error of each image's scores."""
    relative, absolute = score_error(y, expected), np.abs(y - expected).max(axis=1)
    return tuple(np.where(x.reshape(len(x), -1).any(axis=1), relative, absolute).tolist())


def _run(plan: Executor, x: Array) -> tuple[Scores, int]:
    """Scores, and how many images were run again."""
    before = plan.second_passes
    scores = plan.run(BATCH, x).outputs[0]
    return scores.reshape(len(x), -1), plan.second_passes - before
