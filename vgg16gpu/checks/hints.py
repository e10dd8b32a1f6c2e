"""Why references may not agree with scores that are right: each hint names what was found, and what to do.

A hint is not a guess: with what it names set right, nine of ten failing inputs agree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import Rounding, rounding_of, score_error
from vgg16gpu.io.scores import Scores, softmax
from vgg16gpu.io.shown import printable

_Rows: TypeAlias = npt.NDArray[np.float64]

_ENOUGH: Final = 0.9  # of the failing inputs
_DIFFERENT: Final = 0.9  # of the classes of a permutation: fewer are chance
_LOOKED_AT: Final = 256  # failing inputs
_SUM_ERROR: Final = 1e-3  # of probabilities
_MOST: Final = 0.1  # by which probabilities may differ, whatever the precision
_FLOAT32: Final = 1e-6  # softmax by another library


@dataclass(frozen=True)
class _SameForm:
    """Ours and theirs, brought to the same form."""

    ours: _Rows
    theirs: _Rows
    allowed: _Rows  # for each number
    words: str  # what was found and what to do; "" where nothing was to be done


def reference_hints(names: Sequence[str], scores: Scores, references: Scores, bound: float) -> tuple[str, ...]:
    """Return a line for each reason why (N, K) references differ from the scores of inputs with these names.

    Empty where `score_error` of every input is within `bound`, and where nothing was found.
    """
    failing = np.flatnonzero(~(score_error(scores, references) <= bound))[:_LOOKED_AT]
    if not failing.size:
        return ()
    ours, theirs = scores[failing].astype(np.float64), references.astype(np.float64)
    with np.errstate(all="ignore"):  # NaN and infinite scores agree with nothing
        exact = next(_found(names, failing, ours, theirs, np.zeros(theirs.shape), bound), None)
        if exact is not None:
            return (exact,)
        if (rounding := rounding_of(references)) is None:
            return ()
        found = next(_found(names, failing, ours, theirs, rounding.slack, bound), None)
        if found is None:
            return ()
        return (found, _rounded(rounding)) if found else (f"{_rounded(rounding)}, {_allowed(rounding, theirs, bound)}",)


def _found(
    names: Sequence[str], failing: npt.NDArray[np.intp], ours: _Rows, theirs: _Rows, slack: _Rows, bound: float
) -> Iterator[str]:
    """Yield explanations of the failing inputs, as hints; "" where `slack` explains them."""
    form = _form(ours, theirs, slack, bound)
    rows = form.theirs[failing], form.allowed[failing]
    if _agree(form.ours, *rows):
        yield form.words
    if _agree(-form.ours, *rows):
        yield _joined(
            form.words, "the references have the other sign: these scores times -1 agree with them; turn their sign"
        )
    place = _nearest(form.ours, form.theirs)
    if _agree(form.ours, form.theirs[place], form.allowed[place]):
        yield _joined(form.words, _shuffled(names, failing, place))
    if (order := _classes(form.ours, rows[0])) is not None and _agree(form.ours, *(part[:, order] for part in rows)):
        yield _joined(form.words, _reordered(order))


def _form(ours: _Rows, theirs: _Rows, slack: _Rows, bound: float) -> _SameForm:
    """Convert both to the same form, if one is probabilities or their logarithms and the other is not."""
    near = bound * _largest(theirs) + slack
    ours_sum, theirs_sum = _are_probabilities(ours, 0), _are_probabilities(theirs, slack)
    if theirs_sum and not ours_sum:
        return _SameForm(softmax(ours), theirs, slack + np.nanmax(_error_of_probabilities(ours, bound)), _PROBABILITIES)
    if ours_sum and not theirs_sum:
        is_log = _are_probabilities(np.exp(theirs), slack)
        allowed = _error_of_probabilities(theirs, bound) + slack
        return _SameForm(ours, softmax(theirs), allowed, _LOGARITHMS if is_log else _BEFORE_SOFTMAX)
    if _are_probabilities(np.exp(theirs), slack) and not _are_probabilities(np.exp(ours), 0):
        return _SameForm(_log_softmax(ours), theirs, 2 * near, _LOGARITHMS)
    return _SameForm(ours, theirs, near, "")


_PROBABILITIES: Final = (
    "the references look like probabilities: their rows sum to 1, and softmax of these scores agrees with them; give "
    "the scores from before the softmax"
)
_LOGARITHMS: Final = (
    "the references look like logarithms of probabilities, and those of these scores agree with them; give what the "
    "model itself answers"
)
_BEFORE_SOFTMAX: Final = (
    "the references look like scores from before the softmax that this model ends with: softmax of them agrees; give "
    "probabilities"
)


def _are_probabilities(rows: _Rows, slack: _Rows | int) -> bool:
    """Return whether each row that can be judged is one of probabilities."""
    rest = rows[np.isfinite(rows).all(axis=1)]
    room = min(_MOST, _SUM_ERROR + float(np.max(np.sum(slack * np.ones(rows.shape), axis=1), initial=0.0)))
    inside = bool((rest >= -_FLOAT32).all() and (rest <= 1 + _SUM_ERROR).all())
    return bool(rest.size) and rows.shape[1] > 1 and inside and bool((np.abs(rest.sum(axis=1) - 1) <= room).all())


def _error_of_probabilities(scores: _Rows, bound: float) -> _Rows:
    """Return how much softmax may differ if scores do by `bound`: probabilities change at most half as fast."""
    return np.minimum(bound * _largest(scores) / 2, _MOST) + _FLOAT32


def _log_softmax(scores: _Rows) -> _Rows:
    below = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


def _largest(rows: _Rows) -> _Rows:
    return np.asarray(np.abs(rows).max(axis=1, keepdims=True))


def _agree(ours: _Rows, theirs: _Rows, allowed: _Rows) -> bool:
    return bool(np.mean((np.abs(ours - theirs) <= allowed).all(axis=1)) >= _ENOUGH)


def _nearest(ours: _Rows, theirs: _Rows) -> npt.NDArray[np.intp]:
    """Return for each of our rows the index of the nearest of theirs."""
    known = np.nan_to_num(theirs, posinf=0, neginf=0)
    squares = np.square(known).sum(axis=1)
    return np.asarray((squares - 2 * np.nan_to_num(ours, posinf=0, neginf=0) @ known.T).argmin(axis=1))


def _classes(ours: _Rows, theirs: _Rows) -> npt.NDArray[np.intp] | None:
    """Return for each of our classes that of theirs which answers most alike; None unless these are nearly all."""
    order = _nearest(ours.T, theirs.T)
    return order if len(np.unique(order)) >= _DIFFERENT * len(order) else None


def _shuffled(names: Sequence[str], failing: npt.NDArray[np.intp], place: npt.NDArray[np.intp]) -> str:
    moved = np.flatnonzero(place != failing)
    first = moved[0] if moved.size else 0
    (shift, count), *_ = Counter((place - failing).tolist()).most_common(1)
    every = f", {abs(shift)} further {'down' if shift > 0 else 'up'} each time" if count >= _ENOUGH * len(place) else ""
    return (
        f"the references look shuffled: '{printable(names[failing[first]])}' agrees with the row of "
        f"'{printable(names[place[first]])}', and {len(moved)} failing inputs with that of another one{every}; put the "
        "rows in the order of the inputs, or give each its right name"
    )


def _reordered(order: npt.NDArray[np.intp]) -> str:
    moved = np.flatnonzero(order != np.arange(len(order)))
    first = int(moved[0]) if moved.size else 0
    return (
        f"the references have their classes in another order: class {first} of this model is {order[first]} of theirs, "
        f"and so on for {len(moved)} of {len(order)}; give the scores in the order of this model's classes"
    )


def _joined(*parts: str) -> str:
    return "; also, ".join(part for part in parts if part)


def _rounded(rounding: Rounding) -> str:
    return f"the references look rounded to {rounding.words}; write all nine digits, as infer --output does"


def _allowed(rounding: Rounding, references: _Rows, bound: float) -> str:
    """Return the advice to allow for rounding with --tolerance."""
    largest = _largest(references)
    error = float(np.nanmax(rounding.slack / np.where(largest > 0, largest, np.inf)))
    return (
        f"or allow for it with --tolerance {_rounded_up(error + bound)}: rounding alone makes errors up to {error:.1e}"
    )


def _rounded_up(value: float) -> str:
    """Format a value with one digit, rounded up."""
    power = math.floor(math.log10(value))
    return f"{math.ceil(value / 10**power) * 10.0**power:g}"
