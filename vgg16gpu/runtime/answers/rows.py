"""Results of batches, back in the order of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vgg16gpu.compiler.class_scores import class_count
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.scores import PredictionBatch, Ranked, ranked
from vgg16gpu.pictures.listing import STANDARD_INPUT, Listing
from vgg16gpu.pictures.loading.loader import InOrder
from vgg16gpu.pictures.slots import Failure
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.program.types import HasFacts
from vgg16gpu.runtime.answers.feed import Computed
from vgg16gpu.runtime.outputs import OutputRows, problems


class Answering(Protocol):
    """An engine of this process or of another one, as far as its answers depend on it."""

    @property
    def program(self) -> LaunchPlan:
        """What a run of the largest batch size gives."""

    @property
    def allows_nonfinite(self) -> bool:
        """Return whether inputs may hold NaN and Inf."""

    @property
    def device(self) -> HasFacts:
        """Where it computes."""


class Ranking(NamedTuple):
    """How classes are chosen. top: how many for each input, 0 where the output has no classes."""

    top: int
    are_probabilities: bool = False


class FileEvents(NamedTuple):
    """What a slot says beside its rows."""

    failures: list[Failure]
    ends: list[tuple[int, int]]


class _BatchRows(NamedTuple):
    """What a batch gave: arrays with a row for each input, and the ranks; problems by row."""

    outputs: tuple[Array, ...]
    ranked: Ranked
    problems: Sequence[str]


class _Answer(NamedTuple):
    name: str
    problem: str
    block: _BatchRows | None = None
    row: int = 0


class AnswerRows:
    """Takes what comes in any order, gives it out in that of the files. first: the (file, sample) to begin with."""

    def __init__(self, engine: Answering, ranking: Ranking, first: tuple[int, int] = (0, 0)) -> None:
        self._ranking, self._allows_nonfinite = ranking, engine.allows_nonfinite
        self._order: InOrder[_Answer] = InOrder(first)
        outputs = engine.program.outputs
        self._shapes = [y.shape if engine.program.is_whole(y) else y.shape[1:] for y in outputs]

    @property
    def file(self) -> int:
        """The first file whose answers are not all out."""
        return self._order.file

    def add(self, told: Computed | FileEvents) -> PredictionBatch | None:
        """The answers whose turn has come; None where there are none."""
        if isinstance(told, FileEvents):
            self._hear(told)
        else:
            self._take(told)
        ready = self._order.ready()
        return self._joined(ready) if ready else None

    def _hear(self, told: FileEvents) -> None:
        for failure in told.failures:
            self._order.add(failure.file, failure.sample, _Answer(failure.name, failure.problem))
        for file, count in told.ends:
            self._order.end(file, count)

    def _take(self, batch: Computed) -> None:
        block = self._ranked(batch.results)
        for number, row in enumerate(batch.rows):
            self._order.add(row.file, row.sample, _Answer(row.name, block.problems[number], block, number))

    def _ranked(self, results: OutputRows) -> _BatchRows:
        scores = results.outputs[0]
        top = self._ranking.top if class_count(scores.shape) else 0  # a feature map has no classes
        found = ranked(scores.reshape(len(scores), -1), top, are_probabilities=self._ranking.are_probabilities)
        told = found.problems
        if results.is_flagged:
            words = problems(results, self._allows_nonfinite)
            told = [word or problem for word, problem in zip(words, told, strict=True)]
        return _BatchRows(results.outputs, found, told)

    def _joined(self, answers: Sequence[_Answer]) -> PredictionBatch:
        count, width = len(answers), self._width()
        outputs = [np.full((count, *shape), np.nan, np.float32) for shape in self._shapes]
        best, probabilities = np.full((count, width), -1, np.intp), np.full((count, width), np.nan)
        for block, places, rows in _by_block(answers):
            for output, source in zip(outputs, block.outputs, strict=True):
                output[places] = source[rows]
            best[places] = block.ranked.best[rows]
            probabilities[places] = block.ranked.probabilities[rows]
        names = [answer.name for answer in answers]
        errors = [answer.problem for answer in answers]
        unread = frozenset(i for i, answer in enumerate(answers) if answer.block is None)
        return PredictionBatch(names, errors, outputs[0], best, probabilities, tuple(outputs[1:]), unread)

    def _width(self) -> int:
        return min(self._ranking.top, class_count((1, *self._shapes[0])))


def _by_block(answers: Sequence[_Answer]) -> Iterable[tuple[_BatchRows, list[int], list[int]]]:
    """Each block with the places of its rows among the answers: rows are copied together, not one by one."""
    found: dict[int, tuple[_BatchRows, list[int], list[int]]] = {}
    for i, answer in enumerate(answers):
        if answer.block is not None and not answer.problem:
            _, places, rows = found.setdefault(id(answer.block), (answer.block, [], []))
            places.append(i)
            rows.append(answer.row)
    return found.values()


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
