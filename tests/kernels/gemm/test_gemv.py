"""kernels/gemm/gemv.cu, fully connected layers for one image, against float64 and integer numpy, and its bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.judged_bits import check_replays
from tests.support.kernel_harness import normal, seeded
from tests.support.wgmma_harness import (
    PRECISIONS,
    FullyCase,
    Trial,
    check,
    check_fully,
    convolution,
    fully,
    parameters,
    resident,
    step_of,
)
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.op_kernels.gemm.fc_wgmma_tiles import GemvTile
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

SHAPES = (
    FullyCase("", (1, 100), (130, 70, 20)),
    FullyCase("", (1, 17), (17, 33), bias=False),
    FullyCase("", (1, 5000), (33, 1000), relu=False),
    FullyCase("", (1, 20, 7, 7), (2048, 20)),
)
CASES = tuple(replace(case, precision=precision) for precision in PRECISIONS for case in SHAPES)
TILES = (
    GemvTile(2, 2, 8),
    GemvTile(4, 1, 8),
    GemvTile(4, 1, 4),
    GemvTile(1, 4, 1),
    GemvTile(2, 2, 1),
    GemvTile(1, 4, 8),
)
TILED = tuple(
    FullyCase(precision, (1, 3002), (131, 37), tile, relu=False) for precision in PRECISIONS for tile in TILES
)
# So many units that groups of warps take one after the other, those that they claim, too, the last one in part; of an
# input of one round, or of several, the last one in part.
WALKED = tuple(
    FullyCase(precision, (1, 3002), (outputs, 37), tile)
    for precision in PRECISIONS
    for outputs, tile in ((2301, GemvTile(1, 4, 8)), (4301, GemvTile(2, 2, 8)), (4303, GemvTile(1, 1, 4)))
)
SANITIZED = tuple(
    FullyCase(precision, (1, features), (outputs, 20), tile, relu=False)
    for precision in PRECISIONS
    for features, outputs, tile in ((70, 35, None), (2100, 4301, GemvTile(1, 1, 4)))
)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemv")


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemv")


@pytest.mark.parametrize("case", parameters(TILED))
def test_tiles(hopper: CudaDevice, case: FullyCase) -> None:
    check_fully(hopper, case, "gemv")


@pytest.mark.parametrize("case", parameters(WALKED))
def test_groups_walk(hopper: CudaDevice, case: FullyCase) -> None:
    kernels = case.trial().plan(hopper.facts).kernels
    assert any(("GROUPS", 4) in kernel.defines for kernel in kernels)
    check_fully(hopper, case, "gemv")


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
@pytest.mark.parametrize(("outputs", "tile"), [(131, None), (3003, GemvTile(1, 4, 8))])
def test_a_thousand_replays(hopper: CudaDevice, precision: str, outputs: int, tile: GemvTile | None) -> None:
    """Who claims which rows is another group in each."""
    check_replays(hopper, FullyCase(precision, (1, 3002), (outputs, 37), tile).trial())


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("relu", [False, True])
def test_nan_comes_out(hopper: CudaDevice, precision: str, relu: bool) -> None:
    """ReLU keeps it."""
    trial = FullyCase(precision, (1, 100), (20, 30), relu=relu).trial()
    trial.x[0, 5] = np.nan
    with resident(hopper, replace(trial, samples=np.ones_like(trial.x))) as plan:
        (y,), nonfinite, _ = plan.run(1, trial.x)
    assert np.isnan(y).all()
    assert nonfinite.tolist() == [True]
