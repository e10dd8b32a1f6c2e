"""Batches of streams: which rows go with which, how they are staged, and in what order a slow device does its work."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.stream_items import PARTS, items
from vgg16gpu.devices.base import Stream
from vgg16gpu.devices.staging import MIN_NBYTES, THREADS, Stager
from vgg16gpu.errors import DeviceError
from vgg16gpu.runtime.batcher import Item, cut, flow
from vgg16gpu.runtime.double_buffer import DEPTH, Pipeline
from vgg16gpu.runtime.frames import Port, Span
from vgg16gpu.runtime.outputs import Results


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

    def receive(batch: Any) -> Results:
        nonlocal under_way
        under_way -= 1
        return Results((10 * batch,), batch % 5 == 0, batch % 3 == 0)

    numbered = (Item(number, part) for number, part in enumerate(items(rows)))
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
    stager = Stager()
    stager.fill(target, np.split(x, bounds))
    stager.close()
    stager.close()
    assert np.array_equal(target[:rows], x)
    assert not target[rows:].any()


def test_staging_within_the_same_memory() -> None:
    memory = np.random.default_rng(0).integers(0, 256, (65, 2 * THREADS * MIN_NBYTES // 64), dtype=np.uint8)
    stager = Stager()
    for start in (0, 1):
        kept = memory[start : start + 60].copy()
        stager.fill(memory, [memory[start : start + 60]])
        assert np.array_equal(memory[:60], kept)
        assert not memory[60:].any()
        memory[60:] = 3
    stager.close()


def test_staging_raises_what_a_thread_raises() -> None:
    stager = Stager()
    with pytest.raises(ValueError, match="broadcast"):
        stager.fill(np.empty((64, MIN_NBYTES), np.uint8), [np.empty((64, MIN_NBYTES - 1), np.uint8)])
    stager.close()


# ---- The order of things on a device that does them as late, and in as odd an order, as it may


class LateDevice:
    """Streams whose work is done only when somebody waits, each time the next piece of a stream that chance picks."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._streams: dict[Stream, deque[Callable[[], bool]]] = {stream: deque() for stream in Stream}
        self._recorded: list[int] = []
        self._reached: list[int] = []
        self.memory: dict[int, Any] = {}

    def allocate(self, nbytes: int) -> int:
        self.memory[address := 1000 * len(self.memory) + 1000] = np.full(nbytes, 0xEE, np.uint8)
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def pinned(self, nbytes: int) -> Any:
        return np.full(nbytes, 0xDD, np.uint8)

    def unpin(self, buffer: Any) -> None:
        pass

    def zero(self, address: int, nbytes: int) -> None:
        self.enqueue(Stream.COMPUTE, lambda: self.memory[address][:nbytes].fill(0))

    def synchronize(self) -> None:
        while self._streams[Stream.COMPUTE]:
            self._do_something()

    def copy_in(self, address: int, source: Any, stream: Stream) -> None:
        self.enqueue(stream, lambda: np.copyto(self._at(address, source.size), source.reshape(-1)))

    def copy_out(self, target: Any, address: int, stream: Stream = Stream.COMPUTE) -> None:
        self.enqueue(stream, lambda: np.copyto(target, self._at(address, target.size)))

    def copy_on_device(self, target: int, source: int, nbytes: int) -> None:
        self.enqueue(Stream.COMPUTE, lambda: np.copyto(self.memory[target][:nbytes], self.memory[source][:nbytes]))

    def _at(self, address: int, size: int) -> Any:
        return self.memory[address // 1000 * 1000][address % 1000 :][:size]

    def event(self) -> int:
        self._recorded.append(0)
        self._reached.append(0)
        return len(self._recorded) - 1

    def record(self, event: int, stream: Stream) -> None:
        self._recorded[event] += 1
        self.enqueue(stream, partial(self._reached.__setitem__, event, self._recorded[event]))

    def follow(self, stream: Stream, event: int) -> None:
        self._streams[stream].append(partial(self._is_reached, event, self._recorded[event]))

    def wait(self, event: int) -> None:
        while not self._is_reached(event, self._recorded[event]):
            self._do_something()

    def enqueue(self, stream: Stream, work: Callable[[], None]) -> None:
        def done() -> bool:
            work()
            return True

        self._streams[stream].append(done)

    def _is_reached(self, event: int, count: int) -> bool:
        return self._reached[event] >= count

    def _do_something(self) -> None:
        for stream in self._random.sample(list(Stream), len(Stream)):
            if self._streams[stream] and self._streams[stream][0]():
                self._streams[stream].popleft()
                return
        raise AssertionError("every stream waits for another one")


class LateRunner:
    """Batches of up to 3 rows of 5 bytes and a control byte: each row plus one comes out, and the input is spoilt."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._arena, self._results = device.allocate(16), device.allocate(16)

    def port(self, batch: int) -> Port:
        span = Span(self._arena, 5 * batch + 1), Span(self._results, 5 * batch)
        return Port((batch, 5), "uint8", *span, partial(self._launch, batch), partial(self._read, batch))

    def _launch(self, batch: int) -> None:
        def compute() -> None:
            arena = self._device.memory[self._arena]
            assert arena[5 * batch] == 0  # the control byte
            self._device.memory[self._results][: 5 * batch] = arena[: 5 * batch] + 1
            arena[:] = 0xCC

        self._device.enqueue(Stream.COMPUTE, compute)

    def _read(self, batch: int, out: Any, count: int) -> Results:
        none = np.zeros(count, bool)
        return Results((out.reshape(batch, 5)[:count].copy(),), none, none)


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_read_before_it_is_there_or_written_while_it_is_read(seed: int, is_direct: bool) -> None:
    device: Any = LateDevice(seed)
    runner = LateRunner(device)
    ports = {batch: runner.port(batch) for batch in (2, 3)}
    pipeline = Pipeline(device, Stager(), ports, is_direct=is_direct)
    chance = random.Random(seed)
    under_way: deque[Any] = deque()

    def receive() -> None:
        x, sent = under_way.popleft()
        images, results = pipeline.receive(sent)
        assert np.array_equal(images(np.arange(len(x))), x)
        assert np.array_equal(results.outputs[0], x + 1)

    for number in itertools.count():
        batch = chance.choice((2, 3))
        x = np.full((chance.randint(1, batch), 5), 8 * number % 200, np.uint8) + np.arange(5, dtype=np.uint8)
        under_way.append((x, pipeline.send(batch, [x])))
        if number == 12:
            under_way.clear()  # as when a stream is left
        if number == 25:
            break
        if len(under_way) == DEPTH:
            receive()
    while under_way:
        receive()


def test_a_pipeline_that_finds_no_memory_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = LateDevice(0)
    runner = LateRunner(device)
    before = set(device.memory)

    def refuse(_: int) -> Any:
        raise DeviceError("no pinned memory")

    monkeypatch.setattr(device, "pinned", refuse)
    with pytest.raises(DeviceError, match="no pinned memory"):
        Pipeline(device, Stager(), {2: runner.port(2)})
    assert set(device.memory) == before
