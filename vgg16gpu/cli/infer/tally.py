"""What the answers to many inputs come to, in memory that does not grow with their number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.io.shown import printable

REASONS = 1000  # kinds of errors that are told apart; further ones count together
OTHER = "other reasons"


@dataclass
class RunSummary:
    """Counts, and the first `keep` inputs as they are; all of them if it is None.

    names: of the classes; empty where there are none.
    """

    names: Sequence[str]
    keep: int | None
    total: int = 0
    unread: int = 0  # inputs that could not be read
    silent: int = 0  # inputs that were computed and have no answer
    first_silent: str = ""  # the first of these, and why
    reasons: Counter[str] = field(default_factory=Counter)
    classes: Counter[int] = field(default_factory=Counter)
    probability: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))  # the sum, by class
    inputs: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[dict[str, str]] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """Inputs with an answer."""
        return self.total - self.unread - self.silent

    @property
    def is_whole(self) -> bool:
        """Return whether every input is kept."""
        return len(self.inputs) + len(self.unreadable) == self.total

    def add(self, answers: PredictionBatch) -> None:
        """Add the answers."""
        self.total += len(answers.names)
        bests = answers.best[:, 0].tolist() if answers.best.shape[1] else ()
        for best, certain in zip(bests, answers.probabilities[:, 0].tolist() if bests else (), strict=True):
            if best >= 0:
                self.classes[best] += 1
                self.probability[best] += certain
        for i, error in enumerate(answers.errors):
            if error:
                self._add_error(answers, i)
            if self.keep is None or len(self.inputs) + len(self.unreadable) < self.keep:
                self._keep(answers, i)

    def _add_error(self, answers: PredictionBatch, i: int) -> None:
        if i in answers.unread:
            self.unread += 1
        else:
            self.silent += 1
            self.first_silent = self.first_silent or f"'{printable(answers.names[i])}': {answers.errors[i]}"
        # Without the name the same fault counts as the same.
        reason = printable(answers.errors[i].removeprefix(f"'{answers.names[i]}' "))
        self.reasons[reason if reason in self.reasons or len(self.reasons) < REASONS else OTHER] += 1

    def _keep(self, answers: PredictionBatch, i: int) -> None:
        name, error = answers.names[i], answers.errors[i]
        if i in answers.unread:
            self.unreadable.append({"name": name, "problem": error})
            return
        lines = []
        if not error:
            for k, probability in zip(answers.best[i].tolist(), answers.probabilities[i].tolist(), strict=True):
                score = float(answers.scores[i].flat[k])
                lines.append({"index": k, "label": self.names[k], "score": score, "probability": probability})
        self.inputs.append({"name": name, "top": lines, "problem": error})
