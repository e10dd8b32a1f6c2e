"""kernels/layout/transfer.cu: it copies every word, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from vgg16gpu.devices.base import Device
from vgg16gpu.devices.copy_kernel import BUS_GROUPS, MEMORY_GROUPS, transfer_step
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, Pointer

GUARD = 64  # floats behind the output


@contextmanager
def memory_after(device: Device, step: KernelLaunch, memory: np.ndarray) -> Iterator[np.ndarray]:
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


@pytest.mark.parametrize("groups", [BUS_GROUPS, MEMORY_GROUPS])
@pytest.mark.parametrize("words", [1, 3, 4, 7, 1020, 1023, 2049, 8188, 8192, 8195, 20001])
def test_every_word_and_nothing_else(device: Device, words: int, groups: int) -> None:
    start = -(-words // 64) * 64  # the output, on a multiple of 256 bytes
    memory = np.full(start + words + GUARD, np.nan, np.float32)
    memory[:words] = np.random.default_rng(words).standard_normal(words)
    step = transfer_step(Pointer(Arena.ACTIVATIONS, 4 * start), Pointer(Arena.ACTIVATIONS, 0), 4 * words, groups)
    assert step.nbytes == 2 * 4 * words
    with memory_after(device, step, memory) as after:
        np.testing.assert_array_equal(after[start : start + words], memory[:words])
        np.testing.assert_array_equal(after[:start], memory[:start])
        assert np.isnan(after[start + words :]).all()


def test_words_of_any_bits(device: Device) -> None:
    """Control words and bytes of images travel too: what is a NaN or denormal as a float keeps its bits."""
    words = np.random.default_rng(0).integers(0, 1 << 32, 2048 + 3, np.uint32)
    words[:6] = 0, 1, 0x7F800001, 0xFFFFFFFF, 0x80000000, 0x007FFFFF
    memory = np.concatenate([words, np.zeros(2112, np.uint32)]).view(np.float32)
    step = transfer_step(Pointer(Arena.ACTIVATIONS, 4 * 2112), Pointer(Arena.ACTIVATIONS, 0), words.nbytes)
    with memory_after(device, step, memory) as after:
        np.testing.assert_array_equal(after.view(np.uint32)[2112 : 2112 + len(words)], words)
