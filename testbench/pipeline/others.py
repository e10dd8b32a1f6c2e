"""What others do with the same folder: their processes, one after the other, and what they have in common with ours."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testbench.peers.folder import (
    BATCH,
    WAYS,
    FolderAnswer,
    FolderSetting,
    check_folder_peer,
    run_folder_peer,
)
from testbench.pipeline.wanted import Work
from testbench.pipeline.whole_runs import WholeRuns
from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.process import PeerFailureError
from vgg16gpu.bench.records.findings import Absent

Run = Callable[[FolderSetting], FolderAnswer]


@dataclass(frozen=True)
class Other:
    """One way of another framework, all repeats. same_best: how many of its best classes are those of our rows."""

    name: str
    precision: str
    answers: tuple[FolderAnswer, ...]
    same_best: int

    def fields(self) -> dict[str, Any]:
        """As plain data."""
        rates, whole = [each.pictures_per_s for each in self.answers], [each.whole_s for each in self.answers]
        return {
            "name": self.name,
            "precision": self.precision,
            "batch": BATCH,
            "pictures": len(self.answers[0].best),
            "pictures_per_s": statistics.median(rates),
            "samples_per_s": rates,
            "whole_s": statistics.median(whole),
            "whole_samples_s": whole,
            "same_best": self.same_best,
        }


@dataclass
class Others:
    """All of them, and who is not there."""

    found: list[Other]
    absent: list[Absent]


def measure_others(
    work: Work, ours: WholeRuns, cores: int, others: Others, say: Callable[[str], None], run: Run = run_folder_peer
) -> None:
    """Every way in the precision of `ours`, one after the other; what is found goes to `others`."""
    precision = ours.precision
    for way in WAYS:
        try:
            check_folder_peer(ours.kind, precision)
            others.found.append(_measured(way, work, ours, cores, say, run))
        except PeerError as error:
            others.absent.append(Absent(way, str(error), precision))
        except PeerFailureError as error:
            others.absent.append(Absent(way, str(error), precision, output=error.output))


def _measured(way: str, work: Work, ours: WholeRuns, cores: int, say: Callable[[str], None], run: Run) -> Other:
    wanted, precision = work.wanted, ours.precision
    ordinal = int(wanted.device.partition(":")[2] or 0)
    path, fields = str(wanted.model.path), work.preprocess.fields()
    setting = FolderSetting(way, path, precision, ordinal, work.shape, fields, work.files, cores)
    answers = []
    for number in range(1, 1 + wanted.repeats):
        say(f"{precision}: {way}, {number} of {wanted.repeats}")
        answers.append(run(setting))
    same = sum(mine == theirs for mine, theirs in zip(ours.best, answers[-1].best, strict=False))
    return Other(way, precision, tuple(answers), same)
