"""Hostile messages of HTTP: the server lives on, answers others, and holds no more than before."""

from __future__ import annotations

import pytest

from tests.fuzz.http import CLIENTS, fuzz
from tests.serving.held import require_flat, settled, usage
from tests.serving.test_serve import binary_request, scores
from tests.support.kernel_harness import assert_same_bits


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("first", "count", "megabytes"),
    [(0, 150, 32.0), pytest.param(150, 10_000, 96.0, marks=pytest.mark.slow(reason="more of the same"))],
)
def test_hostile_messages(server, run_at, digits, first, count, megabytes):
    processes = usage(server).keys()

    def honest():
        assert_same_bits(scores(server.infer(*binary_request(digits[:1], "FP32"))), run_at(digits[:1], 1))

    fuzz(server, first, min(count, 100) // 4, lambda: None, digits)
    before = settled(server)
    found = fuzz(server, first, count, honest, digits)
    honest()
    assert found.wrong == []
    assert usage(server).keys() == processes
    # What the largest body and its copy took stays with malloc for the next one.
    require_flat(before, settled(server), rss=megabytes, handles=4 + CLIENTS)
    assert {200, 400, 404, 405, 411, 415, 421} <= found.statuses.keys()
