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
from typing import Any, Final, TypeAlias

import pytest

ALL, REPRESENTATIVE, OTHERS = CHOICES = ("all", "representative", "others")
MOST_VALUES: Final = 4
_WITH_REASON: Final = ("slow", "first_case", "alone")
FEW_EXAMPLES: Final = 5  # times fewer examples of hypothesis

Value: TypeAlias = tuple[str, int]  # a parameter, and the number of one of its values

FOUND: Final = pytest.StashKey[list[pytest.Item]]()  # in config.stash: every case, before any is left out
VALUES: Final = pytest.StashKey[frozenset[Value]]()  # in an item's stash

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


def select(items: Sequence[pytest.Item], choice: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The cases to run, and those to leave out, both in their order."""
    if choice == ALL:
        return list(items), []
    chosen = representatives(items)
    if choice == OTHERS:
        chosen = {item for item in items if item not in chosen or item.get_closest_marker("hypothesis")}
    return [item for item in items if item in chosen], [item for item in items if item not in chosen]


def representatives(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The cases of `make test`. Those of the GPU stand for themselves: they are skipped where there is none."""
    functions: defaultdict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        function = item.nodeid.partition("[")[0]
        functions[function, item.get_closest_marker("gpu") is not None].append(item)
    for cases in functions.values():
        _number(cases)
    return {item for cases in functions.values() for item in _representatives(cases)}


def _representatives(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    cases = [case for case in cases if not case.get_closest_marker("slow")]
    if any(case.get_closest_marker("first_case") for case in cases):
        return cases[:1]
    if any(case.get_closest_marker("every_case") for case in cases):
        return cases
    values = [_values(case) for case in cases]
    return [cases[place] for place in covering(values)]


def _values(case: pytest.Item) -> frozenset[Value]:
    return case.stash.get(VALUES, frozenset())


def _number(cases: Iterable[pytest.Item]) -> None:
    """Store the numbers of a function's parameters' values with each case; values of one `parametrize` have one number.

    `callspec.indices` has the number of the case in their place since pytest 9.
    """
    seen: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
    for case in cases:
        if call := getattr(case, "callspec", None):
            rows = {names: tuple(id(call.params[name]) for name in names.split()) for names in _together(case)}
            case.stash[VALUES] = frozenset(
                (names, seen[names].setdefault(row, len(seen[names]))) for names, row in rows.items()
            )


def _together(case: pytest.Item) -> list[str]:
    """Return the names of a case's parameters; those of one `parametrize` are one text."""
    given = [mark.args[0] for mark in case.iter_markers("parametrize")]
    texts = [(names.replace(",", " ") if isinstance(names, str) else " ".join(names)) for names in given]
    marked = {name for text in texts for name in text.split()}
    return [*texts, *(name for name in case.callspec.params if name not in marked)]  # type: ignore[attr-defined]


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
