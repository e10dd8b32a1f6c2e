"""fp32 losses in pairs on arrays of the device: images out of range are computed again, whoever waits or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import CpuForeign, Placed, read
from tests.support.hopper_on_cpu import HopperOnCpu, hopper_for
from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images
from vgg16gpu import LossEngine
from vgg16gpu.devices import Opened
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.zoo.generate import make_vgg

SIZE = 32
LATER: Any = {"stream": 0, "wait": False}
LAYERS: Any = {"layers": {"relu1_1": 1.0, "relu2_1": 0.5}, "style": {"relu2_1": 10.0}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "vgg.onnx"
    make_vgg(path, variant="vgg11", size=SIZE, width=64, hidden=64, classes=10)
    return path


@contextmanager
def opened(path: Path, device: Device, kernels: str) -> Iterator[Any]:
    """A loss on a Hopper GPU, or on what stands for one."""
    where: Any = "cuda"
    if isinstance(hopper_for(device), HopperOnCpu):
        stand_in: Any = hopper_for(CpuDevice())  # the engine closes it
        stand_in.foreign = CpuForeign(stand_in)
        where = Opened(stand_in, "for a GPU")
    with LossEngine(path, **LAYERS, kernels=kernels, device=where) as engine:
        yield engine


def wrong(case: str) -> Any:
    """Three images, of which one leaves the range of pairs."""
    x = images(3, SIZE)
    if case == "large":
        x[1] *= np.float32(1e6)
    elif case == "nan":
        x[1, 2, 5, 5] = np.nan
    return x


def second_passes(engine: Any) -> int:
    return engine._losses._programs.second_passes


@pytest.mark.slow(reason="plans/test_gradients_in_pairs.py has the arithmetic, test_loss.py the waits")
def test_the_same_bits_from_the_host_and_with_or_without_a_wait(device: Device, path: Path) -> None:
    with opened(path, device, "wgmma") as engine:
        x, y = images(3, SIZE), -images(3, SIZE)
        there, goal = Placed(engine.device, x), Placed(engine.device, y)
        targets = engine.targets(y)
        for ours, others in zip(engine.targets(goal), targets, strict=True):
            assert_same_bits(ours.numpy(), others)
        placed = engine.targets(goal)
        expected = engine.value_and_gradient(x, targets)
        for options in ({}, LATER):
            for ours, others in zip(engine.value_and_gradient(there, placed, **options), expected, strict=True):
                assert_same_bits(ours.numpy(), others)
        engine.check()
        assert engine._pending.second_passes == second_passes(engine) == 0


@pytest.mark.slow(reason="plans/test_gradients_in_pairs.py has it on the host")
@pytest.mark.parametrize("case", ["large", "nan"])
def test_what_is_out_of_range_is_computed_by_ffma(device: Device, path: Path, case: str) -> None:
    """All of its batch, to the bits of FFMA; whoever waits or not."""
    x, y = wrong(case), -images(3, SIZE)
    with opened(path, device, "ffma") as engine:
        targets = engine.targets(y)
        expected = engine.value_and_gradient(x, targets)
    with opened(path, device, "wgmma") as engine:
        there, placed = Placed(engine.device, x), [Placed(engine.device, target) for target in targets]
        found = [engine.value_and_gradient(x, targets)]
        for options in ({}, LATER):
            arrays = engine.value_and_gradient(there, placed, **options)
            found.append(tuple(array.numpy() for array in arrays))
        engine.check()
        assert second_passes(engine) == 2
        assert engine._pending.second_passes == 1
    for loss, gradient in found:
        np.testing.assert_array_equal(loss, expected[0])
        np.testing.assert_array_equal(gradient, expected[1])


@pytest.mark.slow(reason="test_second_pass.py repeats runs")
def test_a_run_that_is_repeated_looks_each_time(device: Device, path: Path) -> None:
    with opened(path, device, "wgmma") as engine:
        targets = engine.targets(-images(3, SIZE))
        placed = [Placed(engine.device, target) for target in targets]
        cases = [wrong(case) for case in ("fine", "large", "fine", "nan", "fine")]
        there = Placed(engine.device, cases[0])
        out = [Placed(engine.device, np.zeros(shape, np.float32)) for shape in ((3,), cases[0].shape)]
        address = there.__cuda_array_interface__["data"][0]
        expected = [engine.value_and_gradient(x, targets) for x in cases]
        enqueued = engine.enqueue(there, placed, out, 0)
        engine.enqueue(there, placed, out, 0)
        for x, right in zip(cases, expected, strict=True):
            engine.device.copy_in(address, x)
            assert engine.repeat(enqueued, 0)
            for place, others in zip(out, right, strict=True):
                np.testing.assert_array_equal(read(engine, place), others)
        engine.check()
        assert engine._pending.second_passes == 2
