"""What `infer` is asked for: its command line, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vgg16gpu.cli.common.preprocess_options import PixelOptions

MANY = 20  # inputs; more are summed up unless every one is asked for


@dataclass(frozen=True)
class InferOptions:
    """The command line, as it is."""

    images: tuple[str, ...]
    files_from: str | None
    null: bool  # names in it stand between zero bytes
    recursive: bool
    model: str | None
    device: str
    devices: tuple[str, ...] | None
    precision: str
    kernels: str
    batches: tuple[int, ...]
    size: tuple[int, int] | None
    outputs: tuple[str, ...] | None
    top: int
    output: Path | None
    form: str | None  # of standard output
    scores: bool
    resume: bool
    shard: tuple[int, int] | None
    shard_size: int | None
    ray: str | None
    column: str | None  # of a list that is a parquet file
    pixels: PixelOptions
    labels: Path | None
    allow_nonfinite: bool
    workers: int | None
    decode: str
    table: bool
    as_json: bool
    quiet: bool
    verbose: int

    @property
    def shows_report(self) -> bool:
        """Return whether the screen gets a report: rows on standard output stand alone there."""
        return not (self.as_json or self.quiet or str(self.output) == "-")
