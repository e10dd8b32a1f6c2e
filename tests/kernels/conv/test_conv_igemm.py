"""conv_igemm.cu against float64 numpy, and its bits: the same for every tile, split, batch and neighbour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from tests.support.kernel_harness import (
    CONV_TILES,
    assert_same_bits,
    check_op,
    conv_as,
    normal,
    run_op,
    seeded,
)
from vgg16gpu.compiler.graph.ops import Array, Conv
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.conv.conv_igemm import MAX_GROUPS, MIN_GROUP, geometry, group_length
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.devices.facts import H200
from vgg16gpu.errors import ModelError


@dataclass(frozen=True)
class Case:
    """A convolution and the size of its input, of which everything else is random."""

    shape: tuple[int, int, int, int]  # N, C, H, W
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    relu: bool = True
    pool: bool = False
    bias: bool = True

    def __str__(self) -> str:
        batch, channels, height, width = self.shape
        geometry = f"k{self.kernel[0]}x{self.kernel[1]}-s{self.strides[0]}x{self.strides[1]}"
        pads = "p" + "".join(map(str, self.pads))
        flags = "-relu" * self.relu + "-pool" * self.pool + "-nobias" * (not self.bias)
        return f"n{batch}-c{channels}-{height}x{width}-oc{self.filters}-{geometry}-{pads}{flags}"

    def make(self) -> tuple[Conv, Array]:
        """The op, and an input of unit scale."""
        random = seeded(str(self))
        weight = normal(random, self.filters, self.shape[1], *self.kernel)
        bias = normal(random, self.filters, scale=3.0) if self.bias else None
        window = Window(self.kernel, self.strides, Pads(*self.pads))
        return Conv("x", "y", ("y",), weight, bias, window, self.relu, self.pool), normal(random, *self.shape)


def parameters(cases: Iterable[Case], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(case, id=str(case), marks=marks) for case in cases]


def reduction(k: int) -> Case:
    """A 1x1 convolution whose reduction has k products."""
    return Case((1, k, 3, 3), 8, (1, 1), pads=(0, 0, 0, 0), relu=False)


# The 13 convolutions of VGG16 with an eighth of the channels (the input keeps its 3) and of the map; the last of each
# block pools.
VGG = (
    Case((1, 3, 28, 28), 8),
    Case((1, 8, 28, 28), 8, pool=True),
    Case((1, 8, 14, 14), 16),
    Case((1, 16, 14, 14), 16, pool=True),
    Case((1, 16, 7, 7), 32),
    Case((1, 32, 7, 7), 32),
    Case((1, 32, 8, 8), 32, pool=True),
    Case((1, 32, 4, 4), 64),
    Case((1, 64, 4, 4), 64),
    Case((1, 64, 4, 4), 64, pool=True),
    Case((1, 64, 2, 2), 64),
    Case((2, 64, 2, 2), 64),
    Case((1, 64, 2, 2), 64, pool=True),
)

EDGES = (
    Case((1, 1, 1, 1), 1),
    Case((1, 1, 1, 1), 1, (1, 1), pads=(0, 0, 0, 0)),
    Case((1, 1, 5, 4), 5, relu=False),
    Case((3, 3, 1, 7), 6),
    Case((1, 3, 7, 1), 3, bias=False),
    Case((1, 5, 6, 6), 7, relu=False, bias=False),
    Case((1, 4, 5, 5), 1),
    Case((1, 4, 5, 5), 63),
    Case((1, 4, 5, 5), 65),
    Case((1, 4, 4, 4), 130),
    Case((1, 3, 2, 2), 4, pool=True),
    Case((1, 3, 15, 15), 9, pool=True),
    Case((1, 4, 15, 16), 9, pool=True),
    Case((1, 4, 16, 15), 9, pool=True),
    Case((2, 3, 61, 61), 5, pool=True),
    Case((1, 3, 3, 3), 5, relu=False, pool=True),
    Case((1, 6, 9, 9), 66, pads=(0, 0, 0, 0), pool=True),
    Case((1, 1, 1, 32767), 1),  # as long as a map may be
    Case((1, 1, 32767, 1), 1),
    Case((2, 1, 2, 32767), 1, pool=True),
)

BATCHES = tuple(Case((batch, 5, 6, 9), 10, pool=pool) for batch in (2, 5) for pool in (False, True))

GEOMETRY = (
    Case((1, 3, 9, 8), 6, (1, 1), pads=(0, 0, 0, 0)),
    Case((1, 3, 9, 8), 6, (5, 5), pads=(2, 2, 2, 2)),
    Case((1, 3, 9, 8), 6, (7, 7), pads=(3, 3, 3, 3)),
    Case((1, 3, 7, 7), 6, (7, 7), pads=(0, 0, 0, 0)),
    Case((1, 3, 9, 8), 6, (2, 3), pads=(0, 1, 1, 1)),
    Case((1, 3, 9, 8), 6, (3, 2), pads=(1, 0, 1, 1)),
    Case((2, 3, 9, 8), 6, strides=(2, 2)),
    Case((2, 3, 10, 8), 6, strides=(2, 1)),
    Case((2, 3, 10, 11), 6, strides=(3, 2)),
    Case((1, 3, 17, 17), 6, (7, 7), (2, 2), (3, 3, 3, 3)),
    Case((1, 3, 10, 10), 6, (1, 1), (3, 3), (0, 0, 0, 0)),
    Case((1, 3, 6, 5), 6, pads=(2, 0, 0, 1)),
    Case((1, 3, 6, 5), 6, pads=(0, 2, 1, 0)),
    Case((1, 3, 4, 4), 6, pads=(2, 2, 2, 2)),
    Case((1, 3, 11, 11), 6, (5, 5), (2, 2), (2, 1, 0, 2), pool=True),
)

# K below, at and above a k-tile, a group, and the length from which groups grow
REDUCTIONS = (12, 16, 20, 32, 36, MIN_GROUP - 4, MIN_GROUP, MIN_GROUP + 4, 2 * MIN_GROUP, 2300, 2304, 2308, 2564)

SANITIZED = (
    Case((2, 3, 9, 9), 6),
    Case((1, 5, 7, 7), 9, pool=True),
    Case((1, 3, 9, 8), 6, (2, 3), (2, 1), (0, 1, 1, 0), relu=False),
)

# Of conv_igemm, also on a CPU, where conv_direct is planned:
check, run = partial(check_op, of="cuda"), partial(run_op, of="cuda")


@pytest.mark.parametrize("case", [*parameters(EDGES), *parameters(BATCHES)])
def test_edges(device: Device, case: Case) -> None:
    check(device, *case.make(), inner=True)


@pytest.mark.parametrize("case", parameters((*GEOMETRY, *VGG)))
def test_kernels_strides_and_padding(device: Device, case: Case) -> None:
    check(device, *case.make())


@pytest.mark.parametrize("k", REDUCTIONS)
def test_reduction_lengths(device: Device, k: int) -> None:
    """Of blocks that share none."""
    with conv_as(CONV_TILES["large"]):
        check(device, *reduction(k).make())


@pytest.mark.gpu
def test_a_map_of_more_than_two_gigabytes(gpu: CudaDevice) -> None:
    """Its ends are those of convolutions of its ends alone. On the CPU it takes more memory than most machines have."""
    conv, _ = Case((1, 4, 8, 8), 4).make()
    x = np.tile(normal(seeded("large"), 1, 4, 58, 11600), (1, 1, 200, 1))
    assert x.nbytes > 1 << 31
    y = run(gpu, conv, x, inner=True)
    assert_same_bits(y[:, :, :10], run(gpu, conv, x[:, :, :12].copy(), inner=True)[:, :, :10])
    assert_same_bits(y[:, :, -10:], run(gpu, conv, x[:, :, -12:].copy(), inner=True)[:, :, -10:])


@pytest.mark.parametrize("shape", [(1, 1, 1, 32768), (1, 1, 32768, 1), (1, 4096, 200, 32767)], ids=str)
def test_maps_beyond_the_kernels_integers_are_refused(shape: tuple[int, int, int, int]) -> None:
    conv, _ = Case((1, shape[1], 3, 3), 5).make()
    with pytest.raises(ModelError, match=r"Conv 'y': its input .* is too large; maps and kernels may have up to 32767"):
        geometry(conv, shape, H200)


@pytest.mark.first_case(reason="test_every_split_gives_the_same_bits has all tiles")
@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
@pytest.mark.parametrize("tile", CONV_TILES)
def test_small_shapes(device: Device, tile: str, case: Case) -> None:
    with conv_as(CONV_TILES[tile]):
        check(device, *case.make(), inner=True)


@pytest.mark.first_case(reason="test_every_split_gives_the_same_bits pools")
@pytest.mark.sanitize
@pytest.mark.parametrize("pool", [False, True])
def test_small_split_reduction(device: Device, pool: bool) -> None:
    with conv_as(CONV_TILES["small"], splits=2):
        check(device, *Case((1, 40, 4, 5), 6, pool=pool).make())


# ---- Bits

TILED = (
    Case((2, 12, 13, 11), 70),
    Case((2, 12, 13, 11), 70, pool=True),
    Case((1, 3, 20, 20), 20, (5, 5), (2, 2), (2, 2, 2, 2), relu=False),
)
SPLIT = (
    Case((2, 72, 5, 5), 20),  # three groups, the last one short
    Case((2, 72, 5, 5), 20, pool=True),
    Case((1, 288, 4, 4), 12, relu=False),  # nine groups' worth in eight
)


@pytest.mark.first_case(reason="test_every_split_gives_the_same_bits has all tiles")
@pytest.mark.parametrize("tile", CONV_TILES)
@pytest.mark.parametrize("case", parameters((*TILED, *SPLIT)))
def test_every_tile_gives_the_same_bits(device: Device, case: Case, tile: str) -> None:
    op, x = case.make()
    with conv_as(CONV_TILES["large"]):
        expected = check(device, op, x)
    with conv_as(CONV_TILES[tile]):
        assert_same_bits(check(device, op, x, inner=True), expected, tile)


@pytest.mark.parametrize("splits", range(1, MAX_GROUPS + 1))
@pytest.mark.parametrize("case", parameters(SPLIT))
def test_every_split_gives_the_same_bits(device: Device, case: Case, splits: int) -> None:
    op, x = case.make()
    with conv_as(CONV_TILES["large"]):
        expected = run(device, op, x)
    for name, tile in CONV_TILES.items():
        with conv_as(tile, splits):
            assert_same_bits(run(device, op, x), expected, f"{name}, {splits} splits")


@pytest.mark.parametrize("pool", [False, True])
def test_an_image_has_the_same_bits_in_any_batch_and_position(device: Device, pool: bool) -> None:
    op, x = Case((5, 20, 7, 7), 12, pool=pool).make()
    alone = np.concatenate([run(device, op, image[None]) for image in x])
    for batch in (2, 3, 5):
        assert_same_bits(run(device, op, x[:batch]), alone[:batch], f"batch {batch}")
    assert_same_bits(run(device, op, x[::-1]), alone[::-1], "reversed")


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_where_it_belongs(device: Device, bad: float, pool: bool) -> None:
    op, x = Case((3, 4, 8, 8), 8, pool=pool).make()
    clean = run(device, op, x)
    x[1, 2, 3, 4] = bad
    y = run(device, op, x)
    assert_same_bits(y[[0, 2]], clean[[0, 2]])
    reached = np.zeros((8, 8), np.bool_)
    reached[2:5, 3:6] = True  # the outputs whose window holds the element
    if pool:
        reached = reached.reshape(4, 2, 4, 2).any(axis=(1, 3))
    assert_same_bits(y[1][:, ~reached], clean[1][:, ~reached])
    if np.isnan(bad):
        assert np.isnan(y[1][:, reached]).all()  # ReLU and maximum keep it
    else:
        assert np.isinf(y[1][:, reached]).any()


@pytest.mark.first_case(reason="for mutants; test_conv_direct.py looks at the padding, too")
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("pool", [False, True])
def test_padding_channels_stay_zero_beside_an_infinity(device: Device, pool: bool, splits: int) -> None:
    """Or 0 times NaN would make the next layer NaN where ONNX says infinity."""
    op, x = Case((1, 40, 8, 8), 6, pool=pool).make()
    x[0, 2, 3, 4] = np.inf
    with conv_as(CONV_TILES["large"], splits):
        run(device, op, x)  # looks at the padding


@pytest.mark.parametrize("k", [4, *REDUCTIONS, 4608, 25088])
def test_groups(k: int) -> None:
    group = group_length(k)
    assert group >= MIN_GROUP
    assert -(-k // group) <= MAX_GROUPS
    assert all(group % tile.k == 0 for tile in CONV_TILES.values())
