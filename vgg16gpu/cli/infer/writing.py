"""Rows to the file of --output, and where --resume begins."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any

import vgg16gpu
from vgg16gpu.cli.infer.asked import Asked
from vgg16gpu.compiler.quantization.scale_file import scales_path
from vgg16gpu.devices.base import Device
from vgg16gpu.io.results import Columns, Results, RunRecord, list_digest, open_results
from vgg16gpu.pictures.listing import STANDARD_INPUT, Listing


class Digest:
    """SHA-256 of a model, computed beside whatever else is done: VGG16 has 553 MB."""

    def __init__(self, asked: Asked) -> None:
        self._found: Future[str] = Future()
        Thread(target=self._compute, args=(asked,), name="vgg16gpu-digest", daemon=True).start()

    def result(self) -> str:
        """Wait for it."""
        return self._found.result()

    def _compute(self, asked: Asked) -> None:
        try:
            self._found.set_result(asked.model.file.digest())
        except BaseException as error:
            self._found.set_exception(error)


def results_of(asked: Asked, device: Device, digest: Digest, *, decoder: str) -> Results:
    """Where the rows go. decoder: of pictures, by its name. Raises InputError as `open_results` does."""
    options = asked.options
    assert options.output is not None
    columns = Columns(asked.top, asked.names or None, options.scores, asked.score_shape, asked.graph.outputs)
    return open_results(
        options.output,
        columns,
        lambda: _record(asked, device, digest, decoder),
        resume=options.resume,
        form=options.form,
    )


def first_open(done: Sequence[str], listing: Listing) -> tuple[tuple[int, int], list[str]]:
    """The (file, sample) behind the rows that are done, and whose rows these are by the listing.

    done: names of rows; a file of numbers has a row for each sample.
    """
    file, sample, names = 0, 0, []
    for name in done:
        if file < len(listing.files) and sample and not _is_sample(name, listing.files[file]):
            file, sample = file + 1, 0
        if file == len(listing.files):
            break
        if listing.files[file] in listing.numbers and _is_sample(name, listing.files[file]):
            names.append(name)
            sample += 1
        else:
            names.append(listing.files[file])
            file += 1
    return (file, sample), names


def _is_sample(name: str, file: str) -> bool:
    return name.startswith("standard input" if file == STANDARD_INPUT else file)


def _record(asked: Asked, device: Device, digest: Digest, decoder: str) -> RunRecord:
    options, preprocess = asked.options, asked.notes.preprocess
    changes: dict[str, Any] = {
        "precision": options.precision,
        "kernels": options.kernels,
        "device": device.facts.name,
        "batch": asked.batch(device.facts.kind),
        "size": list(asked.shape[1:]),
        "outputs": list(asked.graph.outputs),
        "preprocess": preprocess.fields() if preprocess else None,
        "decode": decoder,
        "allow_nonfinite": options.allow_nonfinite,
    }
    if options.precision == "int8" and not asked.graph.integers:
        changes["scales"] = hashlib.sha256(scales_path(asked.path).read_bytes()).hexdigest()
    files = asked.listing.files
    return RunRecord(digest.result(), changes, list_digest(files), len(files), vgg16gpu.__version__)
