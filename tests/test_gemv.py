"""kernels/gemv.cu, fully connected layers for one image, against float64 and integer numpy, and its bits."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from tests.kernel_harness import normal, seeded
from tests.wgmma_harness import (
    PRECISIONS,
    FullyCase,
    Trial,
    check,
    check_fully,
    check_replays,
    convolution,
    fully,
    parameters,
    resident,
    step_of,
)
from vgg16gpu.devices.cuda import CudaDevice
from vgg16gpu.graph import Graph, GraphInput
from vgg16gpu.ops import fc_wgmma

pytestmark = pytest.mark.gpu

SHAPES = (
    FullyCase("", (1, 100), (130, 70, 3)),
    FullyCase("", (1, 1), (1, 5), bias=False),
    FullyCase("", (1, 5000), (33, 1000), relu=False),
    FullyCase("", (1, 5, 7, 7), (2048, 10)),
)
CASES = tuple(replace(case, precision=precision) for precision in PRECISIONS for case in SHAPES)
TILES = ((2, 2, 8), (4, 1, 8), (4, 1, 4), (1, 4, 1))  # ROWS, UNROLL_K, SPLIT_K that some size is given
SANITIZED = tuple(FullyCase(precision, (1, 70), (35, 3), relu=False) for precision in PRECISIONS)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemv")


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemv")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(hopper: CudaDevice, tile: tuple[int, int, int], precision: str) -> None:
    with mock.patch.object(fc_wgmma, "gemv_tile", return_value=tile):
        check_fully(hopper, FullyCase(precision, (1, 3002), (131, 37), relu=False), "gemv")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_behind_a_convolution(hopper: CudaDevice, precision: str) -> None:
    """fp32: pairs, whose scale the layer divides by."""
    random = seeded("behind a convolution")
    conv = convolution(random, "x", "a", 3, 70, relu=True)
    gemm = fully(random, "a", "y", 70 * 9 * 7, 20, flattens=True)
    trial = Trial(Graph(GraphInput("x", (None, 3, 9, 7)), (conv, gemm), ("y",)), normal(random, 1, 3, 9, 7), precision)
    result = check(hopper, trial)
    assert step_of(result.program, "y").kernel.name == "gemv"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_replays(hopper: CudaDevice, precision: str) -> None:
    check_replays(hopper, FullyCase(precision, (1, 3002), (131, 37)).trial())


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("relu", [False, True])
def test_nan_comes_out(hopper: CudaDevice, precision: str, relu: bool) -> None:
    """ReLU keeps it."""
    trial = FullyCase(precision, (1, 100), (20, 3), relu=relu).trial()
    trial.x[0, 5] = np.nan
    with resident(hopper, replace(trial, samples=np.ones_like(trial.x))) as plan:
        (y,), nonfinite = plan.run(1, trial.x)
    assert np.isnan(y).all()
    assert nonfinite.tolist() == [True]
