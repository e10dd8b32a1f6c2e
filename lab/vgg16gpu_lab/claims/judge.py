"""What a claim is and how it is judged: comparisons of two numbers, and in how many of them it is as the claim says.

A time that is about as short as an empty launch is a launch, not work: a comparison with one counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from textwrap import shorten
from typing import Final, Literal, TypeAlias

from vgg16gpu_lab.claims.times import Entry, Quantity, Times, number
from vgg16gpu_lab.published import Key

MARGIN: Final = 0.05  # two times that differ by less are no different; nor are those whose samples overlap
ABOUT: Final = 1.2  # "about 6 times": from 6 / 1.2 to 6 * 1.2
LAUNCHES: Final = 3  # a time below so many empty launches counts for nothing

_REASON, _REASONS = 60, 2  # characters of why a number is missing; how many of these are told

Kind: TypeAlias = Literal["said", "table", "practice", "our question"]  # a sentence, numbers alone, done without a word
Says: TypeAlias = Literal["every", "most", "some"]  # in how many of the cases it must be so


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    DOES_NOT = "does not"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Finding:
    """A verdict, the figure behind it, and the share of the cases in which the claim holds."""

    figure: str
    verdict: Verdict
    holds: int = 0
    cases: int = 0  # that count: with a number, and not too short
    which: tuple[str, ...] = ()  # labels of those that hold
    short: tuple[str, ...] = ()  # labels of those with a time too short to count


@dataclass(frozen=True)
class Judge:
    """Finds out about one side; `keys` are the numbers that it asks for by name."""

    keys: tuple[Key, ...]
    find: Callable[[Times], Finding]


@dataclass(frozen=True)
class Claim:
    """A sentence that can be tested, of a report or of ours, and how."""

    number: str  # S2.3; never used again for another claim
    section: str  # of the report: "3.3.2"; "-" where it has none
    text: str  # in our words
    kind: Kind
    test: str  # what is compared
    judge: Judge
    theirs: Finding | None = None  # where it is not their table that tells

    @property
    def seed(self) -> str:
        """The report: S2."""
        return self.number.split(".")[0]


@dataclass(frozen=True)
class Pair:
    """Two times; their ratio is second / first: how many times faster the first is."""

    label: str
    first: Quantity
    second: Quantity
    optional: bool = False  # counts where it was run


@dataclass(frozen=True)
class Growing:
    """A time at two sizes, beside another at the same two."""

    label: str
    first: tuple[Quantity, Quantity]  # before, after
    second: tuple[Quantity, Quantity]


@dataclass(frozen=True)
class Compared:
    """The two numbers of a pair."""

    label: str
    first: Entry
    second: Entry
    ratio: float  # second / first
    is_short: bool = False  # one of the two is hardly more than a launch
    unit: str = "ms"

    @property
    def is_ahead(self) -> bool:
        """Return whether the first is faster."""
        return self.ratio > 1 + MARGIN and not self._overlap

    @property
    def is_behind(self) -> bool:
        """Return whether the second is faster."""
        return self.ratio < 1 / (1 + MARGIN) and not self._overlap

    @property
    def text(self) -> str:
        """Both, and of what."""
        at = f"{self.label}: " if self.label else ""
        return f"{at}{self.first.text} against {self.second.text} {self.unit}"

    @property
    def _overlap(self) -> bool:
        """Return whether samples of one lie among those of the other: another run might turn the two around."""
        if not (self.first.spread and self.second.spread):
            return False
        return self.first.spread[0] <= self.second.spread[1] and self.second.spread[0] <= self.first.spread[1]


@dataclass(frozen=True)
class Rule:
    """What two times mean for a claim, and how much their ratio speaks against it."""

    verdict: Callable[[Compared], Verdict]
    against: Callable[[float], float]


def faster(pairs: Iterable[Pair], says: Says = "every") -> Judge:
    """Judge that the first of every pair is faster."""
    return _judged(pairs, AHEAD, says)


def no_faster(pairs: Iterable[Pair], says: Says = "every") -> Judge:
    """Judge that the first of no pair is faster than the second."""
    return _judged(pairs, Rule(lambda found: _holds(not found.is_ahead), lambda ratio: ratio), says)


def same(pairs: Iterable[Pair], says: Says = "every") -> Judge:
    """Judge that both of every pair take as long."""
    return _judged(pairs, SAME, says)


def differ(pairs: Iterable[Pair], says: Says = "most") -> Judge:
    """Judge that the two are different things: their times differ."""
    rule = Rule(lambda found: _holds(found.is_ahead or found.is_behind), lambda ratio: -_difference(ratio))
    return _judged(pairs, rule, says)


def about(factor: float, pairs: Iterable[Pair], says: Says = "every") -> Judge:
    """Judge that the first of every pair is about `factor` times faster."""
    return _judged(pairs, _between(factor / ABOUT, factor * ABOUT, factor), says)


def between(least: float, most: float, pairs: Iterable[Pair], says: Says = "every") -> Judge:
    """Judge that the first of every pair is from `least` to `most` times faster."""
    middle = least if math.isinf(most) else math.sqrt(least * most)
    return _judged(pairs, _between(least, most, middle), says)


def saves(least: float, most: float, pairs: Iterable[Pair], says: Says = "every") -> Judge:
    """Judge that the first of every pair takes less time, by a share of the second's from `least` to `most`."""
    return between(1 / (1 - least), 1 / (1 - most), pairs, says)


