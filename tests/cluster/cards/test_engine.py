"""Arrays through engines in processes of their own: the bits of one engine here, also when a process ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_engine_pool import check_bad_inputs
from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images, pixels
from tests.support.stream_items import PARTS, items
from vgg16gpu import Engine, EnginePool
from vgg16gpu.cluster.building import kill_processes
from vgg16gpu.cluster.calibration import calibrate_on, calibration_pool
from vgg16gpu.cluster.cards import child
from vgg16gpu.cluster.cards.engine import CardEngine
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import calibrate, calibration_engine

from .card_threads import CardThread

pytestmark = pytest.mark.usefixtures("nothing_left")


def pids(pool: EnginePool) -> list[int]:
    return [engine.process.pid for engine in pool.engines if isinstance(engine, CardEngine)]


def test_run_and_stream_give_the_bits_of_one_engine(model: Path) -> None:
    with (
        Engine(model, device="cpu", batch=[1, 4]) as engine,
        EnginePool(model, devices="cpu:2", batch=[1, 4]) as pool,
    ):
        assert len(set(pids(pool))) == 2
        for x in (images(19), pixels(19)):
            assert_same_bits(pool.run(x), engine.run(x))
            streamed = list(pool.stream(items(x), batch=4))
            assert [len(part) for part in streamed] == list(PARTS)
            for found, wanted in zip(streamed, engine.stream(items(x), batch=4), strict=True):
                assert_same_bits(found, wanted)
        assert_same_bits(pool.run(x[:0]), engine.run(x[:0]))
        assert sum(share.images for share in pool.shares) == 4 * len(x)
        assert (pool.engine.inputs, pool.engine.outputs) == (engine.inputs, engine.outputs)
        check_bad_inputs(pool)
    with pytest.raises(InputError, match="the pool is closed"):
        pool.run(images(1))


def test_images_of_any_size_and_several_outputs(model: Path, threads: list[CardThread]) -> None:
    options: dict[str, Any] = {"outputs": ["relu3_1", "relu2_1"], "batch": [1, 2]}
    with (
        Engine(model, device="cpu", **options) as engine,
        EnginePool(model.read_bytes(), devices="cpu:2", **options) as pool,
    ):
        assert len(threads) == 2
        for side in (32, 40, 32):
            x = images(5, side)
            for found, wanted in zip(pool.run(x), engine.run(x), strict=True):
                assert_same_bits(found, wanted)
        with pytest.raises(InputError, match="input"):
            pool.run(images(1, 48)[:, :, :1, :1])


@pytest.mark.usefixtures("threads")
def test_one_that_is_killed_between_runs(model: Path) -> None:
    x = images(7)
    with EnginePool(model, devices="cpu:2", batch=2) as pool:
        wanted = pool.run(x)
        kill_processes(pool.engines[:1])
        assert_same_bits(pool.run(x), wanted)
        assert "SIGKILL" in pool.shares[0].problem
        kill_processes(pool.engines[1:])
        with pytest.raises(DeviceError, match="process of cpu was ended by SIGKILL"):
            pool.run(x)
        with pytest.raises(DeviceError, match="SIGKILL"):
            list(pool.stream([x]))


@pytest.mark.usefixtures("threads")
def test_one_that_cannot_be_built_is_left_out(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = ["for one engine"]

    def build(*given: Any, **options: Any) -> Engine:
        try:
            room.pop()
        except IndexError:
            raise DeviceError("not enough memory") from None
        return Engine(*given, **options)

    with pytest.raises(InputError, match="batch 0: give one size"):
        EnginePool(model, devices="cpu:2", batch=0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        EnginePool(model, devices="cpu:2", bach=2)
    monkeypatch.setattr(child, "Engine", build)
    with EnginePool(model, devices="cpu:2") as pool, caplog.at_level(logging.WARNING):
        assert len(pool.engines) == 1
        assert pool.run(images(3)).shape == (3, 10)
    assert "cpu: as asked is left out: not enough memory" in caplog.text
    with pytest.raises(DeviceError, match="not enough memory"):
        EnginePool(model, devices="cpu:2")


@pytest.mark.usefixtures("threads")
def test_calibration_has_the_scales_of_one_engine(model: Path) -> None:
    inputs = [NamedInput(str(number), array) for number, array in enumerate(images(5))]
    with calibration_engine(model, device="cpu", batch=2) as engine:
        alone = calibrate(engine, inputs)
    with calibration_pool(model, "cpu:2", batch=2) as pool:
        assert calibrate_on(pool, inputs) == alone
        assert sum(share.images for share in pool.shares) == 5
        kill_processes(pool.engines[1:])
        assert calibrate_on(pool, inputs) == alone
        assert "SIGKILL" in pool.shares[1].problem
