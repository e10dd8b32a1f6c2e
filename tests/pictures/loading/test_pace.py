"""pictures/loading/pace.py: when one thread that loads is not enough."""

import itertools

import pytest

from vgg16gpu.pictures.loading.pace import PICTURES, SLOW, Pace


@pytest.mark.parametrize(
    ("wall", "cpu", "is_waited_for", "is_slow"),
    [
        (0.1, 0.1, True, False),
        (0.1, 0.1, False, False),
        (9.0, 0.1, True, True),  # a disk
        (9.0, 0.1, False, False),  # the interpreter is somebody else's, or nobody takes what is loaded
        (2.0, 1.5, False, True),  # it decodes
        (2.0, 1.5, True, True),
    ],
)
def test_what_is_slow(wall, cpu, is_waited_for, is_slow):
    pace = Pace(at_each(cpu))
    for _ in range(2):
        said = [pace.is_slow(wall * SLOW, is_waited_for=is_waited_for) for _ in range(PICTURES)]
        assert said == [False] * (PICTURES - 1) + [is_slow]


def at_each(cpu):
    """A clock that is looked at before the first picture, and after each `PICTURES`."""
    looks = itertools.count()
    return lambda: next(looks) * PICTURES * cpu * SLOW


@pytest.mark.parametrize(("late", "is_slow"), [(1, False), (PICTURES // 2, False), (PICTURES // 2 + 1, True)])
def test_pictures_that_took_very_long_are_not_the_pace_unless_most_did(late, is_slow):
    pace = Pace(at_each(0.1))
    said = [pace.is_slow(SLOW * (1000 if i < late else 0.3), is_waited_for=True) for i in range(PICTURES)]
    assert said[-1] is is_slow
    assert not any(said[:-1])
