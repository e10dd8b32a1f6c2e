"""Parts of the server that need no extra: which images make a batch, messages, slots; and what is said without it."""

from __future__ import annotations

import socket
import sys
import tracemalloc

import numpy as np
import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu_serving.device.batching import Item, Queue
from vgg16gpu_serving.device.statistics import Statistics, added_up
from vgg16gpu_serving.protocol import requests
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.slots import SlotPool
from vgg16gpu_serving.wire import Asked, Kind, Outbox


def queue_of(*asked):
    """A queue of (kind, images), counted from 0."""
    queue = Queue(8)
    for number, (kind, images) in enumerate(asked):
        queue.add(Item("sender", Asked(kind, number, sent=10.0 + number, slots=range(images))))
    return queue


def taken(queue):
    return [item.asked.number for item in queue.take()]


def test_a_batch_is_of_one_kind_and_keeps_the_order():
    queue = queue_of((Kind.FLOATS, 1), (Kind.PIXELS, 1), (Kind.FLOATS, 2), (Kind.PIXELS, 3))
    assert [taken(queue), taken(queue), taken(queue)] == [[0, 2], [1, 3], []]


def test_a_batch_is_due_when_it_is_full_or_has_waited():
    assert not queue_of().is_due(99.0, 0.0)
    waiting = queue_of((Kind.FLOATS, 3), (Kind.PIXELS, 8), (Kind.FLOATS, 4))
    assert not waiting.is_due(10.5, 1.0)
    assert waiting.is_due(11.0, 1.0)
    assert queue_of((Kind.FLOATS, 4), (Kind.FLOATS, 4)).is_due(10.0, 1.0)


def test_messages_wait_while_nobody_reads_and_keep_their_order():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        outbox = Outbox()
        messages = [bytes([number % 256]) * 100 for number in range(5000)]
        for message in messages:
            outbox.add(message)
        found = b""
        while not outbox.send(ours, 1000):
            found += theirs.recv(1000)
        assert not outbox
        ours.close()
        while message := theirs.recv(2000):
            assert len(message) <= 1000
            found += message
        assert found == b"".join(messages)


def test_slots_are_leased_once_and_given_back_once():
    pool = SlotPool(3)
    first = pool.lease(2)
    with pytest.raises(RefusedError, match="the queue is full: 2 images wait"):
        pool.lease(2)
    second = pool.lease(1)
    assert sorted([*first.slots, *second.slots]) == [0, 1, 2]
    for _ in range(2):
        pool.give_back(first)
        assert pool.used == 1
    assert sorted(pool.lease(2).slots) == sorted(first.slots)


def test_statistics_of_devices_are_added_up():
    devices = [Statistics(), Statistics()]
    for number, statistics in enumerate(devices):
        statistics.add_success(9e-9, queued=2e-9, computed=5e-9)
        statistics.add_batch(1 + number, 3e-9)
        statistics.add_batch(2, 5e-9)
    found = added_up([each.told() for each in devices])
    assert (found["inference_count"], found["execution_count"]) == (7, 4)
    assert found["inference_stats"]["success"] == {"count": 2, "ns": 18}
    assert found["inference_stats"]["queue"] == {"count": 2, "ns": 4}
    assert found["inference_stats"]["compute_infer"] == {"count": 2, "ns": 10}
    for stage in ("compute_input", "compute_output"):
        assert found["inference_stats"][stage] == {"count": 2, "ns": 0}
        assert [each[stage] for each in found["batch_stats"]] == [{"count": 1, "ns": 0}, {"count": 3, "ns": 0}]
    assert found["inference_stats"]["fail"] == {"count": 0, "ns": 0}
    assert [(each["batch_size"], each["compute_infer"]) for each in found["batch_stats"]] == [
        (1, {"count": 1, "ns": 3}),
        (2, {"count": 3, "ns": 13}),
    ]


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "granian" else sys)
    result = CliRunner().invoke(cli, ["serve", "digits"])
    assert result.exit_code == 2
    assert result.stderr == "vgg16gpu: granian is not installed, which serve needs: pip install ./serving\n"


@pytest.mark.parametrize("data", [["x" * 10_000_000] + ["1"] * 400, [[1.0, 2.0], [3.0, "x" * 10_000_000]]])
def test_a_long_text_among_numbers_takes_no_room(data):
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="numbers alone") as refused:
            requests._from_json(data, np.dtype("<f4"), (401,), "FP32")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 400
    assert peak < 1 << 20
