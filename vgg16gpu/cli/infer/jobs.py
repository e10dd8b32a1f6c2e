"""`infer --shard`, `infer --ray`: what the command line comes to as a job, and this process's part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

import vgg16gpu
from vgg16gpu.cli import EXIT_CHECK_FAILED, EXIT_USAGE
from vgg16gpu.cli.common.progress import Counter
from vgg16gpu.cli.common.show import console, print_json
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.common.written import model_files
from vgg16gpu.cli.infer.asked import ResolvedConfig
from vgg16gpu.cli.infer.options import InferOptions
from vgg16gpu.cli.infer.writing import run_options
from vgg16gpu.cluster.cards import have_processes, kind_of
from vgg16gpu.cluster.finish import SIZES, check_sizes, finish, read_summary, reopen
from vgg16gpu.cluster.job import JobFolder, ShardJob, shard_size
from vgg16gpu.cluster.manifest import SUFFIX, Manifest, write_manifest
from vgg16gpu.cluster.ray_run import compute, connected
from vgg16gpu.cluster.shards import ShardWorker
from vgg16gpu.compiler.class_scores import gives_probabilities
from vgg16gpu.devices import Opened
from vgg16gpu.devices.several import open_devices, resolve_devices
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.outputs import Named
from vgg16gpu.io.results import Columns, RunRecord, list_digest
from vgg16gpu.io.results.parquet_results import need_pyarrow
from vgg16gpu.io.shown import printable
from vgg16gpu.pictures.inputs import listed
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.runtime.answers.folder import default_batch


def compute_shards(options: InferOptions) -> int:
    """Compute the shards of --shard I/N that are not whole; end the job if they were the last. Return the exit code."""
    assert options.shard is not None
    number, count = options.shard
    with ExitStack() as stack:
        devices, kind = _devices(options, stack)
        job = prepared(options, kind, count)
        folder = JobFolder(job.folder)
        mine = range(number, job.cut.count, count)
        left = [shard for shard in mine if shard not in folder.whole(job.cut)]
        say(options, f"{len(mine) - len(left):,} of {len(mine):,} shards are whole")
        if left:
            reopen(folder)
            worker = stack.enter_context(ShardWorker(job, devices))
            inputs = sum(last - first for first, last in map(job.cut.bounds, left))
            with Counter("inputs", inputs, quiet=options.as_json or options.quiet) as counter:
                for shard in left:
                    if not folder.part(shard).exists():  # else another process has been faster
                        worker.compute(shard, counter.add)
    return ended(options, job)


def _devices(options: InferOptions, stack: ExitStack) -> tuple[Sequence[Opened] | Sequence[str], str]:
    """Return devices that `stack` closes, or the names of those with processes of their own; and their kind."""
    names = resolve_devices(options.devices or (options.device,))
    if have_processes(names):
        return names, kind_of(names[0])
    opened = open_devices(names)
    for each in opened:
        stack.enter_context(closing(each.device))
    return opened, opened[0].device.facts.kind


def compute_on_ray(options: InferOptions) -> int:
    """Compute all shards that are not whole on Ray; then end the job. Return the exit code."""
    assert options.ray is not None
    if options.devices or ":" in options.device:
        raise click.UsageError("--ray gives each actor its device: say --device cuda, cpu or auto")
    with connected(options.ray, options.device) as cluster:
        job = prepared(options, cluster.kind, cluster.actors)
        folder = JobFolder(job.folder)
        whole = folder.whole(job.cut)
        left = [shard for shard in range(job.cut.count) if shard not in whole]
        say(options, f"{len(whole):,} of {job.cut.count:,} shards are whole; {cluster.actors} actors on {cluster.kind}")
        if left:
            reopen(folder)
            inputs = sum(last - first for first, last in map(job.cut.bounds, left))
            with Counter("inputs", inputs, quiet=options.as_json or options.quiet) as counter:
                compute(job, cluster, left, counter.add)
    return ended(options, job)


def prepared(options: InferOptions, kind: str, workers: int) -> ShardJob:
    """Return the job, with its folder made or found to be its own.

    kind: of the devices that will compute it. workers: how many processes or actors. Raises InputError for options that
    do not go with a job, and where the folder is of another one.
    """
    _check(options)
    assert options.output is not None
    need_pyarrow(options.output)
    folder = JobFolder(options.output.absolute())
    manifest, listing = _manifest(options)
    asked = ResolvedConfig.of(options, listing)
    folder.prepare()
    folder.refuse_own(_read(options, asked.path))
    if asked.assumption and not options.quiet:
        tell(asked.assumption)
    count = manifest.count if manifest else len(listing.files)
    size = options.shard_size or folder.shard_size() or shard_size(count, workers)
    batch = max(options.batches, default=0) or default_batch(size, asked.graph, asked.shape, kind)
    digest = manifest.digest() if manifest else list_digest(listing.files)
    changes: dict[str, Any] = {**run_options(asked, kind, batch), "decode": options.decode}
    job = ShardJob(
        folder=folder.path,
        cwd=Path.cwd(),
        model=asked.path.absolute(),
        manifest=manifest.path.absolute() if manifest else folder.path / f"_manifest{SUFFIX}",
        column=manifest.column if manifest else None,
        engine={
            "precision": options.precision,
            "kernels": options.kernels,
            "batch": batch,
            "size": options.size,
            "outputs": options.outputs,
            "mean": asked.notes.mean,
            "std": asked.notes.std,
            "allow_nonfinite": options.allow_nonfinite,
        },
        shape=asked.shape,
        preprocess=asked.notes.preprocess,
        columns=Columns(asked.top, asked.names or None, options.scores, asked.score_shape, asked.graph.outputs),
        are_probabilities=gives_probabilities(asked.graph),
        decode=options.decode,
        workers=options.workers,
        run=RunRecord(asked.model.file.digest(), changes, digest, count, vgg16gpu.__version__),
        size=size,
    )
    folder.claim(job)
    if manifest is None and not job.manifest.exists():
        write_manifest(job.manifest, listing)
    return job


def _read(options: InferOptions, model: Path) -> Iterator[Named]:
    """Yield the files that the job reads, but for its inputs."""
    yield from model_files(model)
    for what, path in (("the list", options.files_from), ("the file of labels", options.labels)):
        if path is not None:
            yield what, path


def ended(options: InferOptions, job: ShardJob) -> int:
    """Print the state of the job; check and end it where all shards are whole. Return the exit code."""
    folder = JobFolder(job.folder)
    missing = job.cut.count - len(folder.whole(job.cut))
    where = printable(str(options.output))
    if missing:
        say(options, f"{missing:,} of {job.cut.count:,} shards are left to others; {where} has the rest")
        if options.as_json:
            print_json({"output": str(options.output), "shards": job.cut.count, "missing": missing})
        return 0
    summary = read_summary(folder)
    if summary is None or not check_sizes(job, folder, summary):
        summary = finish(job, folder)
    if options.as_json:
        print_json({"output": str(options.output), **{key: summary[key] for key in summary if key != SIZES}})
    elif not options.quiet:
        console().print(
            f"{summary['inputs']:,} inputs: {summary['answered']:,} answered, {summary['errors']:,} not; "
            f"{summary['shards']:,} shards in {where}",
            markup=False,
            soft_wrap=True,
        )
    if not summary["errors"]:
        return 0
    return EXIT_USAGE if not summary["answered"] else EXIT_CHECK_FAILED


def say(options: InferOptions, text: str) -> None:
    """Print a remark, unless --quiet or --json is given."""
    if not (options.quiet or options.as_json):
        tell(text)


def _check(options: InferOptions) -> None:
    """Refuse what does not go with shards. Raises InputError and UsageError."""
    named = "--shard" if options.shard else "--ray"
    if options.output is None or str(options.output) == "-":
        raise InputError(f"{named} writes a folder of parquet files; name it by --output DIR")
    if options.output.suffix and not options.output.is_dir():
        raise InputError(f"{named}: --output '{options.output}' is named as a file; give a folder")
    if options.form or options.table:
        raise click.UsageError(f"{named} goes without {'--format' if options.form else '--table'}")


def _manifest(options: InferOptions) -> tuple[Manifest | None, Listing]:
    """Return the list as a file of the user's, or as files that were found. Raises InputError."""
    if options.files_from and options.files_from.endswith(SUFFIX):
        if options.images:
            raise InputError(f"--files-from '{options.files_from}' is the whole list; name no other inputs beside it")
        return Manifest(Path(options.files_from), options.column), Listing(())
    if options.column:
        raise InputError("--column is of a list that is a .parquet file; name one by --files-from")
    return None, listed(options.images, options.files_from, recursive=options.recursive, null=options.null)
