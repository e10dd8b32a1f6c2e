"""Batches of streams: which rows go with which, how they are staged, and in what order a slow device does its work."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits
from tests.support.late_device import LateDevice
from tests.support.stream_items import PARTS, items
from vgg16gpu import Engine
from vgg16gpu.devices import Opened
from vgg16gpu.devices.staging import MIN_NBYTES, THREADS, PinnedCopier
from vgg16gpu.errors import DeviceError
from vgg16gpu.runtime.batcher import Request, cut, flow
from vgg16gpu.runtime.outputs import OutputRows
from vgg16gpu.runtime.streaming import DEPTH
from vgg16gpu.zoo.digits import heldout


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_batches_are_full_and_items_come_back_whole_and_in_order(size: int) -> None:
    rows = np.arange(sum(PARTS))
    sent: list[Any] = []
    under_way = 0

    def send(parts: Any) -> Any:
        nonlocal under_way
        under_way += 1
        assert under_way <= DEPTH
        sent.append(np.concatenate(parts))
        return sent[-1]

    def receive(batch: Any) -> OutputRows:
        nonlocal under_way
        under_way -= 1
        return OutputRows((10 * batch,), batch % 5 == 0, batch % 3 == 0)

    numbered = (Request(number, part) for number, part in enumerate(items(rows)))
    done = list(flow(cut(numbered, size), send, receive))
    assert [len(batch) for batch in sent[:-1]] == [size] * (len(sent) - 1)
    assert np.array_equal(np.concatenate(sent), rows)
    assert [item.number for item in done] == list(range(len(PARTS)))
    for item, part in zip(done, items(rows), strict=True):
        assert np.array_equal(np.concatenate([results.outputs[0] for results in item.results]), 10 * part)
        assert np.array_equal(np.concatenate([results.nonfinite for results in item.results]), part % 5 == 0)
        assert np.array_equal(np.concatenate([results.out_of_range for results in item.results]), part % 3 == 0)


# ---- Staging


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("spare", [0, 2, 60])
def test_staging_copies_all_parts_and_zeroes_the_rest(rows: int, spare: int) -> None:
    generator = np.random.default_rng(rows)
    width = 2 * THREADS * MIN_NBYTES // 64  # with 64 rows more than enough for all threads
    x = generator.integers(0, 256, (rows, width), dtype=np.uint8)
    target = np.full((rows + spare, width), 7, np.uint8)
    bounds = sorted(generator.integers(0, rows + 1, 5))
    stager = PinnedCopier()
    stager.fill(target, np.split(x, bounds))
    stager.close()
    stager.close()
    assert np.array_equal(target[:rows], x)
    assert not target[rows:].any()


def test_staging_within_the_same_memory() -> None:
    memory = np.random.default_rng(0).integers(0, 256, (65, 2 * THREADS * MIN_NBYTES // 64), dtype=np.uint8)
    stager = PinnedCopier()
    for start in (0, 1):
        kept = memory[start : start + 60].copy()
        stager.fill(memory, [memory[start : start + 60]])
        assert np.array_equal(memory[:60], kept)
        assert not memory[60:].any()
        memory[60:] = 3
    stager.close()


def test_staging_raises_what_a_thread_raises() -> None:
    stager = PinnedCopier()
    with pytest.raises(ValueError, match="broadcast"):
        stager.fill(np.empty((64, MIN_NBYTES), np.uint8), [np.empty((64, MIN_NBYTES - 1), np.uint8)])
    stager.close()


# ---- The order of things on a device that does them as late, and in as odd an order, as it may


@contextmanager
def late_engine(seed: int) -> Iterator[Engine]:
    options: Any = {"batch": (2, 3), "kernels": "ffma"}
    with closing(LateDevice(seed)) as device, Engine("digits", device=Opened(device, "late"), **options) as engine:
        yield engine


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_read_before_it_is_there_or_written_while_it_is_read(seed: int, is_direct: bool) -> None:
    with Engine("digits", device="cpu", kernels="ffma") as engine:
        expected: Any = engine.run(heldout()[1][:50])
    chance = random.Random(seed)
    under_way: deque[Any] = deque()
    with late_engine(seed) as engine, engine.lane("float32", (1, 32, 32), 3, is_direct=is_direct) as lane:
        x = engine.device.pinned(50 * 4096).view(np.float32).reshape(50, 1, 32, 32)
        x[:] = heldout()[1][:50]

        def receive() -> None:
            first, count, sent = under_way.popleft()
            assert_same_bits(lane.receive(sent).outputs[0], expected[first : first + count])

        for number in range(26):
            batch = chance.choice((2, 3))
            count, first = chance.randint(1, batch), chance.randrange(48)
            rows = x[first : first + count] if is_direct else x[first : first + count].copy()
            under_way.append((first, count, lane.send([rows], batch)))
            if not is_direct:
                rows[:] = np.nan  # they have been copied
            if number == 12:
                under_way.clear()  # as when a stream is left
            if len(under_way) == DEPTH:
                receive()
        while under_way:
            receive()


def test_a_pipeline_that_finds_no_memory_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> Any:
        raise DeviceError("no pinned memory")

    with late_engine(0) as engine:
        heap: Any = engine.device._heap  # type: ignore[attr-defined]
        before = dict(heap._sizes)
        monkeypatch.setattr(engine.device, "pinned", refuse)
        with pytest.raises(DeviceError, match="no pinned memory"):
            next(engine.stream([heldout()[1][:1]]))
        assert heap._sizes == before
