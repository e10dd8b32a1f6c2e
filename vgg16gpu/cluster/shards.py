"""Shards computed by one process: the pipeline of `infer`, once for each, into a file that is whole or not there."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vgg16gpu.cluster.job import JobFolder, ShardJob, WorkFolder, process_name
from vgg16gpu.cluster.pool import EnginePool
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened
from vgg16gpu.errors import InputError
from vgg16gpu.io.results import open_results, record_path
from vgg16gpu.io.results.parquet_results import partial_path
from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.io.shown import printable
from vgg16gpu.pictures.inputs import spec_of
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.runtime.answers.codec_choice import decodes_on_device
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.closing import Closing


@dataclass(frozen=True)
class ShardDone:
    """A shard whose rows are there. seconds: from its first file to its last row, which came at `ended` (Unix time)."""

    shard: int
    inputs: int
    rows: int
    errors: int  # rows without an answer
    seconds: float
    ended: float
    host: str
    process: str
    devices: tuple[str, ...]


class ShardWorker(Closing):
    """Engines that compute shards of one job, one after the other.

    Raises InputError where the model's file is not the job's, and what `EnginePool` raises.
    """

    def __init__(self, job: ShardJob, devices: Sequence[Opened] | Sequence[str]) -> None:
        """Open the job's model on `devices`, as for `EnginePool`; they are closed with this. Raises InputError."""
        self.job, self._folder, self._name = job, JobFolder(job.folder), process_name()
        model = Model(job.model)
        if (digest := model.file.digest()) != job.run.model:
            raise InputError(
                f"{printable(str(job.model))} on {socket.gethostname()} is not the job's model: its SHA-256 is "
                f"{digest[:12]}..., and not {job.run.model[:12]}...; copy the same file to every machine"
            )
        self.pool = EnginePool(model, devices=devices, **job.engine)
        spec = spec_of(self.pool.engine.graph.input, job.shape, job.preprocess)
        self._spec = replace(spec, allow_nonfinite=bool(job.engine.get("allow_nonfinite")))
        kind = self.pool.engine.device.facts.kind
        self._work = WorkFolder(self._folder.temporary)
        self._decode = job.decode if decodes_on_device(job.decode, kind, self._spec) else None

    def compute(self, shard: int, tell: Callable[[int], None] = lambda _: None) -> ShardDone:
        """Make the file of a shard. tell: is called with the number of rows that have come. Raises ModelError, ..."""
        job, folder = self.job, self._folder
        started = time.perf_counter()
        listing = job.inputs.listing(*job.cut.bounds(shard))
        temporary = self._work.rows(folder.part(shard).name)
        try:
            rows, errors = self._write(listing, temporary, tell)
            done = ShardDone(
                shard,
                len(listing.files),
                rows,
                errors,
                time.perf_counter() - started,
                time.time(),
                socket.gethostname(),
                self._name,
                tuple(share.device for share in self.pool.shares if not share.problem),
            )
            folder.log(self._name, asdict(done))
            folder.publish(shard, temporary)
        finally:
            for path in (temporary, partial_path(temporary), record_path(temporary)):
                with suppress(OSError):
                    path.unlink()
        return done

    def close(self) -> None:
        """Close the engines. Safe to call twice."""
        try:
            self.pool.close()
        finally:
            self._work.close()

    def _write(self, listing: Listing, path: Path, tell: Callable[[int], None]) -> tuple[int, int]:
        """Write the rows; return their number, and how many of them have no answer."""
        job, rows, errors = self.job, 0, 0
        ranking = Ranking(job.columns.top, job.are_probabilities)
        with (
            FilePipeline(
                listing,
                self._spec,
                job.workers,
                decodes_on_device=self._decode is not None,
                devices=len(self.pool.roll.working),
                for_gpu=self.pool.engine.device.facts.kind == "cuda",
                apart=self.pool.has_processes,
            ) as reading,
            self.pool.answers(reading, ranking, self._decode) as stream,
            open_results(path, job.columns, job.run) as results,
        ):
            answers: PredictionBatch
            for answers in stream:
                results.write(answers)
                rows += len(answers.names)
                errors += sum(map(bool, answers.errors))
                tell(len(answers.names))
            results.finish()
        return rows, errors