def growth(cases: Iterable[Growing], says: Says = "every") -> Judge:
    """Judge that the first of every case grows clearly less than the second."""
    chosen = tuple(cases)
    pairs = [Pair(each.label, *side) for each in chosen for side in (each.first, each.second)]

    def find(times: Times) -> Finding:
        found, lacking = [], []
        for case in chosen:
            sides, reasons = compare([Pair(case.label, *case.first), Pair(case.label, *case.second)], times)
            lacking += reasons[:1]
            if not reasons:
                first, second = sides
                values = Entry(first.ratio), Entry(second.ratio)
                is_short = first.is_short or second.is_short
                found.append(Compared(case.label, *values, second.ratio / first.ratio, is_short, "times"))
        return share(found, CLEARLY, says, lacking)

    return Judge(keys_of(pairs), find)


def beside(judge: Judge, other: Judge, what: str) -> Judge:
    """Judge by the first; add the figure of the other."""

    def find(times: Times) -> Finding:
        found = judge.find(times)
        return replace(found, figure=f"{found.figure}; {what}: {other.find(times).figure}")

    return Judge(tuple(dict.fromkeys((*judge.keys, *other.keys))), find)


def share(found: Sequence[Compared], rule: Rule, says: Says = "every", lacking: Sequence[str] = ()) -> Finding:
    """Return the verdict of comparisons: as many hold as the claim says, or cannot any more.

    What is missing or too close leaves open; a time too short to count does nothing. None that counts: cannot tell.
    """
    counted = [each for each in found if not each.is_short]
    short = tuple(each.label for each in found if each.is_short)
    if not counted:
        return replace(missing([_too_short(short, len(found)), *lacking] if short else lacking), short=short)
    verdicts = [rule.verdict(each) for each in counted]
    which = tuple(each.label for each, verdict in zip(counted, verdicts, strict=True) if verdict is Verdict.HOLDS)
    worst = max(counted, key=lambda each: rule.against(each.ratio))
    unsure = verdicts.count(Verdict.CANNOT_TELL) + len(lacking)
    total = len(counted) + len(lacking)
    parts = [f"{_ratios(counted)} {_where(worst, counted)}"]
    parts += [f"{len(which)} of {total} as claimed"] if total > 1 else []
    parts += [f"{unsure - len(lacking)} too close"] if unsure > len(lacking) else []
    parts += [f"{len(lacking)} missing: {_told(lacking)}"] if lacking else []
    parts += [_too_short(short, len(found))] if short else []
    verdict = verdict_of(says, len(which), unsure, total)
    return Finding("; ".join(parts), verdict, len(which), len(counted), tuple(filter(None, which)), short)


