"""conv_first.cu against float64 and integer numpy, and its bits: every element, source, number of channels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.judged_bits import check_batches, check_nan, check_positions, check_replays
from tests.support.kernel_harness import seeded
from tests.support.wgmma_harness import PRECISIONS, ConvCase, check, check_conv, parameters
from vgg16gpu.compiler.op_kernels.conv.conv_first import FirstConvTile
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

SHAPES = (
    ConvCase("", (2, 3, 30, 30), 64),
    ConvCase("", (3, 3, 17, 131), 65, relu=False),  # two strips, two tiles of channels
    ConvCase("", (1, 1, 1, 1), 64, bias=False, relu=False),
    ConvCase("", (5, 4, 7, 16), 20),
    ConvCase("", (1, 2, 9, 13), 64),
)
CASES = (
    *(replace(case, precision=precision) for precision in ("fp32", "fp16", "int8") for case in SHAPES),
    *(
        replace(SHAPES[i], precision=precision, pixels=True)
        for precision in ("fp32", "fp16", "int8")
        for i in (0, 1, 3)
    ),
    *(
        replace(SHAPES[0], precision=precision, tile=FirstConvTile(16, rows))
        for precision in ("fp32", "fp16")
        for rows in (1, 30)
    ),
    replace(SHAPES[1], precision="bf16"),
    replace(SHAPES[0], precision="bf16", pixels=True),
)
SANITIZED = tuple(
    ConvCase(precision, (2, 3, 5, 19), 20, relu=False, pixels=pixels)
    for precision in PRECISIONS
    for pixels in (False, True)
)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes_and_sources(hopper: CudaDevice, case: ConvCase) -> None:
    check_conv(hopper, case, "conv_first")


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: ConvCase) -> None:
    check_conv(hopper, case, "conv_first")


@pytest.mark.parametrize("pixels", [False, True], ids=["float32", "uint8"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place(hopper: CudaDevice, precision: str, pixels: bool) -> None:
    check_positions(hopper, ConvCase(precision, (5, 3, 15, 17), 64, pixels=pixels).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_in_any_batch(hopper: CudaDevice, precision: str) -> None:
    """However many rows a block walks down: a batch of 64 takes more of them."""
    check_batches(hopper, ConvCase(precision, (64, 3, 18, 18), 64).trial(), 1, 5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_replays(hopper: CudaDevice, precision: str) -> None:
    check_replays(hopper, ConvCase(precision, (2, 3, 15, 17), 64).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_its_image(hopper: CudaDevice, precision: str) -> None:
    """In float16 it reaches a column more than it should."""
    check_nan(hopper, ConvCase(precision, (3, 3, 15, 17), 64).trial())


def test_every_byte(hopper: CudaDevice) -> None:
    trial = ConvCase("int8", (2, 3, 16, 16), 64, pixels=True).trial()
    x = seeded("bytes").permuted(np.tile(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), (2, 1, 1, 3)), axis=1)
    check(hopper, replace(trial, x=np.ascontiguousarray(x)))
