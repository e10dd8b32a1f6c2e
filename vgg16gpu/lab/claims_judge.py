"""What a claim is and how it is judged: comparisons of two numbers, all of which must come out as the claim says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from textwrap import shorten
from typing import Final, Literal, TypeAlias

from vgg16gpu.lab.claims_times import Entry, Quantity, Times, number
from vgg16gpu.lab.published import Key

MARGIN: Final = 0.05  # two times that differ by less are no different; nor are those whose samples overlap
ABOUT: Final = 1.2  # "about 6 times": from 6 / 1.2 to 6 * 1.2

_REASON: Final = 60  # characters of why a number is missing

Origin: TypeAlias = Literal["said", "table", "practice"]  # in a sentence, by a table, by what was done without a word


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    DOES_NOT = "does not"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Finding:
    """A verdict and the figure behind it."""

    figure: str
    verdict: Verdict


@dataclass(frozen=True)
class Judge:
    """Finds out about one side; `keys` are the numbers that it asks for by name."""

    keys: tuple[Key, ...]
    find: Callable[[Times], Finding]


@dataclass(frozen=True)
class Claim:
    """A sentence of a report that can be tested, and how."""

    seed: str
    text: str  # as published, in our words
    origin: Origin
    test: str  # what is compared
    judge: Judge
    theirs: Finding | None = None  # where it is not their table that tells


@dataclass(frozen=True)
class Pair:
    """Two times; their ratio is second / first: how many times faster the first is."""

    label: str
    first: Quantity
    second: Quantity
    optional: bool = False  # counts where it was run


@dataclass(frozen=True)
class Compared:
    """The two times of a pair."""

    label: str
    first: Entry
    second: Entry
    ratio: float  # second / first

    @property
    def is_ahead(self) -> bool:
        """Whether the first is faster."""
        return self.ratio > 1 + MARGIN and not self._overlap

    @property
    def is_behind(self) -> bool:
        """Whether the second is faster."""
        return self.ratio < 1 / (1 + MARGIN) and not self._overlap

    @property
    def text(self) -> str:
        """Both, and of what."""
        at = f"{self.label}: " if self.label else ""
        return f"{at}{self.first.text} against {self.second.text} ms"

    @property
    def _overlap(self) -> bool:
        """Whether samples of one lie among those of the other: another run might turn the two around."""
        if not (self.first.spread and self.second.spread):
            return False
        return self.first.spread[0] <= self.second.spread[1] and self.second.spread[0] <= self.first.spread[1]


@dataclass(frozen=True)
class Rule:
    """What two times mean for a claim, and how much their ratio speaks against it."""

    verdict: Callable[[Compared], Verdict]
    against: Callable[[float], float]


def faster(pairs: Iterable[Pair]) -> Judge:
    """The first of every pair is faster."""

    def verdict(found: Compared) -> Verdict:
        if found.is_ahead:
            return Verdict.HOLDS
        return Verdict.DOES_NOT if found.is_behind else Verdict.CANNOT_TELL

    return every(pairs, Rule(verdict, lambda ratio: -ratio))


def no_faster(pairs: Iterable[Pair]) -> Judge:
    """The first of no pair is faster than the second."""
    return every(pairs, Rule(lambda found: _holds(not found.is_ahead), lambda ratio: ratio))


def same(pairs: Iterable[Pair]) -> Judge:
    """Both of every pair take as long."""
    return every(pairs, Rule(lambda found: _holds(not (found.is_ahead or found.is_behind)), _difference))


def about(factor: float, pairs: Iterable[Pair]) -> Judge:
    """The first of every pair is about `factor` times faster."""

    def verdict(found: Compared) -> Verdict:
        return _holds(1 / ABOUT <= found.ratio / factor <= ABOUT)

    return every(pairs, Rule(verdict, lambda ratio: abs(math.log(ratio / factor))))


def every(pairs: Iterable[Pair], rule: Rule) -> Judge:
    """All pairs are as the rule says: one against it refutes, one that is missing or too close leaves open."""
    chosen = tuple(pairs)

    def find(times: Times) -> Finding:
        found, lacking = compare(chosen, times)
        if not found:
            return missing(lacking)
        verdicts = [rule.verdict(each) for each in found]
        worst = max(found, key=lambda each: rule.against(each.ratio))
        figure = f"{_ratios(found)} {_where(worst, found)}{_counts(verdicts, lacking)}"
        if Verdict.DOES_NOT in verdicts:
            return Finding(figure, Verdict.DOES_NOT)
        is_open = lacking or Verdict.CANNOT_TELL in verdicts
        return Finding(figure, Verdict.CANNOT_TELL if is_open else Verdict.HOLDS)

    return Judge(keys_of(chosen), find)


def differ(pairs: Iterable[Pair]) -> Judge:
    """The two are different things: their times differ in half of the pairs, or in more."""
    chosen = tuple(pairs)

    def find(times: Times) -> Finding:
        found, lacking = compare(chosen, times)
        if not found:
            return missing(lacking)
        middle = median(_difference(each.ratio) for each in found)
        most = max(found, key=lambda each: _difference(each.ratio))
        figure = f"half differ by less than {middle:.1%}, the most is {_difference(most.ratio):.1%} ({most.text})"
        if lacking:
            return Finding(f"{figure}; {_lacking(lacking)}", Verdict.CANNOT_TELL)
        return Finding(figure, _holds(middle > MARGIN))

    return Judge(keys_of(chosen), find)


def compare(pairs: Sequence[Pair], times: Times) -> tuple[list[Compared], list[str]]:
    """The pairs that there are, and why others, unless they are optional, are missing."""
    found, lacking = [], []
    for pair in pairs:
        first, second = pair.first.of(times), pair.second.of(times)
        if first.value and second.value:
            found.append(Compared(pair.label, first, second, second.value / first.value))
        elif not pair.optional:
            lacking.append(reason(first if not first.value else second))
    return found, lacking


def keys_of(pairs: Iterable[Pair]) -> tuple[Key, ...]:
    """Every number that pairs are made of, once."""
    return tuple(dict.fromkeys(key for pair in pairs for side in (pair.first, pair.second) for key in side.keys))


def missing(reasons: Sequence[str]) -> Finding:
    """Nothing to compare."""
    return Finding("; ".join(dict.fromkeys(reasons)) or "no numbers", Verdict.CANNOT_TELL)


def reason(entry: Entry) -> str:
    """Why there is no number, in a few words."""
    return shorten(entry.remark or entry.status, _REASON, placeholder=" ...")


def _holds(does: bool) -> Verdict:
    return Verdict.HOLDS if does else Verdict.DOES_NOT


def _difference(ratio: float) -> float:
    return max(ratio, 1 / ratio) - 1


def _ratios(found: Sequence[Compared]) -> str:
    low, high = min(each.ratio for each in found), max(each.ratio for each in found)
    return f"{number(low)}x" if len(found) == 1 else f"{number(low)}x to {number(high)}x"


def _where(worst: Compared, found: Sequence[Compared]) -> str:
    return f"({worst.text})" if len(found) == 1 else f"(weakest: {worst.text})"


def _counts(verdicts: Sequence[Verdict], lacking: Sequence[str]) -> str:
    total = len(verdicts) + len(lacking)
    parts = [f"{verdicts.count(Verdict.HOLDS)} of {total} as claimed"] if total > 1 else []
    if open_ones := verdicts.count(Verdict.CANNOT_TELL):
        parts.append(f"{open_ones} too close")
    if lacking:
        parts.append(_lacking(lacking))
    return "".join(f"; {part}" for part in parts)


def _lacking(lacking: Sequence[str]) -> str:
    return f"{len(lacking)} missing: {', '.join(dict.fromkeys(lacking))}"
