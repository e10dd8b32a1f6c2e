"""fp32 losses in pairs on arrays of the device: images out of range are computed again, with or without a wait."""

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
from tests.support.onnx_models import torch_vgg
from vgg16gpu import LossEngine
from vgg16gpu.devices import Opened
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.runtime.on_device.results import RunOptions

SIZE = 16
LAYERS: Any = {"layers": {"relu1": 0.5}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg((20, 20), SIZE, hidden=9).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


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


def test_a_batch_out_of_range_is_computed_by_ffma(device: Device, path: Path) -> None:
    """To the bits of FFMA, with or without a wait; a repeated run looks again each time."""
    fine, large, nan = (images(3, SIZE) for _ in range(3))
    large[1] *= np.float32(1e6)
    nan[1, 2, 5, 5] = np.nan
    cases = [fine, large, fine, nan]
    with opened(path, device, "ffma") as engine:
        targets = engine.targets(-fine)
        exact = {id(x): engine.value(x, targets) for x in cases}
    with opened(path, device, "wgmma") as engine:
        for ours, others in zip(engine.targets(Placed(engine.device, -fine)), engine.targets(-fine), strict=True):
            assert_same_bits(ours.numpy(), others)
        expected = exact | {id(fine): engine.value(fine, targets)}
        np.testing.assert_allclose(expected[id(fine)], exact[id(fine)], rtol=1e-5)
        placed = [Placed(engine.device, target) for target in targets]
        for x in (large, fine):
            np.testing.assert_array_equal(engine.value(Placed(engine.device, x), placed).numpy(), expected[id(x)])
        there, out = Placed(engine.device, fine), Placed(engine.device, np.zeros(3, np.float32))
        options = RunOptions(0, None, [out], wait=False)
        _, enqueued = engine.on_device("loss", (there, *placed), options)
        engine.on_device("loss", (there, *placed), options)
        for x in cases:
            engine.device.copy_in(there.__cuda_array_interface__["data"][0], x)
            assert engine.repeat(enqueued, 0)
            np.testing.assert_array_equal(read(engine, out), expected[id(x)])
        engine.check()
        assert engine._pending.second_passes == 2
        assert engine._programs.second_passes == 1
