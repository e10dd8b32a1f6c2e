"""kernels/gemm/gemm_splitk.cu against float64 numpy, and its bits: the same for every tile, batch and neighbour."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.support.kernel_harness import (
    GEMM_TILES,
    assert_same_bits,
    check_op,
    gemm_as,
    normal,
    run_op,
    seeded,
)
from vgg16gpu.compiler.graph.ops import Array, Gemm, Shape
from vgg16gpu.devices.base import Device

LENGTHS = (1, 3, 4, 5, 1020, 1024, 1028, 2044, 2048, 2052, 5000)  # around what 256 threads take at once, and twice that
MAPS: tuple[Shape, ...] = ((1, 3, 7, 7), (2, 64, 7, 7), (3, 5, 1, 1), (2, 8, 1, 1), (2, 1, 3, 5), (1, 6, 15, 13))


def make(shape: Shape, outputs: int, *, relu: bool = False, bias: bool = True) -> tuple[Gemm, Array]:
    """A fully connected layer on (N, F) or (N, C, H, W), and its input."""
    random = seeded(f"{shape} {outputs} {relu} {bias}")
    weight = normal(random, outputs, int(np.prod(shape[1:])))
    offset = normal(random, outputs, scale=3.0) if bias else None
    return Gemm("x", "y", ("y",), weight, offset, relu, flattens=len(shape) == 4), normal(random, *shape)


# Of gemm_splitk, also on a CPU, where gemm_direct is planned:
check, run = partial(check_op, of="cuda"), partial(run_op, of="cuda")


@pytest.mark.parametrize("length", LENGTHS)
def test_reduction_lengths(device: Device, length: int) -> None:
    check(device, *make((2, length), 7))


@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 5, 10, 31, 1000])
@pytest.mark.parametrize("batch", [1, 7, 16, 33])
def test_numbers_of_outputs(device: Device, batch: int, outputs: int) -> None:
    check(device, *make((batch, 36), outputs, relu=outputs % 2 == 0, bias=outputs != 5), inner=True)


@pytest.mark.parametrize("shape", MAPS, ids=str)
def test_flattening_feature_maps(device: Device, shape: Shape) -> None:
    """The map lies channels last, its weights were brought into that order."""
    check(device, *make(shape, 6))


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(1, 20), (2, 6), (3, 1030), (5, 7), (17, 6), (2, 3, 3, 3)], ids=str)
def test_small_shapes(device: Device, shape: Shape) -> None:
    check(device, *make(shape, 5, relu=True), inner=True)


@pytest.mark.parametrize("tile", GEMM_TILES, ids=str)
@pytest.mark.parametrize("batch", [1, 2, 7, 19])
def test_every_tile_gives_the_same_bits(device: Device, batch: int, tile: tuple[int, int, int]) -> None:
    op, x = make((batch, 3002), 13)
    with gemm_as(GEMM_TILES[0]):
        expected = check(device, op, x)
    with gemm_as(tile):
        assert_same_bits(check(device, op, x, inner=True), expected)


def test_an_image_has_the_same_bits_in_any_batch_and_position(device: Device) -> None:
    op, x = make((33, 1500), 9)
    alone = np.concatenate([run(device, op, row[None]) for row in x])
    for batch in (2, 3, 8, 9, 33):
        assert_same_bits(run(device, op, x[:batch]), alone[:batch], f"batch {batch}")
    assert_same_bits(run(device, op, x[::-1]), alone[::-1], "reversed")


@pytest.mark.parametrize("batch", [2, 8, 17])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_image(device: Device, bad: float, batch: int) -> None:
    op, x = make((batch, 40), 6, relu=True)
    clean = run(device, op, x)
    x[1, 17] = bad
    y = run(device, op, x, inner=True)
    others = np.arange(batch) != 1
    assert_same_bits(y[others], clean[others])
    if np.isnan(bad):
        assert np.isnan(y[1]).all()
    else:
        np.testing.assert_array_equal(y[1], np.where(op.weight[:, 17] > 0, np.inf, 0))
