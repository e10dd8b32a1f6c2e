"""kernels/conv/conv_wgmma.cu against float64 and integer numpy, and its bits: every element, kind of tile and edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.judged_bits import check_fault, check_nan, check_positions, check_replays
from tests.support.kernel_harness import seeded
from tests.support.wgmma_harness import (
    PRECISIONS,
    ConvCase,
    Trial,
    check,
    check_conv,
    check_layers,
    convolution,
    parameters,
    raw,
    resident,
)
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import LargeTile
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

HALVES = LargeTile(14)  # 8 pixels wide, two halves of 128 output channels
TALL = LargeTile(28)  # not for pairs, whose sums would not fit
PAIR = LargeTile(12, pair_tiles=True)  # two tiles of pixels, 64 output channels
FLAT = LargeTile(7, flat_pitch=15)  # whole rows of a map 14 wide
FLAT_PAIR = LargeTile(7, flat_pitch=15, pair_tiles=True)
FLAT_POOL = LargeTile(3, flat_pitch=10, pair_tiles=True)

SHAPES = (
    ConvCase("", (2, 64, 15, 13), 128, HALVES),
    ConvCase("", (3, 65, 17, 9), 65, HALVES, relu=False, bias=False),
    ConvCase("", (2, 64, 15, 15), 70, HALVES, pool=True),
    ConvCase("", (1, 100, 30, 30), 320, PAIR),
    ConvCase("", (2, 20, 31, 30), 64, PAIR, pool=True),
    ConvCase("", (3, 320, 1, 1), 20, PAIR, relu=False),
    ConvCase("", (2, 320, 14, 14), 128, FLAT),
    ConvCase("", (2, 64, 14, 14), 64, FLAT_PAIR, relu=False),
)
BYTES = (  # 64 channels are blocks of 64 bytes, 128 of 128 bytes; S8 without a ReLU, else U8
    ConvCase("int8", (2, 64, 15, 13), 128, HALVES),
    ConvCase("int8", (3, 65, 17, 9), 65, HALVES, relu=False, bias=False),
    ConvCase("int8", (2, 100, 15, 15), 70, HALVES, pool=True, behind_relu=True),
    ConvCase("int8", (1, 100, 30, 30), 320, PAIR, behind_relu=True),
    ConvCase("int8", (2, 20, 31, 30), 64, PAIR, pool=True),
    ConvCase("int8", (3, 320, 1, 1), 20, PAIR, relu=False, behind_relu=True),
    ConvCase("int8", (2, 128, 14, 14), 128, FLAT, relu=False),
    ConvCase("int8", (2, 64, 14, 14), 64, FLAT_PAIR, behind_relu=True),
)
FLAT_POOLS = (  # not for pairs; both tiles of pixels are pooled together
    ConvCase("", (2, 64, 14, 14), 64, FLAT_PAIR, pool=True),
    ConvCase("", (3, 65, 15, 15), 70, LargeTile(7, flat_pitch=16, pair_tiles=True), pool=True, relu=False),
    ConvCase("", (2, 130, 13, 14), 128, FLAT_PAIR, pool=True),
    ConvCase("", (2, 64, 28, 28), 128, LargeTile(7, flat_pitch=29, pair_tiles=True), pool=True),
    ConvCase("", (2, 64, 29, 31), 64, LargeTile(4, flat_pitch=32, pair_tiles=True), pool=True, bias=False),
    ConvCase("", (40, 64, 20, 9), 64, LargeTile(3, flat_pitch=10, pair_tiles=True), pool=True),  # several tiles a block
)
CASES = (
    *(replace(case, precision=precision) for precision in ("fp16", "bf16", "int8") for case in FLAT_POOLS),
    *(replace(case, precision=precision) for precision in ("fp32", "fp16") for case in SHAPES),
    *(replace(SHAPES[i], precision="bf16") for i in (2, 3, 7)),
    *BYTES,
    *(replace(case, tile=TALL) for case in (replace(SHAPES[0], precision="fp16"), BYTES[2])),
)
SANITIZED = (
    *(ConvCase(precision, (2, 65, 5, 9), 70, HALVES, pool=True) for precision in PRECISIONS),
    ConvCase("fp32", (1, 65, 5, 9), 20, PAIR),
    ConvCase("int8", (1, 130, 14, 14), 128, FLAT, relu=False),
    *(ConvCase(precision, (2, 64, 9, 9), 64, FLAT_POOL, pool=True) for precision in ("fp16", "int8")),
)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes_and_tiles(hopper: CudaDevice, case: ConvCase) -> None:
    check_conv(hopper, case, "conv_wgmma")


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: ConvCase) -> None:
    check_conv(hopper, case, "conv_wgmma")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(24, 64, 28, 28), (1, 512, 14, 14)], ids=str)
def test_the_planner_finds_a_tile_of_its_own(
    hopper: CudaDevice, shape: tuple[int, int, int, int], precision: str
) -> None:
    """Of this kernel or of conv_wgmma_small."""
    check(hopper, ConvCase(precision, shape, 128).trial())


# ---- Bits


@pytest.mark.parametrize("tile", [HALVES, PAIR], ids=["halves", "pair"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place(hopper: CudaDevice, precision: str, tile: LargeTile) -> None:
    check_positions(hopper, ConvCase(precision, (5, 64, 15, 15), 128, tile, pool=True).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_replays(hopper: CudaDevice, precision: str) -> None:
    check_replays(hopper, ConvCase(precision, (2, 64, 15, 15), 128, HALVES, pool=True).trial())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_pooling_later_gives_the_same_bits(hopper: CudaDevice, precision: str, relu: bool) -> None:
    """And the largest magnitude of what is stored alone."""
    trial = ConvCase(precision, (3, 64, 17, 9), 64, FLAT_POOL, relu=relu, pool=True).trial()
    flat, columns = trial.run(hopper), replace(trial, tile=PAIR).run(hopper)
    np.testing.assert_array_equal(raw(flat, "y"), raw(columns, "y"))
    if precision == "fp16":
        control = flat.program.control
        recorded = flat.at(control.maxima(control.watched.index("y")), (3,))
        stored = np.abs(raw(flat, "y")[0].view(np.float16)).max(axis=(1, 2, 3))
        np.testing.assert_array_equal(recorded, stored.astype(np.float32))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tile", [PAIR, FLAT], ids=["columns", "flat"])
def test_nan_stays_where_it_belongs(hopper: CudaDevice, precision: str, tile: LargeTile) -> None:
    trial = ConvCase(precision, (3, 64, 14, 14), 128, tile).trial()
    reached = np.zeros((14, 14), np.bool_)
    reached[2:5, 3:6] = True
    check_nan(hopper, trial, None if precision == "int8" else reached)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_nan_stays_where_it_belongs_in_a_flat_pool(hopper: CudaDevice, precision: str) -> None:
    trial = ConvCase(precision, (3, 64, 14, 14), 128, FLAT_PAIR, pool=True).trial()
    reached = np.zeros((7, 7), np.bool_)
    reached[1:3, 1:3] = True
    check_nan(hopper, trial, reached)


@pytest.mark.parametrize("precision", PRECISIONS[:3])
def test_several_batch_sizes_in_one_engine(hopper: CudaDevice, precision: str) -> None:
    """They share the weights; each cuts the work as suits it."""
    random = seeded("batch sizes")
    ops = convolution(random, "x", "a", 70, 100, relu=True, pool=True), convolution(random, "a", "y", 100, 64)
    x = random.standard_normal((20, 70, 20, 22)).astype(np.float32)
    trial = Trial(Graph(GraphInput("x", (None, 70, 20, 22)), ops, ("y",)), x, precision)
    with resident(hopper, trial, 1, 3, 20, keep_values=True) as plan:
        for program in plan.plan.programs:
            images = replace(trial, x=x[: program.batch])
            plan.run(program.batch, images.x)
            values = {value.name: plan.read(value) for value in program.values}
            check_layers(images, program, values.__getitem__)
        assert plan.second_passes == 0


# ---- A wait that runs out


def test_a_wait_that_runs_out_is_reported_and_does_no_harm(hopper: CudaDevice) -> None:
    trial = ConvCase("fp32", (2, 64, 15, 15), 128, HALVES, pool=True).trial()
    check_fault(hopper, trial, "conv_wgmma", operator=1)
