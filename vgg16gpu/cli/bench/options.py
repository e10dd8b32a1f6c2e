"""What `bench` is asked for: its command line, as values, and which options go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from vgg16gpu.bench.records.plot import check_plot
from vgg16gpu.io.files import check_outputs


@dataclass(frozen=True)
class BenchOptions:
    """The command line, as it is."""

    model: str | None
    device: str
    devices: tuple[str, ...] | None
    precisions: tuple[str, ...]
    kernels: str
    size: tuple[int, int] | None
    outputs: tuple[str, ...] | None
    batches: tuple[int, ...]
    iterations: tuple[int, ...]
    repeats: int | None
    seconds: float | None
    sustained: float | None
    against: tuple[str, ...]
    compiled: bool
    cold_start: bool
    output: Path | None
    plot: Path | None
    compare: Path | None
    threshold: float
    as_json: bool

    def check(self) -> None:
        """Complain about options and files now rather than after minutes of measuring."""
        if self.devices:
            self._check_devices()
        if self.outputs and (self.against or self.cold_start):
            named = "--against" if self.against else "--cold-start"
            raise click.UsageError(f"{named} measures whole models: it goes without --outputs")
        check_outputs({"--output": self.output, "--plot": self.plot})
        if self.plot:
            check_plot(self.plot)

    @property
    def _of_one_model(self) -> dict[str, object]:
        """Options that only the benchmark of a single model takes; None where not given."""
        return {
            "--outputs": self.outputs,
            "--iterations": self.iterations or None,
            "--sustained": self.sustained,
            "--compile": self.compiled or None,
            "--cold-start": self.cold_start or None,
            "--plot": self.plot,
            "--compare": self.compare,
        }

    def _check_devices(self) -> None:
        _refuse(
            "--devices measures how several share the work",
            {"--against": self.against or None, **self._of_one_model},
        )
        if len(self.batches) > 1:
            raise click.UsageError(f"--devices runs one batch size, and --batch has {len(self.batches)}; give one")


def _refuse(what: str, others: Mapping[str, object]) -> None:
    """Raise UsageError for options that are given, and do not go with this benchmark."""
    if given := [name for name, value in others.items() if value is not None]:
        raise click.UsageError(f"{what}: it goes without {', '.join(given)}")
