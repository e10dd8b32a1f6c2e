"""Arena planning: buffers that live at the same time never overlap, and the arena is no larger than it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.selection import examples
from vgg16gpu.compiler.planner.memory import LiveRange, assign_offsets
from vgg16gpu.program.types import ALIGNMENT, aligned

STEPS = 12

spans = st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(sorted)
lifetimes = st.lists(
    st.builds(lambda nbytes, span: LiveRange(nbytes, span[0], span[1]), st.integers(0, 5000), spans), max_size=16
)


def alive_together(a: LiveRange, b: LiveRange) -> bool:
    return a.first <= b.last and b.first <= a.last


def live_nbytes(lives: list[LiveRange]) -> list[int]:
    """Bytes that are alive at each step."""
    return [sum(aligned(life.nbytes) for life in lives if life.first <= step <= life.last) for step in range(STEPS + 1)]


@examples(100)
@given(lifetimes)
def test_live_buffers_never_overlap(lives: list[LiveRange]) -> None:
    offsets, size = assign_offsets(lives)
    assert len(offsets) == len(lives)
    for i, a in enumerate(lives):
        assert offsets[i] % ALIGNMENT == 0
        assert 0 <= offsets[i] <= size - a.nbytes
        for j, b in enumerate(lives[:i]):
            apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
            assert apart or not alive_together(a, b) or 0 in (a.nbytes, b.nbytes)


@examples(100)
@given(lifetimes)
def test_the_arena_is_neither_too_small_nor_wasteful(lives: list[LiveRange]) -> None:
    _, size = assign_offsets(lives)
    assert size >= max(live_nbytes(lives))
    assert size <= sum(aligned(life.nbytes) for life in lives)
