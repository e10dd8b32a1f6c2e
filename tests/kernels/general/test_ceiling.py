"""kernels/general/ceiling.cu: it really does the arithmetic that it is credited with."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.layout.test_transfer import GUARD, memory_after
from vgg16gpu.compiler.op_kernels.base import BLOCK
from vgg16gpu.compiler.op_kernels.general.ceiling import CHAINS, ffma_step
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Arena, Pointer


@pytest.mark.parametrize("rounds", [0, 1, 7, 100])
def test_ffma_does_all_its_rounds(device: Device, rounds: int) -> None:
    blocks = 3
    threads = BLOCK * blocks
    step = ffma_step(Pointer(Arena.ACTIVATIONS, 0), blocks, rounds, device.facts.kind)
    count = 4 * CHAINS[device.facts.kind]
    assert step.flop == 2 * count * rounds * threads
    chains = np.arange(threads)[:, None] + np.arange(count, dtype=np.float64)
    for _ in range(rounds):
        chains = chains * 0.999 + 0.5
    with memory_after(device, step, np.full(threads + GUARD, np.nan, np.float32)) as after:
        np.testing.assert_allclose(after[:threads], chains.sum(axis=1), rtol=1e-5)
        assert np.isnan(after[threads:]).all()
