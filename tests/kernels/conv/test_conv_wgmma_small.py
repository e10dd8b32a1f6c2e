"""conv_wgmma_small.cu against float64 and integer numpy, and its bits: every element, split and exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.judged_bits import check_fault, check_nan, check_positions, check_replays
from tests.support.wgmma_harness import PRECISIONS, ConvCase, check_conv, parameters
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import SmallTile
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

WHOLE = SmallTile(rows=14)
CLUSTER = SmallTile(rows=8, splits=2, exchange=1)  # pairs of blocks exchange their sums in shared memory
WORKSPACE = SmallTile(rows=8, splits=4, exchange=2)  # four in global memory
UNEVEN = SmallTile(rows=10, splits=8, exchange=2)  # slices of two rows: the last blocks finish none
THREE = SmallTile(rows=4, splits=2, exchange=2, blocks_per_sm=3, halo_stages=1)
TWO = SmallTile(rows=6, blocks_per_sm=2)
TWO_ONE_TAP = SmallTile(rows=6, blocks_per_sm=2, taps=1)
ALL_TAPS = SmallTile(rows=6, taps=9, halo_stages=1)
ONE_TAP = SmallTile(rows=12, splits=2, exchange=1, taps=1)
ONE_HALO = SmallTile(rows=12, splits=2, exchange=1, halo_stages=1, taps=1)  # sums are received once all are multiplied
HIGH = SmallTile(rows=14, splits=2, exchange=1)

HALVES = (
    ConvCase("", (3, 100, 15, 13), 65, WHOLE, relu=False),
    ConvCase("", (2, 20, 9, 10), 17, WHOLE, pool=True),
    ConvCase("", (2, 320, 15, 17), 64, CLUSTER, bias=False),
    ConvCase("", (1, 320, 15, 15), 128, CLUSTER, pool=True),
    ConvCase("", (2, 320, 14, 14), 70, WORKSPACE),
    ConvCase("", (1, 320, 31, 9), 64, WORKSPACE, pool=True),
    ConvCase("", (1, 512, 7, 7), 64, UNEVEN, relu=False),
)
SINGLES = (  # one element a value
    ConvCase("", (3, 64, 15, 15), 64, TWO, pool=True),
    ConvCase("", (3, 65, 1, 1), 64, TWO, relu=False),
    ConvCase("", (2, 128, 7, 7), 100, THREE),
    ConvCase("", (1, 64, 13, 8), 64, ALL_TAPS),
)
PAIRS = (
    ConvCase("fp32", (2, 320, 15, 17), 64, ONE_TAP),
    ConvCase("fp32", (2, 320, 15, 17), 64, ONE_HALO),
    ConvCase("fp32", (1, 128, 15, 17), 64, ONE_HALO, pool=True),
    ConvCase("fp32", (3, 64, 15, 15), 64, TWO_ONE_TAP, pool=True),
    ConvCase("fp32", (3, 65, 1, 1), 64, TWO_ONE_TAP, relu=False),
)
BYTES = (  # 128 channels a block; the input is S8, behind a ReLU U8, and so is the output
    ConvCase("int8", (3, 100, 15, 13), 65, WHOLE, relu=False),
    ConvCase("int8", (2, 20, 9, 10), 17, WHOLE, pool=True, behind_relu=True),
    ConvCase("int8", (2, 320, 15, 17), 64, CLUSTER, bias=False, behind_relu=True),
    ConvCase("int8", (2, 192, 15, 17), 64, HIGH, behind_relu=True),  # blocks of 64 channels: pixels need less than sums
    ConvCase("int8", (1, 512, 15, 15), 128, WORKSPACE, pool=True, relu=False),
    ConvCase("int8", (2, 256, 7, 7), 100, THREE, behind_relu=True),
    ConvCase("int8", (3, 65, 1, 1), 64, TWO, relu=False),
)
CASES = (
    *(replace(case, precision=precision) for precision in ("fp32", "fp16") for case in HALVES),
    *(replace(case, precision="fp16") for case in SINGLES),
    *(replace(case, precision="bf16") for case in (HALVES[0], HALVES[5], SINGLES[2])),
    *PAIRS,
    *BYTES,
)
SANITIZED = (
    *(ConvCase(precision, (2, 256, 5, 9), 20, CLUSTER, pool=True, behind_relu=True) for precision in PRECISIONS),
    ConvCase("fp32", (1, 256, 5, 9), 20, ONE_HALO, behind_relu=True),
    *(ConvCase(precision, (1, 512, 5, 9), 20, WORKSPACE, behind_relu=True) for precision in ("fp32", "fp16", "int8")),
    ConvCase("fp32", (1, 65, 5, 9), 20, WHOLE),
)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes_and_tiles(hopper: CudaDevice, case: ConvCase) -> None:
    check_conv(hopper, case, "conv_wgmma_small")


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: ConvCase) -> None:
    check_conv(hopper, case, "conv_wgmma_small")


# ---- Bits


@pytest.mark.parametrize("tile", [CLUSTER, WORKSPACE], ids=["cluster", "workspace"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place(hopper: CudaDevice, precision: str, tile: SmallTile) -> None:
    check_positions(hopper, ConvCase(precision, (4, 512, 7, 9), 64, tile, behind_relu=True).trial())


@pytest.mark.parametrize("tile", [CLUSTER, WORKSPACE], ids=["cluster", "workspace"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_replays(hopper: CudaDevice, precision: str, tile: SmallTile) -> None:
    check_replays(hopper, ConvCase(precision, (1, 512, 9, 9), 64, tile, behind_relu=True).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_where_it_belongs(hopper: CudaDevice, precision: str) -> None:
    trial = ConvCase(precision, (3, 512, 8, 8), 64, WORKSPACE, behind_relu=True).trial()
    reached = np.zeros((8, 8), np.bool_)
    reached[2:5, 3:6] = True
    check_nan(hopper, trial, None if precision == "int8" else reached)


# ---- A wait that runs out


@pytest.mark.parametrize("tile", [CLUSTER, WORKSPACE], ids=["cluster", "workspace"])
def test_a_wait_that_runs_out_is_reported_and_does_no_harm(hopper: CudaDevice, tile: SmallTile) -> None:
    """Also to the blocks that share the sum."""
    trial = ConvCase("fp16", (2, 512, 7, 9), 64, tile, behind_relu=True).trial()
    check_fault(hopper, trial, "conv_wgmma_small", operator=2)
