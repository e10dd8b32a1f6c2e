"""Arrays through engines in processes of their own: the bits of one engine here, also when a process ends."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.test_engine_pool import check_bad_inputs
from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images, pixels
from tests.support.stream_items import PARTS, items
from vgg16gpu import Engine, EnginePool
from vgg16gpu.cluster.calibration import calibrate_on, calibration_pool
from vgg16gpu.cluster.cards.engine import CardEngine
from vgg16gpu.errors import DeviceError, InputError, ModelError
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import calibrate, calibration_engine

from .conftest import Plant

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


@pytest.mark.slow(reason="the same of devices in one process is in make test")
def test_images_of_any_size_and_several_outputs(model: Path) -> None:
    options: dict[str, Any] = {"outputs": ["relu3_1", "relu2_1"], "batch": [1, 2]}
    with (
        Engine(model, device="cpu", **options) as engine,
        EnginePool(model, devices="cpu:2", **options) as pool,
    ):
        for side in (32, 48, 40, 32):
            x = images(5, side)
            for found, wanted in zip(pool.run(x), engine.run(x), strict=True):
                assert_same_bits(found, wanted)
        with pytest.raises(InputError, match="input"):
            pool.run(images(1, 48)[:, :, :1, :1])


@pytest.mark.slow(reason="test_feeding.py and tests/cli/test_infer_cards.py kill one in make test")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("error", "an illegal address was met"),
        ("killed", "process of cpu was ended by SIGKILL"),
        ("ended", "process of cpu ended with exit code 3"),
    ],
)
def test_a_process_that_fails_is_taken_out_and_no_row_is_lost(
    model: Path, kind: str, words: str, plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    x = images(40)
    with Engine(model, device="cpu", batch=2) as engine:
        wanted = [engine.run(x[i : i + 1]) for i in range(len(x))]
    plant(kind, 2)
    with EnginePool(model, devices="cpu:2", batch=2) as pool, caplog.at_level(logging.WARNING):
        found = list(pool.stream(x[i : i + 1] for i in range(len(x))))
        for one, expected in zip(found, wanted, strict=True):
            assert_same_bits(one, expected)
        (problem,) = [share.problem for share in pool.shares if share.problem]
        assert problem == words
        assert sum(share.images for share in pool.shares) == len(x)
        assert_same_bits(pool.run(x), np.concatenate(wanted))
    assert [record.message for record in caplog.records] == [
        f"cpu: as asked is taken out, and 1 of 2 devices go on with its work: {words}"
    ]


@pytest.mark.slow(reason="one that is killed in a run stands for it")
def test_a_process_that_is_killed_from_outside_between_runs(model: Path) -> None:
    x = images(7)
    with EnginePool(model, devices="cpu:2", batch=2) as pool:
        wanted = pool.run(x)
        os.kill(pids(pool)[0], signal.SIGKILL)
        assert_same_bits(pool.run(x), wanted)
        assert "SIGKILL" in pool.shares[0].problem
        os.kill(pids(pool)[1], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(DeviceError, match="process of cpu was ended by SIGKILL"):
                pool.run(x)
        with pytest.raises(DeviceError, match="SIGKILL"):
            list(pool.stream([x]))


@pytest.mark.slow(reason="test_engine_pool.py has it of devices in one process")
def test_one_that_cannot_be_built_is_left_out(model: Path, plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
    plant("build", 0)
    with EnginePool(model, devices="cpu:2") as pool, caplog.at_level(logging.WARNING):
        assert len(pool.engines) == 1
        assert pool.run(images(3)).shape == (3, 10)
    assert "cpu: as asked is left out: not enough memory" in caplog.text


@pytest.mark.slow(reason="four pools; errors of the other side are in make test")
def test_what_no_process_can_build_is_raised_as_an_engine_raises_it(model: Path, plant: Plant) -> None:
    with pytest.raises(InputError, match="batch 0: give one size"):
        EnginePool(model, devices="cpu:2", batch=0)
    with pytest.raises(ModelError, match="precision"):
        EnginePool(model, devices="cpu:2", precision="fp8")
    with pytest.raises(TypeError, match="unexpected keyword"):
        EnginePool(model, devices="cpu:2", bach=2)
    plant("build", 0, everywhere=True)
    with pytest.raises(DeviceError, match="not enough memory"):
        EnginePool(model, devices="cpu:2")


@pytest.mark.slow(reason="test_calibration.py has it of devices in one process")
def test_calibration_has_the_scales_of_one_engine(model: Path) -> None:
    inputs = [NamedInput(str(number), array) for number, array in enumerate(images(11))]
    with calibration_engine(model, device="cpu", batch=2) as engine:
        alone = calibrate(engine, inputs)
    with calibration_pool(model, "cpu:2", batch=2) as pool:
        assert calibrate_on(pool, inputs) == alone
        assert sum(share.images for share in pool.shares) == 11
        os.kill(pids(pool)[1], signal.SIGKILL)
        assert calibrate_on(pool, inputs) == alone
        assert "SIGKILL" in pool.shares[1].problem
