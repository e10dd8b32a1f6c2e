"""EnginePool: several engines give what one gives, bit for bit, also when one of them is taken out in the middle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images, pixels
from tests.support.stream_items import PARTS, items
from vgg16gpu import Engine, EnginePool
from vgg16gpu.devices import open_device
from vgg16gpu.errors import DeviceError, InputError, KernelError

KINDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def names(kind: str, count: int) -> list[str]:
    """So many devices; several on one card are engines of their own there."""
    return [kind] * count


@pytest.mark.parametrize("kind", KINDS)
def test_run_and_stream_give_the_bits_of_one_engine(model: Path, kind: str) -> None:
    x = pixels(19)
    with Engine(model, device=kind, batch=[1, 4]) as engine:
        whole, parts = engine.run(x), list(engine.stream(items(x), batch=4))
    with EnginePool(model, devices=names(kind, 3), batch=[1, 4]) as pool:
        assert_same_bits(pool.run(x), whole)
        assert_same_bits(pool(x), whole)
        streamed = list(pool.stream(items(x), batch=4))
        assert [len(part) for part in streamed] == list(PARTS)
        for found, wanted in zip(streamed, parts, strict=True):
            assert_same_bits(found, wanted)
        assert sum(share.images for share in pool.shares) == 3 * len(x)
        assert len(pool.shares) == 3


def test_each_size_that_comes_is_planned_once(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    made = []
    from vgg16gpu.compiler.compile import SizePlanner

    plan = SizePlanner.plan
    monkeypatch.setattr(SizePlanner, "plan", lambda self, size: made.append(size) or plan(self, size))
    options: dict[str, Any] = {"outputs": ["relu3_1"], "batch": 2}
    x = images(6, 32)
    with Engine(model, device="cpu", **options) as engine:
        wanted = engine.run(x)
    made.clear()
    with EnginePool(model, devices="cpu:2", **options) as pool:
        assert len({id(engine.plan) for engine in pool.engines}) == 1
        for _ in range(3):
            assert_same_bits(pool.run(x), wanted)
    assert made.count((32, 32)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_that_fails_is_taken_out_and_no_row_is_lost(
    model: Path, kind: str, break_lane: Callable[[Engine, int], object], caplog: pytest.LogCaptureFixture
) -> None:
    x = images(40)
    with Engine(model, device=kind, batch=2) as engine:
        wanted = [engine.run(x[i : i + 1]) for i in range(len(x))]
    opened = [open_device(kind) for _ in range(3)]  # in this process, where the fault can be planted
    with EnginePool(model, devices=opened, batch=2) as pool, caplog.at_level(logging.WARNING):
        break_lane(pool.engines[1], 2)
        for found, expected in zip(pool.stream([x[i : i + 1] for i in range(len(x))]), wanted, strict=True):
            assert_same_bits(found, expected)
        assert [bool(share.problem) for share in pool.shares] == [False, True, False]
        assert "an illegal address was met" in pool.shares[1].problem
        assert "is taken out, and 2 of 3 devices go on with its work" in caplog.text
        assert pool.shares[1].batches == 2
        assert sum(share.images for share in pool.shares) == len(x)
        assert_same_bits(pool.run(x), np.concatenate(wanted))
        assert pool.shares[1].batches == 2


def test_the_last_device_stays_and_its_errors_are_the_callers(
    model: Path, break_lane: Callable[[Engine, int], Callable[[], None]]
) -> None:
    x = images(6)
    with EnginePool(model, devices="cpu:1", batch=2) as pool:
        mend = break_lane(pool.engines[0], 1)
        with pytest.raises(KernelError, match="illegal address"):
            pool.run(x)
        with pytest.raises(KernelError, match="illegal address"):
            list(pool.stream([x, x]))
        mend()  # a lane stays open for what the stream has left
        assert pool.run(x).shape == (6, 10)


def test_a_device_without_memory_is_left_out(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = [open_device("cpu") for _ in range(3)]

    def full(_: int) -> int:
        raise DeviceError("not enough memory")

    monkeypatch.setattr(opened[0].device, "allocate", full)
    with EnginePool(model, devices=opened) as pool, caplog.at_level(logging.WARNING):
        assert len(pool.engines) == 2
        assert pool.run(images(3)).shape == (3, 10)
    full_one = open_device("cpu")
    monkeypatch.setattr(full_one.device, "allocate", full)
    with pytest.raises(DeviceError, match="not enough memory"):
        EnginePool(model, devices=[full_one])


def check_bad_inputs(pool: EnginePool) -> None:
    """What is wrong with inputs is told, and no device is to blame."""
    bad = images(5)
    bad[3, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match=r"input 3 of 5 .* holds NaN or Inf"):
        pool.run(bad)
    with pytest.raises(InputError, match="this model takes"):
        pool.run(np.zeros((2, 3, 5, 5), np.float32))
    found = pool.stream([images(1), bad, images(1)])
    assert next(found).shape == (1, 10)
    with pytest.raises(InputError, match="item 1 of the stream: input 3"):
        next(found)
    assert all(share.problem == "" for share in pool.shares)


def test_what_is_wrong_with_inputs_is_told_as_an_engine_tells_it(model: Path) -> None:
    with EnginePool(model, devices="cpu:2", batch=2) as pool:
        check_bad_inputs(pool)
        with pytest.raises(InputError, match="batch 3: the pool is built for 2"):
            pool.stream([], batch=3)
        with pytest.raises(InputError, match="give a single input to run"):
            pool.stream(3)  # type: ignore[arg-type]
        assert pool.run(images(1)[:0]).shape == (0, 10)
        assert all(share.problem == "" for share in pool.shares)


def test_what_an_iterable_raises_comes_behind_the_results_before_it(model: Path) -> None:
    def failing() -> Iterator[Any]:
        yield images(1)
        yield images(2)
        raise OSError("no more")

    with EnginePool(model, devices="cpu:2", batch=4) as pool:
        found = []
        with pytest.raises(OSError, match="no more"):
            found.extend(pool.stream(failing()))
        assert len(found) in (0, 2)  # `extend` keeps what came, by version of Python
        stream = pool.stream(failing())
        assert [len(next(stream)), len(next(stream))] == [1, 2]


def test_a_stream_that_is_left_and_a_pool_that_is_closed(model: Path) -> None:
    before = threading.active_count()
    with EnginePool(model, devices="cpu:2", batch=1) as pool:
        stream = pool.stream(images(1) for _ in range(100))
        next(stream)
        stream.close()
        assert pool.run(images(2)).shape == (2, 10)
    pool.close()
    with pytest.raises(InputError, match="the pool is closed"):
        pool.run(images(1))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("gpu", "is not a device"),
        ("cpu:0", "is not a device"),
        ("cpu:65", "is not a device"),
        ("cuda:0,,", "is not a device"),
        ("cpu,cuda:0", "who computes them"),
        ([], "at least one"),
    ],
)
def test_devices_that_are_none(model: Path, devices: Any, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        EnginePool(model, devices=devices)


def test_options_that_a_pool_has_by_itself(model: Path) -> None:
    with pytest.raises(InputError, match="leave out device"):
        EnginePool(model, device="cpu")
