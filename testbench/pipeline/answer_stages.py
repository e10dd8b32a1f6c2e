"""What the thread behind the device does alone: scores to answers in the order of the files, answers to a CSV."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

import vgg16gpu
from testbench.pipeline.stage import Place, Samples, StageTime, timed
from testbench.pipeline.wanted import TOP, Work
from vgg16gpu.compiler.class_scores import class_count, gives_probabilities
from vgg16gpu.io.results import Columns, ResultWriter, RunRecord, open_results
from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.pictures.slots import SampleRow
from vgg16gpu.runtime import outputs
from vgg16gpu.runtime.answers.feed import Computed
from vgg16gpu.runtime.answers.rows import AnswerRows, FileEvents, Ranking
from vgg16gpu.runtime.engine import Engine

RANKING: Final = "ranking"
WRITING: Final = "writing"


def measure_answers(
    work: Work, engine: Engine, images: npt.NDArray[np.uint8], folder: Path
) -> tuple[StageTime, StageTime]:
    """Ranking and writing of a row for each picture. images: one batch, whose scores every batch gets."""
    ranked: list[list[PredictionBatch]] = []
    batches, repeats = _batches(work, engine, images), work.wanted.repeats
    ranking = Ranking(_top(engine), gives_probabilities(engine.graph))
    samples = timed(repeats, lambda: ranked.append(_rank(engine, ranking, batches)), ranked.clear)
    count = len(work.files)
    first = StageTime(RANKING, Place.WRITER, count, samples.wall, samples.cpu)
    found = []
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-", dir=folder) as place:
        for number in range(repeats):
            with _open(work, engine, Path(place, f"rows-{number}.csv")) as results:
                found.append(timed(1, partial(_write, results, ranked[0])))
                results.finish()  # forces the bytes to the disk, once: no part of a rate
    samples = Samples(tuple(each.wall[0] for each in found), tuple(each.cpu[0] for each in found))
    return first, StageTime(WRITING, Place.WRITER, count, samples.wall, samples.cpu)


def _batches(work: Work, engine: Engine, images: npt.NDArray[np.uint8]) -> list[tuple[Computed, FileEvents]]:
    """What a run hears of the device and of the threads that decode, for every picture."""
    given = engine.run(images)
    values = zip(engine.program.outputs, given if isinstance(given, tuple) else (given,), strict=True)
    scores = [array[np.newaxis] if engine.program.is_whole(value) else array for value, array in values]
    size, found = engine.program.batch, []
    for begin in range(0, len(work.files), size):
        files = work.files[begin : begin + size]
        rows = [SampleRow(begin + i, 0, name, 0) for i, name in enumerate(files)]
        flags = np.zeros(len(rows), np.bool_)
        results = outputs.OutputRows(tuple(output[: len(rows)] for output in scores), flags, flags)
        found.append((Computed(rows, results, 0.0), FileEvents([], [(row.file, 1) for row in rows])))
    return found


def _rank(engine: Engine, ranking: Ranking, batches: Sequence[tuple[Computed, FileEvents]]) -> list[PredictionBatch]:
    rows = AnswerRows(engine, ranking)
    told = (each for batch in batches for each in batch)
    return [answers for each in told if (answers := rows.add(each))]


def _open(work: Work, engine: Engine, path: Path) -> ResultWriter:
    top, shape = _top(engine), _row_shape(engine)
    labels = work.wanted.model.labels(shape[0]) if top else None
    run = RunRecord("", {}, None, len(work.files), vgg16gpu.__version__)
    return open_results(path, Columns(top, labels, scores=False, shape=shape, outputs=engine.graph.outputs), run)


def _write(results: ResultWriter, answers: Sequence[PredictionBatch]) -> None:
    for each in answers:
        results.write(each)


def _top(engine: Engine) -> int:
    return min(TOP, class_count((1, *_row_shape(engine))))


def _row_shape(engine: Engine) -> tuple[int, ...]:
    """Of a row of the first output."""
    first = engine.program.outputs[0]
    return first.shape if engine.program.is_whole(first) else first.shape[1:]
