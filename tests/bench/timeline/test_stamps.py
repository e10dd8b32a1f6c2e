"""bench/timeline/stamps.py: times as fine as the clocks, whatever steps the device's nanoseconds go in."""

import numpy as np
import pytest

from vgg16gpu.bench.timeline.stamps import EVENTS, WORDS, block_times

PERIOD = 1 / 1.755  # ns
STARTS = np.array([7_000_000_123, 55, 91_000_000_000_000])  # of the clocks of three multiprocessors


def words_of(times, where, step):
    """As a device writes them. times: ns from some moment on, NaN of what did not happen."""
    words = np.zeros((len(times), WORDS), np.uint64)
    happened = ~np.isnan(times)
    known = np.where(happened, times, 0.0)
    now = (5_000_000_000 + (known // step * step).astype(np.int64)) * happened
    clock = (STARTS[where][:, None] + np.rint(known / PERIOD).astype(np.int64)) * happened
    words[:, 0 : 2 * len(EVENTS) : 2], words[:, 1 : 2 * len(EVENTS) : 2] = now, clock
    words[:, 2 * len(EVENTS)] = where
    return words


@pytest.mark.parametrize("step", [1, 32, 1000])
def test_times_are_those_of_the_clocks(step):
    chance = np.random.default_rng(step)
    where = chance.integers(0, 3, 400)
    times = np.sort(chance.uniform(0, 150_000, (400, len(EVENTS))), axis=1)
    times[chance.random(times.shape) < 0.2] = np.nan
    times[:, 0] = np.nan_to_num(times[:, 0], nan=10.0)
    words = words_of(times, where, step)
    first, second = block_times([words[:150], words[150:]])
    found = 1e3 * np.concatenate([first.times, second.times])
    assert np.array_equal(np.isnan(found), np.isnan(times))
    assert np.array_equal(np.concatenate([first.where, second.where]), where)
    off = found - (times - np.nanmin(times))
    assert np.nanmax(np.abs(off)) < {1: 2, 32: 5, 1000: 200}[step]


def test_one_block_has_its_own_times():
    (found,) = block_times([words_of(np.array([[100.0, np.nan, 300.0, np.nan, 600.0]]), np.array([1]), 1)])
    np.testing.assert_allclose(found.times, [[0, np.nan, 0.2, np.nan, 0.5]], atol=2e-3)
