"""pictures/loading/order.py: the order of files, whatever the order of what comes."""

import random

import pytest

from vgg16gpu.pictures.loading.loader import InOrder


@pytest.mark.parametrize("seed", range(30))
def test_values_come_out_in_order_whenever_they_come_in(seed):
    chance = random.Random(seed)
    counts = [chance.choice((0, 1, 1, 1, 5)) for _ in range(30)]
    events = [(file, sample, f"{file}.{sample}") for file, count in enumerate(counts) for sample in range(count)]
    events += [(file, count, None) for file, count in enumerate(counts)]
    chance.shuffle(events)
    order, found = InOrder(), []
    for file, sample, value in events:
        if value is None:
            order.end(file, sample)
        else:
            order.add(file, sample, value)
        found += order.ready()
    assert found == [f"{file}.{sample}" for file, count in enumerate(counts) for sample in range(count)]
    assert order.file == len(counts)
    assert order.ready() == []
