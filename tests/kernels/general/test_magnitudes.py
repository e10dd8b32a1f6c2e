"""kernels/general/magnitudes.cu: the counts of numpy, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_harness import Bench, normal, seeded, stored
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.op_kernels.general.magnitudes import COUNTS_NBYTES, MagnitudeCounts, can_count, count
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Arena, DType, Layout, Pointer, TensorDesc

Counts = npt.NDArray[np.int64]
BINS = 0x7F800000 >> 13


def by_numpy(x: Array) -> Counts:
    return np.bincount(np.abs(x).ravel().view(np.uint32) >> 13, minlength=BINS)


def counted(
    device: Device, arrays: Sequence[Array], *, rows: int | None = None, before: int = 0
) -> tuple[Counts, np.float32]:
    """Counts and the largest magnitude after all arrays, each (N, C, ...), beside `before` in every bin."""
    bench = Bench(device)
    tally = MagnitudeCounts(bench.put(np.full(BINS, before, np.uint64)), bench.put(np.zeros(1, np.uint32)))
    steps = []
    for x in arrays:
        value = TensorDesc("x", x.shape, Layout.NHWC, bench.put(stored(x)))
        steps.append(count(value, len(x) if rows is None else rows, tally, device.facts))
    bench.run(*steps)
    return bench.get(tally.counts, (BINS,), np.int64), bench.get(tally.largest, (1,), np.float32)[0]


def check(device: Device, *arrays: Array) -> None:
    counts, largest = counted(device, arrays)
    np.testing.assert_array_equal(counts, sum(map(by_numpy, arrays)))
    assert largest == max(np.abs(x).max() for x in arrays)


SHAPES = ((1, 1), (3, 5), (2, 1000), (1, 3, 7, 9), (2, 4, 5, 5), (2, 70, 13, 11), (3, 6, 40, 41))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Device, shape: Shape) -> None:
    """Channels that are padding count for nothing."""
    check(device, normal(seeded(str(shape)), *shape))


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(2, 3, 9, 7), (1, 5)], ids=str)
def test_small_values(device: Device, shape: Shape) -> None:
    x = normal(seeded(str(shape)), *shape)
    check(device, np.maximum(x, 0), x * np.exp2(20 * x))


def test_after_a_relu(device: Device) -> None:
    check(device, np.maximum(normal(seeded("relu"), 2, 64, 30, 30), 0))


def test_magnitudes_of_every_size(device: Device) -> None:
    """Zeros of both signs, denormal numbers, all octaves, the largest one: many lie outside of a block's window."""
    random = seeded("sizes")
    bits = random.integers(0, 0x7F800000, 60_000, dtype=np.uint32) | random.integers(0, 2, 60_000, np.uint32) << 31
    x = bits.view(np.float32).reshape(1, 60_000)
    x[0, :9] = 0.0, -0.0, 1e-45, -1e-45, 1.17549435e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0
    check(device, x)
    check(device, np.sort(np.abs(x)))  # the first elements of a block are its smallest
    check(device, -np.sort(-np.abs(x)))
    check(device, np.zeros((2, 8), np.float32), np.full((2, 8), 1e-45, np.float32), np.full((1, 8), 2.0, np.float32))


def test_images_behind_the_last_count_for_nothing(device: Device) -> None:
    x = normal(seeded("rows"), 5, 6, 8, 9)
    x[3:] = np.nan
    counts, largest = counted(device, [x], rows=3)
    np.testing.assert_array_equal(counts, by_numpy(x[:3]))
    assert largest == np.abs(x[:3]).max()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(device: Device, bad: float) -> None:
    """Wherever it is; and it is written to no bin, nor behind the last."""
    x = normal(seeded("bad"), 1, 5, 30, 31)
    for place in ((0, 4, 29, 30), (0, 0, 0, 0), (0, 2, 11, 3)):
        y = x.copy()
        y[place] = bad
        counts, largest = counted(device, [y])
        assert not np.isfinite(largest)
        assert counts.sum() == x.size - 1


def test_counts_have_64_bits(device: Device) -> None:
    x = np.zeros((1, 4096), np.float32)
    x[0, ::2] = 1.5
    counts, _ = counted(device, [x], before=2**32 - 1)
    np.testing.assert_array_equal(counts, by_numpy(x) + (2**32 - 1))


def test_what_is_counted() -> None:
    assert COUNTS_NBYTES == 8 * BINS
    value = TensorDesc("x", (2, 3, 4, 5), Layout.NHWC, Pointer(Arena.ACTIVATIONS, 0))
    assert can_count(value)
    assert not can_count(replace(value, element=DType.F16_PAIR))
    assert not can_count(replace(value, layout=Layout.PLAIN))
