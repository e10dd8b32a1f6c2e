"""Which batch sizes a number of images is run in."""

from itertools import product

import numpy as np
import pytest

from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.plans.sizes import RUN, costs, cover
from vgg16gpu.zoo.digits import heldout


def linear(start: float, *sizes: int) -> dict[int, float]:
    return {size: start + size for size in sizes}


@pytest.mark.parametrize(
    ("start", "sizes", "count", "expected"),
    [
        (0.5, (1, 2, 4, 8), 5, (4, 1)),  # 6 where 8 costs 8.5
        (9, (1, 2, 4, 8), 5, (8,)),  # 17 where 4 + 1 costs 23
        (0.5, (1, 8, 32), 12, (8, 1, 1, 1, 1)),
        (2, (1, 8, 32), 12, (8, 8)),
        (1, (1, 8, 32), 33, (32, 1)),
        (1, (4,), 9, (4, 4, 4)),
        (1, (1, 8), 0, ()),
    ],
)
def test_the_cheapest_sizes_are_taken(start, sizes, count, expected):
    assert cover(count, linear(start, *sizes)) == expected


def test_no_other_cover_is_cheaper():
    found = {1: 3.0, 3: 4.5, 7: 9.0}
    for count in range(1, 22):
        every = [
            sum(found[size] * times for size, times in zip(found, each, strict=True))
            for each in product(range(23), range(9), range(5))
            if sum(size * times for size, times in zip(found, each, strict=True)) >= count
        ]
        taken = cover(count, found)
        assert sum(taken) >= count
        assert sum(found[size] for size in taken) == pytest.approx(min(every))


def test_an_engine_runs_what_is_cheapest_and_gives_every_row():
    x = heldout()[1]
    with Engine("digits", device="cpu", batch=(1, 2, 4, 8)) as engine, Engine("digits", device="cpu") as one:
        found = costs(engine.plan, "fp32")
        assert [*found] == [1, 2, 4, 8]
        assert RUN < found[1] < found[8]
        engine._last.costs = linear(0.5, 1, 2, 4, 8)
        np.testing.assert_array_equal(engine.run(x[:5]), one.run(x[:5]))
        assert engine._last.batches(5) == ((0, 4), (4, 1))
