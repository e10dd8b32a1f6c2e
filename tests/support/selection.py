"""Which cases `make test` runs, and which are left to `make test-all`.

Every test function runs in `make test`. Of a parametrized one it runs so many cases that each value of each parameter
is there at least once; of a parameter with more than `MOST_VALUES` values (a sweep of shapes, say) so many values, from
the first to the last. What is left is `--cases others`. Exceptions are marked by hand:

every_case         all cases of this function belong to `make test`
first_case(reason) only the first does: the reason says what stands for the others there
slow(reason)       none does: the reason says what stands for it there

Tests with hypothesis are in both parts: in `make test` with a few examples, else with all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pytest

ALL, REPRESENTATIVE, OTHERS = CHOICES = ("all", "representative", "others")
MOST_VALUES: Final = 4
_WITH_REASON: Final = ("slow", "first_case", "alone")
FEW_EXAMPLES: Final = 5  # times fewer examples of hypothesis

Value: TypeAlias = tuple[str, int]  # a parameter, and the number of one of its values

LEFT_OUT: Final = pytest.mark.left_out

_choice = ALL


def configure(choice: str) -> None:
    """To be called before tests are imported: how many examples `examples` asks for."""
    global _choice  # noqa: PLW0603 - decorators of tests have no other way to learn it
    _choice = choice


def choice() -> str:
    """Return which cases run: a test with a loop of its own may do less of it in `make test`."""
    return _choice


def examples(count: int, **options: Any) -> Any:
    """hypothesis.settings for `count` examples, fewer in `make test`; the same ones in each run."""
    from hypothesis import settings

    count = count // FEW_EXAMPLES if _choice == REPRESENTATIVE else count
    return settings(max_examples=count, deadline=None, derandomize=True, **options)


def choose(metafunc: pytest.Metafunc) -> None:
    """Keep the chosen cases of a parametrized function; pytest makes no items of the others, which would take seconds.

    One case stays even where none is chosen, marked `LEFT_OUT`: pytest would make an item without values.
    """
    calls = metafunc._calls
    if _choice == ALL or not calls:
        return
    function = list(metafunc.definition.iter_markers())
    cases = [_Case(call, function) for call in calls]
    chosen = _representatives_of_all(cases)
    if _choice == OTHERS:
        chosen = [case for case in cases if case not in chosen or _has_examples(metafunc.function)]
    calls[:] = [case.call for case in chosen] or [replace(calls[0], marks=[*calls[0].marks, LEFT_OUT.mark])]


def leave_out_gpu(metafunc: pytest.Metafunc) -> int:
    """Remove the cases of the GPU where there are others; return how many. To make items of them takes a second."""
    calls = metafunc._calls
    others = [call for call in calls if all(mark.name != "gpu" for mark in call.marks)]
    if not others:
        return 0
    removed = len(calls) - len(others)
    calls[:] = others
    return removed


def is_left_out(item: pytest.Item) -> bool:
    """Whether an item is none to run: no case of its function was chosen, or it has no cases."""
    if _choice == ALL or hasattr(item, "callspec"):
        return item.get_closest_marker(LEFT_OUT.name) is not None
    if _choice == REPRESENTATIVE:
        return item.get_closest_marker("slow") is not None
    return not (item.get_closest_marker("slow") or _has_examples(getattr(item, "obj", None)))


def _has_examples(function: object) -> bool:
    return getattr(function, "is_hypothesis_test", False)


class _Case:
    """A case of a parametrized function: its marks and its values, of which those of one `parametrize` have one number.

    `indices` of pytest has the number of the case in their place since pytest 9.
    """

    def __init__(self, call: Any, function: Sequence[pytest.Mark]) -> None:
        self.call = call
        self.marks = {mark.name for mark in (*call.marks, *function)}
        self.rows = {
            names: tuple(id(call.params[name]) for name in names.split()) for names in _together(call, function)
        }


def _representatives_of_all(cases: Sequence[_Case]) -> list[_Case]:
    """Return the cases of `make test`. Those of the GPU stand for themselves: they are skipped where there is none."""
    chosen = {
        id(case)
        for on_gpu in (False, True)
        for case in _representatives([case for case in cases if ("gpu" in case.marks) is on_gpu])
    }
    return [case for case in cases if id(case) in chosen]


def _representatives(cases: Sequence[_Case]) -> list[_Case]:
    cases = [case for case in cases if "slow" not in case.marks]
    if any("first_case" in case.marks for case in cases):
        return list(cases[:1])
    if any("every_case" in case.marks for case in cases):
        return list(cases)
    return [cases[place] for place in covering(_values(cases))]


def _values(cases: Iterable[_Case]) -> list[frozenset[Value]]:
    """Number the values in their order."""
    seen: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
    return [
        frozenset((names, seen[names].setdefault(row, len(seen[names]))) for names, row in case.rows.items())
        for case in cases
    ]


def _together(call: Any, function: Iterable[pytest.Mark]) -> list[str]:
    """Return the names of a case's parameters; those of one `parametrize` are one text."""
    given = [mark.args[0] for mark in function if mark.name == "parametrize"]
    texts = [(names.replace(",", " ") if isinstance(names, str) else " ".join(names)) for names in given]
    marked = {name for text in texts for name in text.split()}
    return [*texts, *(name for name in call.params if name not in marked)]


def covering(cases: Sequence[frozenset[Value]]) -> list[int]:
    """Places of cases that have every value worth having; the first case in any event."""
    wanted = _wanted(cases)
    chosen: list[int] = []
    while cases and (wanted or not chosen):
        best = max(range(len(cases)), key=lambda place: (len(cases[place] & wanted), -place))
        chosen.append(best)
        wanted -= cases[best]
    return sorted(chosen)


def _wanted(cases: Iterable[frozenset[Value]]) -> set[Value]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for name, number in (value for case in cases for value in case):
        found[name].add(number)
    return {(name, number) for name, numbers in found.items() for number in spread(sorted(numbers))}


def spread(numbers: Sequence[int]) -> list[int]:
    """At most MOST_VALUES of them, from the first to the last."""
    if len(numbers) <= MOST_VALUES:
        return list(numbers)
    return [numbers[place * (len(numbers) - 1) // (MOST_VALUES - 1)] for place in range(MOST_VALUES)]


def without_reason(items: Iterable[pytest.Item]) -> list[str]:
    """Return tests that are left out of `make test`, or run alone, without a reason."""
    found = ((item.nodeid.partition("[")[0], item.get_closest_marker(name)) for item in items for name in _WITH_REASON)
    return list(dict.fromkeys(name for name, mark in found if mark and not mark.kwargs.get("reason")))
