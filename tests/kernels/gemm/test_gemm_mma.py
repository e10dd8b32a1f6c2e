"""kernels/gemm/gemm_mma.cu the production way: every precision against float64 or exact integers, and its bits.

tests/kernels/test_mma.py has what it is made of, and the kernel alone, on the CPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.judged_bits import check_batches, check_positions
from tests.support.kernel_harness import Result, assert_same_bits, normal, seeded
from tests.support.kernel_signatures import arguments
from tests.support.mma_harness import PRECISIONS, STORED, MmaTrial, build_module
from tests.support.mma_harness import FullyMmaCase as Case
from tests.support.wgmma_harness import check, convolution, fully, parameters, resident, step_of, value_of
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Flatten
from vgg16gpu.compiler.op_kernels.mma import GEMM_TILES, LARGE_48K, MAX_PARTS
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DeviceFacts, DType


@pytest.fixture(scope="module")
def device(device: Device, request: pytest.FixtureRequest) -> Device:
    return build_module(device, request.session, __name__)


def check_case(device: Device, case: Case) -> Result:
    """Judge a case, once all of its layers have been found to run on gemm_mma, and to be stored as they should."""
    result = check(device, case.trial())
    last = len(case.outputs)
    for i in range(1, last + 1):
        assert step_of(result.program, f"v{i}").kernel.name == "gemm_mma"
        signed = DType.S8 if case.precision == "int8" and not case.relu else STORED[case.precision]
        assert value_of(result.program, f"v{i}").element is (DType.F32 if i == last else signed)
    return result


SHAPES = (
    Case("", (1, 100), (130, 70, 20)),
    Case("", (3, 17), (17, 33), bias=False),
    Case("", (2, 5000), (33, 1000), relu=False),  # the reduction is cut into parts
    Case("", (5, 20, 7, 7), (200, 3)),
    Case("", (4, 3, 5, 9), (65, 1), relu=False),  # few channels, padded to 16 bytes
    Case("", (2, 1), (1, 1), relu=False),
    Case("", (30, 8), (8, 16, 5)),
)
CASES = tuple(replace(case, precision=precision) for case in SHAPES for precision in PRECISIONS)
BATCHES = tuple(Case(p, (n, 300), (135, 20)) for p in PRECISIONS for n in (1, 9, 33, 129))
SANITIZED = tuple(Case(p, (3, 1100), (70, 3), relu=False) for p in PRECISIONS)


@pytest.mark.first_case(reason="a sweep over edges; test_small_shapes has each precision")
@pytest.mark.parametrize("case", parameters((*CASES, *BATCHES)))
def test_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.parametrize("flattens", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_behind_a_convolution(device: Device, precision: str, flattens: bool) -> None:
    """A map with padded channels is read as it lies; behind a Flatten its features lie as ONNX says."""
    random = seeded("behind a convolution")
    conv = convolution(random, "x", "a", 3, 70, relu=True, pool=True)
    length = 70 * 12
    name = "a" if flattens else "f"
    gemm = fully(random, name, "y", length, 20, flattens=flattens)
    ops = (conv, gemm) if flattens else (conv, Flatten("a", "f", ("f",)), gemm)
    graph = Graph(GraphInput("x", (None, 3, 9, 7)), ops, ("y",))
    result = check(device, MmaTrial(graph, normal(random, 2, 3, 9, 7), precision))
    assert step_of(result.program, "y").kernel.name == "gemm_mma"


# ---- Bits

TILES = (*GEMM_TILES, LARGE_48K)


@pytest.mark.slow(reason="tiles of GPUs alone")
@pytest.mark.parametrize(
    "case", parameters(Case(p, (19, 1500), (130, 20), tile=tile) for tile in TILES for p in ("fp16", "int8"))
)
def test_every_tile_gives_the_same_bits(device: Device, case: Case) -> None:
    assert case.tile is not None
    result, expected = check_case(device, case), check_case(device, replace(case, tile=None))
    assert step_of(result.program, "v1").shared == case.tile.shared
    for name in ("v1", "v2"):
        assert_same_bits(result.value(name), expected.value(name), name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device, precision: str) -> None:
    check_positions(device, Case(precision, (5, 1500), (70, 20), relu=False).trial())
    check_batches(device, Case(precision, (40, 1500), (70, 20), relu=False).trial(), 1, 9)


# ---- What is not finite


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_its_image(device: Device, precision: str) -> None:
    trial = Case(precision, (3, 100), (20, 30), relu=False).trial()
    x = trial.x.copy()
    x[1, 3] = np.nan
    with resident(device, trial) as plan:
        clean = plan.run(3, trial.x).outputs[0]
        (y,), nonfinite, _ = plan.run(3, x)
    assert nonfinite.tolist() == [False, True, False]
    assert_same_bits(y[[0, 2]], clean[[0, 2]])
    assert np.isnan(y[1]).all() == (precision != "int8")  # no integer is NaN


# ---- Launches, without a device

A100 = DeviceFacts("cuda", "an A100", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)


@pytest.mark.parametrize("batch", [1, 9, 128, 1000])
@pytest.mark.parametrize(("features", "outputs"), [(25088, 4096), (4096, 1000), (64, 1), (1000, 130)])
def test_parts_and_tiles_cover_the_product(features: int, outputs: int, batch: int) -> None:
    gemm = replace(
        fully(seeded(""), "x", "y", 1, 1), weight=np.broadcast_to(np.float32(0), (outputs, features)), bias=None
    )
    graph = Graph(GraphInput("x", (None, features)), (gemm,), ("y",))
    program = make_plan(graph, A100, [(batch, features)], PlanOptions("fp16", kernels="mma")).programs[0]
    step = step_of(program, "y")
    finish = program.steps[program.steps.index(step) + 1]
    given, last, macros = arguments(step), arguments(finish), dict(step.kernel.defines)
    tiles = -(-batch // macros["TILE_N"]) * -(-outputs // macros["TILE_OUT"])
    parts = last["parts"]
    assert step.grid == (tiles, parts, 1)
    assert 1 <= parts <= MAX_PARTS
    length = given["KP"] * 2
    assert (parts - 1) * given["part_nbytes"] < length <= parts * given["part_nbytes"]
    assert given["partial"] == last["partial"]
    assert given["partial"].offset + 4 * parts * batch * -(-outputs // 64) * 64 <= program.activations_nbytes
    assert finish.grid.x * finish.block.x * 4 >= batch * last["pitch"]
    assert step.shared <= A100.shared_nbytes
