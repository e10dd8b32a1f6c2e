"""What a benchmark is asked for, and what it finds, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.layers import LayerTime
from vgg16gpu.bench.measure.timing import GpuState, Method, Regime, Summary
from vgg16gpu.compiler.model import Model


@dataclass(frozen=True)
class BenchmarkConfig:
    """What to measure. None stands for the default of the kind of device."""

    model: Model
    device: str = "auto"
    precisions: tuple[str, ...] = ("fp32",)
    kernels: str = "auto"
    size: tuple[int, int] | None = None
    batches: tuple[int, ...] = ()  # empty: the model's own, else 1
    iterations: tuple[int, ...] = ()
    repeats: int | None = None
    seconds: float | None = None  # of load for each number
    sustained: float | None = None  # seconds of load before the sustained numbers; 0: none of those
    against: tuple[str, ...] = ()
    compiled: bool = False  # torch.compile too
    outputs: tuple[str, ...] | None = None  # what is computed in place of the model's outputs; the first is checked


@dataclass(frozen=True)
class Absent:
    """A peer that was asked for, or one variant of it, without a number where it should have one, and why.

    `precision` and `batch` are None where that holds for all of them.
    """

    name: str
    reason: str
    precision: str | None = None
    batch: int | None = None
    variant: str = ""  # empty: the whole peer
    output: tuple[str, ...] = ()  # the last lines that its process wrote


@dataclass
class Remarks:
    """What is to be said beside the numbers: notes, and who has none."""

    notes: list[str] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Remember a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def miss(self, absent: Absent) -> None:
        """Remember who has no number, once."""
        if absent not in self.absent:
            self.absent.append(absent)


@dataclass(frozen=True)
class Measured:
    """One number: how it was taken, and what it is. `gpu` is known of the sustained regime."""

    regime: Regime
    method: Method
    summary: Summary
    gpu: GpuState | None = None


@dataclass(frozen=True)
class BenchmarkEntry:
    """One way to run one batch size. `error` is against onnxruntime for ours, else against ours; None: unknown.

    `unchecked` says why the scores of this one mean nothing, where it is there for its time alone. `tf32`: its products
    are of TF32.
    """

    name: str
    variant: str
    error: float | None
    unchecked: str
    times: tuple[Measured, ...]
    tf32: bool = False


@dataclass(frozen=True)
class BatchResult:
    """Everything measured with one precision and batch size; ours is the first entry."""

    precision: str
    batch: int
    entries: tuple[BenchmarkEntry, ...]
    layers: tuple[LayerTime, ...]
    flop: int
    readings: Sequence[Mapping[str, str]]  # of the cards, right after the cool regime


@dataclass
class Findings:
    """What a benchmark found. `failures` are what of ours went wrong and was not timed for it."""

    input_shape: tuple[int, ...]  # of one sample
    device_choice: str
    environment: Mapping[str, Any]
    kind: str
    ceilings: Ceilings
    sustained_s: float
    kernels: str = "auto"
    arithmetic: dict[str, str] = field(default_factory=dict)  # what multiplies, by the precision
    batches: list[BatchResult] = field(default_factory=list)
    iterations: list[tuple[str, int, float, Summary]] = field(default_factory=list)  # precision, count, mean, summary
    remarks: Remarks = field(default_factory=Remarks)
    failures: list[str] = field(default_factory=list)
    readings_before: Sequence[Mapping[str, str]] = ()
