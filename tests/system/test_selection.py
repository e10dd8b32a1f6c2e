"""selection.py: `make test` has a case of every test, and together with the others it has all cases, none twice."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support import selection
from tests.support.selection import ALL, MOST_VALUES, OTHERS, REPRESENTATIVE, covering, representatives, select, spread


class Case:
    """What tests/support/selection.py looks at in a pytest.Item."""

    def __init__(self, name: str, *marks: pytest.MarkDecorator, **indices: int) -> None:
        self.nodeid = f"tests/test_x.py::{name}{list(indices.values()) if indices else ''}"
        self.marks = {mark.name: mark.mark for mark in marks}
        self.stash = pytest.Stash()
        if indices:
            self.callspec = self
            self.indices = self.params = indices

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def iter_markers(self, _: str) -> list[pytest.Mark]:
        return []


def swept(name: str, *marks: pytest.MarkDecorator, **sizes: int) -> list[Case]:
    values = product(*(range(size) for size in sizes.values()))
    return [Case(name, *marks, **dict(zip(sizes, chosen, strict=True))) for chosen in values]


def test_each_value_of_each_parameter_is_there() -> None:
    cases = swept("test_a", tile=3, precision=4, pool=2)
    chosen = representatives(cases)
    assert len(chosen) == 4
    for name, size in (("tile", 3), ("precision", 4), ("pool", 2)):
        assert {case.indices[name] for case in chosen} == set(range(size))
    assert chosen == representatives(cases)


@pytest.mark.parametrize(("a", "b"), [(1, 2), (1, 3)])
@pytest.mark.parametrize("c", [4, 5])
def test_a_row_of_a_real_item_is_a_value(request: pytest.FixtureRequest, a: int, b: int, c: int) -> None:
    found = [item for item in request.session.items if item.nodeid.partition("[")[0] in request.node.nodeid]
    assert a == 1
    representatives(found)
    assert request.node.stash[selection.VALUES] == {("a b", b - 2), ("c", c - 4)} or len(found) < 4


def test_of_many_values_some_from_the_first_to_the_last() -> None:
    assert spread(range(MOST_VALUES)) == list(range(MOST_VALUES))
    found = spread(range(100))
    assert len(set(found)) == MOST_VALUES
    assert (found[0], found[-1]) == (0, 99)
    shapes = {case.indices["shape"] for case in representatives(swept("test_a", shape=100, relu=2))}
    assert shapes >= set(found)
    assert len(shapes) < 12


def test_a_value_that_is_in_few_cases_is_not_lost() -> None:
    diagonal = [frozenset({("a", number), ("b", 9 - number)}) for number in range(5)]
    assert covering(diagonal) == [0, 1, 2, 3, 4]
    assert covering([frozenset()]) == [0]
    assert covering([]) == []


def test_cases_of_the_gpu_stand_for_themselves() -> None:
    cpu, gpu = swept("test_a", shape=3), swept("test_a", pytest.mark.gpu, shape=3)
    assert representatives([*cpu, *gpu]) == {*cpu, *gpu}


def test_what_is_marked_by_hand() -> None:
    slow = swept("test_slow", pytest.mark.slow(reason="an hour"), shape=2)
    every = swept("test_every", pytest.mark.every_case, shape=50)
    single = Case("test_single")
    assert representatives([*slow, *every, single]) == {*every, single}


def test_both_parts_are_all_cases_and_none_is_in_both() -> None:
    cases = [*swept("test_a", shape=30, relu=2), *swept("test_b", pytest.mark.slow(reason="an hour"), shape=2)]
    first, second = select(cases, REPRESENTATIVE), select(cases, OTHERS)
    assert first == second[::-1]
    assert sorted(first[0] + second[0], key=cases.index) == cases
    assert select(cases, ALL) == (cases, [])


def test_hypothesis_has_more_examples_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Case("test_drawn", pytest.mark.hypothesis)
    assert select([drawn], REPRESENTATIVE) == select([drawn], OTHERS) == ([drawn], [])
    monkeypatch.setattr(selection, "_choice", selection.ALL)
    assert selection.examples(200).max_examples == 200
    selection.configure(REPRESENTATIVE)
    assert selection.examples(200).max_examples == 40
    selection.configure(OTHERS)
    assert selection.examples(200).max_examples == 200


def test_slow_needs_a_reason() -> None:
    cases = [Case("test_a", pytest.mark.slow), Case("test_b", pytest.mark.slow(reason="an hour")), Case("test_c")]
    assert selection.without_reason(cases) == ["tests/test_x.py::test_a"]


def test_every_test_that_was_found_is_in_make_test(pytestconfig: pytest.Config) -> None:
    found = pytestconfig.stash[selection.FOUND]
    chosen = representatives(found)
    left_out = {item.nodeid.partition("[")[0] for item in found} - {item.nodeid.partition("[")[0] for item in chosen}
    slow = {item.nodeid.partition("[")[0] for item in found if item.get_closest_marker("slow")}
    assert left_out <= slow
    assert {item.path for item in found if not item.get_closest_marker("slow")} == {item.path for item in chosen}
