"""`LossEngine` on arrays that lie on the device: the host's bits, nothing copied, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, CpuForeign, Placed, images, pixels, read
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from vgg16gpu import LossEngine
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, KernelError

STREAM = 0

TERMS: dict[str, Any] = {"layers": {"relu0": 1.0}, "style": {"relu0": 10.0}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg(size=SIZE).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


@contextmanager
def opened(model: Path, device: Device, **options: Any) -> Iterator[LossEngine]:
    with LossEngine(model, **TERMS, **options, device=device.facts.kind) as engine:
        if engine.device.foreign is None:
            engine.device.foreign = CpuForeign(engine.device)  # type: ignore[misc]
        yield engine


def test_the_same_bits_as_from_the_host(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        x, y = images(5), np.ascontiguousarray(images(5)[::-1])
        there, goal = Placed(engine.device, x), Placed(engine.device, y)
        targets, placed = engine.targets(y), engine.targets(goal)
        for ours, others in zip(placed, targets, strict=True):
            assert_same_bits(ours.numpy(), others)
        expected = engine.value_and_gradient(x, targets)
        engine.value_and_gradient(there, placed)
        before = engine.device.counters.copies_in, engine.device.counters.copies_out
        found = engine.value_and_gradient(there, placed)
        assert (engine.device.counters.copies_in, engine.device.counters.copies_out) == before
        for ours, others in zip(found, expected, strict=True):
            assert ours.shape == others.shape
            assert_same_bits(ours.numpy(), others)
        assert_same_bits(engine.value(there, placed).numpy(), expected[0])


def test_of_which_nobody_waits(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        x, y = images(5), np.ascontiguousarray(images(5)[::-1])
        there, goal = Placed(engine.device, x), Placed(engine.device, y)
        shapes = engine.target_shapes(x.shape, x.shape)
        targets = [Placed(engine.device, np.zeros(shape, np.float32)) for shape in shapes]
        wanted = engine.targets(y)
        expected = engine.value_and_gradient(x, wanted)
        out = [Placed(engine.device, np.zeros(shape, np.float32)) for shape in (x.shape[:1], x.shape)]
        later: Any = {"stream": STREAM, "wait": False}

        def steps() -> None:
            engine.targets(goal, out=targets, **later)
            engine.value_and_gradient(there, targets, out=out, **later)
            engine.value(there, targets, **later)

        for _ in range(3):
            steps()
        before = replace(engine.device.counters)
        steps()
        done = engine.device.counters.since(before)
        assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
        engine.check()
        for place, right in zip((*targets, *out), (*wanted, *expected), strict=True):
            assert_same_bits(read(engine, place), right)
        assert_same_bits(engine.value(there, targets, **later).numpy(), expected[0])
        engine.check()


def test_a_kernel_that_gave_up(device: Device, model: Path) -> None:
    with opened(model, device) as engine:
        x = images(1)
        there = Placed(engine.device, x)
        targets = engine.targets(there)
        engine.value(there, targets, stream=STREAM, wait=False)
        assert engine._pending
        engine.device.copy_in(engine._pending.found, np.array([3], np.uint32))
        with pytest.raises(KernelError, match=r"operator 3 of a run with wait=False: .*gave up"):
            engine.value(x, engine.targets(x))
        engine.check()


def test_one_target_for_all(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        x, y = images(3), -images(1)
        found = engine.value_and_gradient(Placed(engine.device, x), engine.targets(Placed(engine.device, y)))
        for ours, others in zip(found, engine.value_and_gradient(x, engine.targets(y)), strict=True):
            assert_same_bits(ours.numpy(), others)


def test_what_is_wrong_is_said(device: Device, model: Path) -> None:
    with opened(model, device) as engine:
        x = images(2)
        there, targets = Placed(engine.device, x), engine.targets(x)
        with pytest.raises(InputError, match="the images lie on a GPU, and a target on the host"):
            engine.value(there, targets)
        with pytest.raises(InputError, match="wait=False is for arrays on the GPU"):
            engine.value(x, targets, wait=False)
        with pytest.raises(InputError, match="stream is for arrays on the GPU"):
            engine.targets(x, stream=STREAM)
        with pytest.raises(InputError, match="say on which stream"):
            engine.value(there, engine.targets(there), wait=False)
        with pytest.raises(InputError, match="out has 1 arrays; there are 2 targets"):
            engine.targets(there, out=[there])
        with pytest.raises(InputError, match="1 targets are given, and 2 are compared"):
            engine.value(there, engine.targets(there)[:1])
        with pytest.raises(InputError, match=r"the images are uint8 \(2, 16, 16, 3\); give float32 \(N, 3, H, W\)"):
            engine.targets(Placed(engine.device, pixels(2)))
        engine.device.foreign = None  # type: ignore[misc]
        with pytest.raises(InputError, match="this engine runs on the CPU"):
            engine.targets(there)
