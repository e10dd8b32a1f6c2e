"""A11: decoding has bounds and a deadline, quick pictures wait for none, and work of clients that are gone ends."""

from __future__ import annotations

import asyncio
import io
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.serving.running import PATIENCE, serving
from tests.serving.test_serve import SAMPLE, as_bytes
from vgg16gpu.pictures.cost import Cost
from vgg16gpu_serving.front_end import decoding
from vgg16gpu_serving.front_end.decoding import Decoding
from vgg16gpu_serving.front_end.pictures import check_costs
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Bounds, Description, Served, Tensor
from vgg16gpu_serving.workers import CancelToken

BOUNDS = Bounds(1 << 20, 1 << 22, 1_000_000, 4_000_000, 64, 8, 10.0)
DESCRIPTION = Description(Tensor("x", (1, 32, 32)), (1, 32, 32), (32, 32, 1), False, (Tensor("y", (10,)),), (1,), "cpu")
SERVED = Served("digits", DESCRIPTION, None, (), BOUNDS, (), None)


def large(side: int = 7000) -> bytes:
    """A GIF file of few bytes and many pixels."""
    written = io.BytesIO()
    Image.new("P", (side, side)).save(written, "GIF")
    return written.getvalue()


def request(*pictures: bytes) -> tuple[dict, bytes]:
    raw = as_bytes(*pictures)
    tensor = {"name": "input", "datatype": "BYTES", "shape": [len(pictures)]}
    return {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}, raw


def test_a11_the_pixels_of_a_request_are_bounded() -> None:
    quick, slow = Cost(10, 10, is_quick=True), Cost(1000, 1000, is_quick=False)
    assert check_costs([quick] * 64, BOUNDS)
    assert not check_costs([quick, slow], BOUNDS)
    assert not check_costs([slow] * 4, BOUNDS)
    for costs, words in (([slow] * 4 + [quick], "4,000,100 pixels together"), ([Cost(1000, 1001, True)], "1001x1000")):
        with pytest.raises(RefusedError, match=words) as refused:
            check_costs(costs, BOUNDS)
        assert refused.value.status == 413
    many = replace(BOUNDS, pixels=100_000_000, request_pixels=400_000_000)
    assert not check_costs([Cost(1500, 1500, is_quick=True)] * 2, many)  # quick alone, and not together


class Held:
    """In place of `decoded`: waits while `is_held`; how many of its pictures it has done."""

    def __init__(self) -> None:
        self.goes_on, self.began, self.done = threading.Event(), 0, 0

    def __call__(self, _: Served, pictures: list[bytes], token: CancelToken) -> np.ndarray:
        for _picture in pictures:
            token.check()
            self.began += 1
            assert self.goes_on.wait(30)
            self.done += 1
        return np.zeros((len(pictures), 32, 32, 1), np.uint8)


async def seen(condition) -> None:
    last = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < last
        await asyncio.sleep(0.002)


def test_a11_quick_pictures_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All slow threads are busy, more wait, and a quick picture is decoded at once."""
    held, real = Held(), decoding.decoded
    quick, slow = SAMPLE.read_bytes(), large(100)

    def either(served: Served, pictures: list[bytes], token: CancelToken) -> np.ndarray:
        return (real if pictures == [quick] else held)(served, pictures, token)

    monkeypatch.setattr(decoding, "decoded", either)

    async def ask() -> None:
        found = Decoding(SERVED)
        waiting = [asyncio.create_task(found.rows([slow], CancelToken(math.inf))) for _ in range(8)]
        await seen(lambda: held.began == 2)
        rows = await asyncio.wait_for(found.rows([quick], CancelToken(math.inf)), 20)
        assert rows.shape == (1, 32, 32, 1)
        assert held.began == 2
        held.goes_on.set()
        await asyncio.gather(*waiting)

    asyncio.run(ask())
    assert held.done == 8


def test_a11_what_waits_to_be_decoded_is_bounded_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(decoding, "decoded", held)
    slow = large(1000)  # a million pixels, of which 32 million may wait

    async def ask() -> None:
        found = Decoding(SERVED)
        tasks = [asyncio.create_task(found.rows([slow, slow], CancelToken(math.inf))) for _ in range(16)]
        await seen(lambda: held.began == 2 and found._pixels == 32_000_000)
        with pytest.raises(RefusedError, match="too many pixels wait") as refused:
            await found.rows([slow], CancelToken(math.inf))
        assert (refused.value.status, refused.value.retry) == (429, True)
        for task in tasks:
            task.cancel()
        assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 16
        held.goes_on.set()
        await seen(lambda: found._pixels == 0)
        assert (held.began, held.done) == (2, 2)  # the second pictures of two requests, and 14 requests, were dropped
        with pytest.raises(RefusedError, match="deadline") as late:
            await found.rows([slow], CancelToken(time.monotonic()))
        assert late.value.status == 503

    asyncio.run(ask())


@pytest.mark.slow(reason="seconds of decoding; deadlines of decoders by themselves are in make test")
def test_a11_the_deadline_is_of_the_whole_request() -> None:
    """Eight pictures that take seconds: all within a second, those that ask for one of them and those that hang up."""
    with serving("--workers", "1", "--batch", "8", "--deadline-s", "1", "--stall-s", "60") as server:
        refused = server.infer(*request(*[large()] * 8))
        assert (refused.status, "392,000,000 pixels together" in refused.json["error"]) == (413, True)
        heavy = request(*[large()] * 4)
        with ThreadPoolExecutor(8) as clients:
            began = time.monotonic()
            replies = list(clients.map(lambda _: server.infer(*heavy), range(8)))
            taken = time.monotonic() - began
        assert {reply.status for reply in replies} <= {200, 503, 429}
        assert 503 in {reply.status for reply in replies}
        assert taken < 1 + 3  # of a busy machine
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        assert time.monotonic() - began < 8  # and not what is decoded yet
