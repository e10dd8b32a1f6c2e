"""Rows to the file of --output, and where --resume begins."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any

import vgg16gpu
from vgg16gpu.cli.infer.asked import ResolvedConfig
from vgg16gpu.cli.infer.options import InferOptions
from vgg16gpu.compiler.op_kernels.mma_pairs import pays
from vgg16gpu.compiler.op_kernels.wgmma import has_float32_choice
from vgg16gpu.compiler.quantization.scale_file import scales_path
from vgg16gpu.devices import tuned
from vgg16gpu.io.foreign.documents import OTHER_FORM, read_json
from vgg16gpu.io.foreign.outputs import refuse_read_files
from vgg16gpu.io.results import Columns, ResultWriter, RunRecord, check_output, list_digest, open_results
from vgg16gpu.io.results.opening import STANDARD_OUTPUT, files_beside
from vgg16gpu.io.results.record import record_path
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.answers.rows import first_open


class Writing:
    """The file of --output: checked at once, opened once there is a device."""

    def __init__(self, options: InferOptions) -> None:
        """Check the path. Raises InputError for one that cannot be written, or is no file of results."""
        assert options.output is not None
        self._path = options.output
        self._is_file = str(self._path) != STANDARD_OUTPUT
        check_output(self._path, resume=options.resume, form=options.form)
        self._digest: Future[str] = Future()

    def begin(self, asked: ResolvedConfig) -> None:
        """Compute the SHA-256 of the model beside whatever else is done: VGG16 has 553 MB.

        Raises InputError where the file to write is an input.
        """
        if self._is_file:
            outputs = [("--output", path) for path in (self._path, *files_beside(self._path))]
            refuse_read_files(outputs, (("an input", file) for file in asked.listing.files))
        Thread(target=self._compute, args=(asked,), name="vgg16gpu-digest", daemon=True).start()

    def open(self, asked: ResolvedConfig, device: DeviceFacts, decoder: str) -> ResultWriter:
        """Return the writer of rows. decoder: of pictures, by its name. Raises InputError as `open_results` does."""
        options = asked.options
        columns = Columns(asked.top, asked.names or None, options.scores, asked.score_shape, asked.graph.outputs)
        return open_results(
            self._path,
            columns,
            lambda: _record(asked, device, self._digest.result(), decoder),
            resume=options.resume,
            form=options.form,
        )

    def take_recorded_kernels(self) -> None:
        """Compute float32 on devices opened from now on as the run to be resumed did, if its record says how."""
        with suppress(*OTHER_FORM):
            found = read_json(record_path(self._path))["run"]["options"].get("float32")
            if found in tuned.FLOAT32_KERNELS:
                os.environ.setdefault(tuned.ENVIRONMENT, found)  # also of the processes of several devices

    def skip(self, results: ResultWriter, listing: Listing) -> tuple[int, int]:
        """Return the (file, sample) behind the rows that are done. Raises InputError where these are of other files."""
        first, names = first_open(results.done, listing)
        results.skip(names)
        return first

    def _compute(self, asked: ResolvedConfig) -> None:
        try:
            self._digest.set_result(asked.model.file.digest())
        except BaseException as error:
            self._digest.set_exception(error)


def run_options(asked: ResolvedConfig, device: str, batch: int) -> dict[str, Any]:
    """Return the options that change an answer, but for the decoder. device: its name or kind."""
    options, preprocess = asked.options, asked.notes.preprocess
    changes: dict[str, Any] = {
        "precision": options.precision,
        "kernels": options.kernels,
        "device": device,
        "batch": batch,
        "size": list(asked.shape[1:]),
        "outputs": list(asked.graph.outputs),
        "preprocess": preprocess.fields() if preprocess else None,
        "allow_nonfinite": options.allow_nonfinite,
    }
    if options.precision == "int8" and not asked.graph.integers:
        changes["scales"] = hashlib.sha256(scales_path(asked.path).read_bytes()).hexdigest()
    return changes


def _record(asked: ResolvedConfig, device: DeviceFacts, digest: str, decoder: str) -> RunRecord:
    changes = {**run_options(asked, device.name, asked.batch(device.kind)), "decode": decoder}
    options = asked.options
    if options.precision == "fp32" and options.kernels == "auto" and has_float32_choice(device):
        changes["float32"] = "mma" if pays(device) else "ffma"  # their bits differ, and `tune` may change it
    files = asked.listing.files
    return RunRecord(digest, changes, list_digest(files), len(files), vgg16gpu.__version__)
