"""pictures/pace.py: when one thread that loads is not enough."""

import pytest

from vgg16gpu.pictures.pace import PICTURES, SLOW, Pace


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
    pace = Pace()
    for _ in range(2):
        said = [pace.is_slow(wall * SLOW, cpu * SLOW, is_waited_for=is_waited_for) for _ in range(PICTURES)]
        assert said == [False] * (PICTURES - 1) + [is_slow]


def test_a_picture_among_many_is_not_the_pace():
    pace = Pace()
    assert not any(pace.is_slow(SLOW * (20 if i == 5 else 0.3), 0.0, is_waited_for=True) for i in range(PICTURES))
