"""kernels/ceiling.cu: it really copies, and it really does the arithmetic that it is credited with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu.ops.base import BLOCK
from vgg16gpu.ops.ceiling import CHAINS, copy_step, ffma_step
from vgg16gpu.program import Arena, Pointer, Step

GUARD = 64  # floats behind the output


@contextmanager
def ran(device: Device, step: Step, memory: np.ndarray) -> Iterator[np.ndarray]:
    """Memory as a step leaves it that was made for addresses from 0 in the activation arena."""
    device.build([step.kernel])
    address = device.allocate(memory.nbytes)
    try:
        device.copy_in(address, memory)
        device.bind([step], {Arena.ACTIVATIONS: address})()
        after = np.empty_like(memory)
        device.copy_out(after, address)
        device.synchronize()
        yield after
    finally:
        device.free(address)


@pytest.mark.parametrize("vectors", [1, 255, 256, 2047, 2048, 2049, 5000])
def test_copy_moves_every_vector_and_nothing_else(device: Device, vectors: int) -> None:
    floats = 4 * vectors
    start = -(-floats // 64) * 64  # the output, on a multiple of 256 bytes
    memory = np.full(start + floats + GUARD, np.nan, np.float32)
    memory[:floats] = np.random.default_rng(vectors).standard_normal(floats)
    step = copy_step(Pointer(Arena.ACTIVATIONS, 4 * start), Pointer(Arena.ACTIVATIONS, 0), 16 * vectors)
    assert step.nbytes == 2 * 16 * vectors
    with ran(device, step, memory) as after:
        np.testing.assert_array_equal(after[start : start + floats], memory[:floats])
        np.testing.assert_array_equal(after[:start], memory[:start])
        assert np.isnan(after[start + floats :]).all()


@pytest.mark.parametrize("rounds", [0, 1, 7, 100])
def test_ffma_does_all_its_rounds(device: Device, rounds: int) -> None:
    blocks = 3
    threads = BLOCK * blocks
    step = ffma_step(Pointer(Arena.ACTIVATIONS, 0), blocks, rounds)
    assert step.flop == 2 * 4 * CHAINS * rounds * threads
    chains = np.arange(threads)[:, None] + np.arange(4 * CHAINS, dtype=np.float64)
    for _ in range(rounds):
        chains = chains * 0.999 + 0.5
    with ran(device, step, np.full(threads + GUARD, np.nan, np.float32)) as after:
        np.testing.assert_allclose(after[:threads], chains.sum(axis=1), rtol=1e-5)
        assert np.isnan(after[threads:]).all()