def verdict_of(says: Says, holds: int, unsure: int, total: int) -> Verdict:
    """Return the verdict if `holds` of `total` cases hold and `unsure` might."""
    needed = {"every": total, "most": total // 2 + 1, "some": 1}[says]
    if not total or holds < needed <= holds + unsure:
        return Verdict.CANNOT_TELL
    return Verdict.HOLDS if holds >= needed else Verdict.DOES_NOT


def decided(figure: str, does: bool | None) -> Finding:
    """Return the finding of one case; None: it cannot be told."""
    if does is None:
        return Finding(figure, Verdict.CANNOT_TELL)
    return Finding(figure, _holds(does), int(does), 1)


def compare(pairs: Sequence[Pair], times: Times) -> tuple[list[Compared], list[str]]:
    """Return the comparable pairs, and why others, unless they are optional, are missing."""
    found, lacking = [], []
    for pair in pairs:
        first, second = pair.first.of(times), pair.second.of(times)
        if first.value and second.value:
            is_short = pair.first.is_short(times, LAUNCHES) or pair.second.is_short(times, LAUNCHES)
            found.append(Compared(pair.label, first, second, second.value / first.value, is_short))
        elif not pair.optional:
            lacking.append(reason(first if not first.value else second))
    return found, lacking


def keys_of(pairs: Iterable[Pair]) -> tuple[Key, ...]:
    """Return every number that pairs are made of, once."""
    return tuple(dict.fromkeys(key for pair in pairs for side in (pair.first, pair.second) for key in side.keys))


def missing(reasons: Sequence[str]) -> Finding:
    """Return the finding without anything to compare."""
    return Finding(_told(reasons) or "no numbers", Verdict.CANNOT_TELL)


def reason(entry: Entry) -> str:
    """Return why there is no number, in a few words."""
    return shorten(entry.remark or entry.status, _REASON, placeholder=" ...")


def _judged(pairs: Iterable[Pair], rule: Rule, says: Says) -> Judge:
    chosen = tuple(pairs)

    def find(times: Times) -> Finding:
        found, lacking = compare(chosen, times)
        return share(found, rule, says, lacking)

    return Judge(keys_of(chosen), find)


def _between(least: float, most: float, middle: float) -> Rule:
    return Rule(lambda found: _holds(least <= found.ratio <= most), lambda ratio: abs(math.log(ratio / middle)))


def _ahead(found: Compared) -> Verdict:
    if found.is_ahead:
        return Verdict.HOLDS
    return Verdict.DOES_NOT if found.is_behind else Verdict.CANNOT_TELL


def _alike(found: Compared) -> Verdict:
    return _holds(not (found.is_ahead or found.is_behind))


def _holds(does: bool) -> Verdict:
    return Verdict.HOLDS if does else Verdict.DOES_NOT


def _difference(ratio: float) -> float:
    return max(ratio, 1 / ratio) - 1


AHEAD: Final = Rule(_ahead, lambda ratio: -ratio)
CLEARLY: Final = Rule(lambda found: _holds(found.is_ahead), lambda ratio: -ratio)
SAME: Final = Rule(_alike, _difference)


def _ratios(found: Sequence[Compared]) -> str:
    low, high = min(each.ratio for each in found), max(each.ratio for each in found)
    return f"{number(low)}x" if len(found) == 1 else f"{number(low)}x to {number(high)}x"


def _where(worst: Compared, found: Sequence[Compared]) -> str:
    return f"({worst.text})" if len(found) == 1 else f"(weakest: {worst.text})"


def _told(reasons: Sequence[str]) -> str:
    """Join the first few different reasons."""
    different = list(dict.fromkeys(reasons))
    more = [f"{len(different) - _REASONS} more"] if len(different) > _REASONS else []
    return "; ".join((*different[:_REASONS], *more))


def _too_short(short: Sequence[str], total: int) -> str:
    return f"{len(short)} of {total} too short to count"
