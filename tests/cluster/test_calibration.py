"""Calibration shared by devices: the scales of one device, also when one of several fails."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.narrow_vgg import images
from vgg16gpu.cluster.calibration import calibrate_on, calibration_pool
from vgg16gpu.errors import InputError, KernelError
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import Counting, calibrate, calibration_engine

from .conftest import PATIENCE

KINDS = [pytest.param("cuda", marks=pytest.mark.gpu)]  # the CPU's are those of the test below


def inputs() -> list[NamedInput]:
    return [NamedInput(str(number), array) for number, array in enumerate(images(11))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_scales_are_those_of_one_device(model: Path, kind: str) -> None:
    with calibration_engine(model, device=kind, batch=2) as engine:
        alone = calibrate(engine, inputs())
    with calibration_pool(model, [kind] * 3, batch=2) as pool:
        assert calibrate_on(pool, inputs()) == alone
        assert sum(share.images for share in pool.shares) == 11


def test_a_device_that_fails_has_its_images_counted_by_others(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with calibration_engine(model, device="cpu", batch=2) as engine:
        alone = calibrate(engine, inputs())
    add, counted, failed = Counting.add, [], threading.Event()

    with calibration_pool(model, "cpu:2", batch=2) as pool, caplog.at_level(logging.WARNING):

        def faulty(self: Counting, rows: int) -> None:
            if self._engine is pool.engines[0]:
                counted.append(rows)
                if len(counted) > 1:
                    failed.set()
                    raise KernelError("an illegal address was met")
            else:
                failed.wait(PATIENCE)  # else the others may leave it no batch to fail at
            add(self, rows)

        monkeypatch.setattr(Counting, "add", faulty)
        assert calibrate_on(pool, inputs()) == alone
        assert pool.shares[0].problem
        assert pool.shares[1].images == 11
    assert "is taken out" in caplog.text


def test_what_no_device_can_do_better(model: Path) -> None:
    bad: Any = images(3)
    bad[1] = np.float32(1e38)
    with calibration_pool(model, "cpu:2", allow_nonfinite=True) as pool:
        with pytest.raises(InputError, match="becomes NaN or infinite"):
            calibrate_on(pool, [NamedInput("x", array) for array in bad])
        with pytest.raises(InputError, match="no images to calibrate on"):
            calibrate_on(pool, [])
