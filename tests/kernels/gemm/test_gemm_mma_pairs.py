"""kernels/gemm/gemm_mma_pairs.cu the production way: float32 from float16 against float64, and its bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.judged_bits import check_batches, check_nan, check_positions
from tests.support.kernel_harness import Result, assert_same_bits, normal, seeded
from tests.support.mma_harness import FullyMmaCase as Case
from tests.support.mma_harness import MmaTrial, build_module
from tests.support.wgmma_harness import check, convolution, fully, parameters, resident, step_of, value_of
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Flatten
from vgg16gpu.compiler.op_kernels.gemm.gemm_mma_pairs import TILES
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DeviceFacts, DType


@pytest.fixture(scope="module")
def device(device: Device, request: pytest.FixtureRequest) -> Device:
    return build_module(device, request.session, __name__)


def check_case(device: Device, case: Case) -> Result:
    """Judge a case, once all of its layers have been found to run on the kernel, and to be stored as they should."""
    result = check(device, case.trial())
    last = len(case.outputs)
    for i in range(1, last + 1):
        assert step_of(result.program, f"v{i}").kernel.name == "gemm_mma_pairs"
        assert value_of(result.program, f"v{i}").element is (DType.F32 if i == last else DType.F16_PAIR)
    return result


SHAPES = (
    Case("fp32", (1, 100), (130, 70, 20)),
    Case("fp32", (3, 17), (17, 33), bias=False),
    Case("fp32", (2, 5000), (33, 1000), relu=False),  # the reduction is cut into parts
    Case("fp32", (5, 20, 7, 7), (200, 9)),
    Case("fp32", (30, 9), (9, 16, 10)),
)
BATCHES = tuple(Case("fp32", (n, 300), (135, 20)) for n in (1, 9, 33, 129))
SANITIZED = (Case("fp32", (3, 1100), (70, 20), relu=False),)


@pytest.mark.first_case(reason="a sweep over edges; test_small_shapes has two layers and parts")
@pytest.mark.parametrize("case", parameters((*SHAPES, *BATCHES)))
def test_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.parametrize("flattens", [False, True])
def test_behind_a_convolution(device: Device, flattens: bool) -> None:
    """A map with padded channels is read as it lies; behind a Flatten its features lie as ONNX says."""
    random = seeded("behind a convolution")
    conv = convolution(random, "x", "a", 20, 70, relu=True, pool=True)
    name = "a" if flattens else "f"
    gemm = fully(random, name, "y", 70 * 12, 20, flattens=flattens)
    ops = (conv, gemm) if flattens else (conv, Flatten("a", "f", ("f",)), gemm)
    graph = Graph(GraphInput("x", (None, 20, 9, 7)), ops, ("y",))
    result = check(device, MmaTrial(graph, normal(random, 2, 20, 9, 7), "fp32"))
    assert step_of(result.program, "y").kernel.name == "gemm_mma_pairs"


# ---- Bits


@pytest.mark.sanitize
def test_every_tile_gives_the_same_bits(device: Device) -> None:
    first, *others = (check_case(device, Case("fp32", (19, 1500), (130, 20), tile=tile)) for tile in TILES)
    for other in others:
        for name in ("v1", "v2"):
            assert_same_bits(other.value(name), first.value(name), name)


def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device) -> None:
    check_positions(device, Case("fp32", (5, 1500), (70, 20), relu=False).trial())
    check_batches(device, Case("fp32", (40, 1500), (70, 20), relu=False).trial(), 1, 9)


# ---- Images out of range


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_an_image_out_of_range_is_computed_on_ffma(device: Device, factor: float) -> None:
    trial = Case("fp32", (3, 300), (70, 20)).trial()
    x = trial.x.copy()
    x[1] *= np.float32(factor)
    with resident(device, trial) as plan:
        clean = plan.run(3, trial.x).outputs[0]
        assert plan.second_passes == 0
        (y,), nonfinite, out_of_range = plan.run(3, x)
        assert plan.second_passes == 1
    assert not nonfinite.any()
    assert not out_of_range.any()
    assert_same_bits(y[[0, 2]], clean[[0, 2]])
    with resident(device, replace(trial, kernels="ffma", gemm_tile=None)) as plan:
        assert_same_bits(y[1], plan.run(3, x).outputs[0][1])


def test_nan_stays_in_its_image(device: Device) -> None:
    check_nan(device, Case("fp32", (3, 100), (20, 30), relu=False).trial())


# ---- Launches, without a device

A100 = DeviceFacts("cuda", "an A100", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)


@pytest.mark.parametrize("batch", [1, 9, 128])
def test_the_parts_of_a_sum_do_not_depend_on_the_batch(batch: int) -> None:
    trial = Case("fp32", (1, 4096), (1000,)).trial()
    step = step_of(make_plan(trial.graph, A100, [(batch, 4096)], trial.options).programs[0], "v1")
    assert (step.kernel.name, step.grid.y) == ("gemm_mma_pairs", 8)


def test_few_features_and_few_outputs_stay_on_ffma() -> None:
    """They are padded to 16 bytes alone."""
    for shape, outputs in (((1, 8), 64), ((1, 64), 8)):
        trial = Case("fp32", shape, (outputs, 64)).trial()
        families = make_plan(trial.graph, A100, [shape], replace(trial.options, kernels="auto")).families
        assert families == ({"v1": "ffma", "v2": "mma"} if outputs == 64 else {"v1": "ffma", "v2": "ffma"})
