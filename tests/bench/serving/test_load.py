"""Arrivals and percentiles, against what they are by definition."""

from __future__ import annotations

import numpy as np
import pytest

from vgg16gpu.bench.serving.client import Tally, joined, lag
from vgg16gpu.bench.serving.load import percentiles, poisson
from vgg16gpu.bench.serving.session import _limit


def test_arrivals_are_those_of_a_poisson_process_and_the_same_again():
    times = poisson(2000.0, 10.0, 3)
    assert (times == poisson(2000.0, 10.0, 3)).all()
    assert len(times) != len(other := poisson(2000.0, 10.0, 4)) or (times != other).any()
    assert len(times) == pytest.approx(20_000, abs=5 * 20_000**0.5)
    assert times.min() >= 0
    assert times.max() < 10
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 2000, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 2000, rel=0.05)  # exponential: as wide as long
    counts = np.histogram(times, 1000, (0, 10))[0]
    assert counts.var() == pytest.approx(counts.mean(), rel=0.2)


def test_percentiles_are_by_nearest_rank():
    found = percentiles(np.random.default_rng(0).permutation(np.arange(1.0, 1001.0)))
    assert found == {"p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0}
    assert percentiles(np.array([7.0])) == dict.fromkeys(found, 7.0)
    assert percentiles(np.array([])) == dict.fromkeys(found)


@pytest.mark.parametrize(
    ("tally", "said"),
    [
        (Tally(busy=0.5, lags=[0.001] * 200), None),
        (Tally(busy=0.9), "computed for 90%"),
        (Tally(lags=[0.001] * 98 + [0.02] * 2), "sent 20 ms late"),
    ],
)
def test_clients_say_when_they_are_the_limit(tally, said):
    found = _limit(tally)
    assert (said is None) == (found is None)
    assert (said or "") in (found or "")


def test_tallies_add_up():
    first, second = (
        Tally([1.0], lags=[0.1], images=2, requests=3, busy=0.5, last=4.0),
        Tally([2.0], requests=1, waited=5),
    )
    first.errors.update({"429": 2})
    second.errors.update({"429": 1, "503": 1})
    whole = joined([first, second])
    assert (whole.latencies, whole.lags, whole.images, whole.requests) == ([1.0, 2.0], [0.1], 2, 4)
    assert (whole.errors, whole.waited, whole.busy, whole.last) == ({"429": 3, "503": 1}, 5, 0.5, 4.0)
    assert (lag(whole), lag(Tally())) == (0.1, 0.0)
