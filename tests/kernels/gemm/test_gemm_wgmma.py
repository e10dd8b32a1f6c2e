"""gemm_wgmma.cu, fully connected layers from two images on, against float64 and integer numpy, and its bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.judged_bits import check_fault, check_nan, check_positions, check_replays
from tests.support.wgmma_harness import PRECISIONS, FullyCase, check_fully, parameters
from vgg16gpu.compiler.op_kernels.gemm.fc_wgmma_tiles import GemmTile
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

SHAPES = (
    FullyCase("", (2, 100), (130, 70, 20)),
    FullyCase("", (16, 17), (17, 33), bias=False),
    FullyCase("", (17, 5000), (33, 129), relu=False),
    FullyCase("", (33, 20, 7, 7), (300, 20)),
    FullyCase("", (65, 700), (130, 20)),
    FullyCase("", (130, 700), (130, 20), relu=False),  # two tiles of images
)
CASES = (
    *(replace(case, precision=precision) for precision in ("fp32", "fp16", "int8") for case in SHAPES),
    *(replace(SHAPES[i], precision="bf16") for i in (0, 3, 5)),
    *(FullyCase(precision, (3, 25088), (140, 20)) for precision in ("fp32", "int8")),  # sums of fp32 stay short
)
TILED = tuple(
    FullyCase(
        precision, (20, 2600), (1100, 20), GemmTile(images, 128 if precision == "int8" else 64, splits), relu=False
    )
    for precision in PRECISIONS
    for images, splits in ((16, 1), (16, 3), (32, 8))
)
SANITIZED = tuple(FullyCase(precision, (3, 300), (135, 20), relu=False) for precision in PRECISIONS)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemm_wgmma")


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemm_wgmma")


@pytest.mark.parametrize("case", parameters(TILED))
def test_tiles_and_splits(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemm_wgmma")


# ---- Bits


@pytest.mark.parametrize("batch", [5, 20])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place(hopper: CudaDevice, precision: str, batch: int) -> None:
    check_positions(hopper, FullyCase(precision, (batch, 1500), (200, 19)).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_replays(hopper: CudaDevice, precision: str) -> None:
    check_replays(hopper, FullyCase(precision, (5, 3002), (131, 37)).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_its_image(hopper: CudaDevice, precision: str) -> None:
    check_nan(hopper, FullyCase(precision, (20, 700), (131, 37)).trial())


# ---- A wait that runs out


def test_a_wait_that_runs_out_is_reported_and_does_no_harm(hopper: CudaDevice) -> None:
    trial = FullyCase("fp32", (5, 3002), (131, 37)).trial()
    check_fault(hopper, trial, "gemm_wgmma", operator=1)
