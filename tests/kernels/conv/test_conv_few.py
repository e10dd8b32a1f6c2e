"""kernels/conv/conv_few.cu the production way: against float64, its bits, and where the planner takes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest

from tests.kernels.conv.test_conv_igemm import Case as Shapes
from tests.support.judged_bits import check_batches, check_nan, check_positions
from tests.support.kernel_harness import Result, assert_same_bits
from tests.support.mma_harness import MmaTrial
from tests.support.wgmma_harness import check, parameters, step_of, value_of
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Identity
from vgg16gpu.compiler.op_kernels.conv import conv_few
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DeviceFacts, DType

PRECISIONS = ("fp16", "bf16")
TILES = (conv_few.LARGE, conv_few.SMALL)


@dataclass(frozen=True)
class Case:
    """A convolution in a precision, whose result is the graph's."""

    precision: str
    shapes: Shapes
    tile: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.precision}-{self.shapes}" + (f"-{self.tile[0]}x{self.tile[1]}" if self.tile else "")

    def trial(self) -> MmaTrial:
        """The graph and its input."""
        conv, x = self.shapes.make()
        return MmaTrial(Graph(GraphInput("x", (None, *x.shape[1:])), (conv,), ("y",)), x, self.precision)


def check_case(device: Device, case: Case) -> Result:
    """Judge a case, once its convolution has been found to run on conv_few."""
    tiles = mock.patch.object(conv_few, "choose_tile", return_value=case.tile) if case.tile else mock.MagicMock()
    with tiles:
        result = check(device, case.trial())
    assert step_of(result.program, "y").kernel.name == "conv_few"
    assert value_of(result.program, "y").element is DType.F32
    return result


# Whole tiles and parts of them, maps smaller than a window, several images, every number of outputs, 64 channels and
# more, channels that end within the 64 that are stored.
SHAPES = (
    Shapes((1, 64, 16, 16), 3, relu=False, bias=False),
    Shapes((2, 64, 33, 40), 3, relu=False, bias=False),
    Shapes((3, 64, 17, 15), 3),
    Shapes((1, 64, 1, 1), 3),
    Shapes((2, 64, 1, 35), 4),
    Shapes((2, 64, 19, 2), 1),
    Shapes((1, 9, 20, 18), 2, relu=False),
    Shapes((1, 100, 9, 21), 4),
    Shapes((1, 130, 7, 7), 3),
    Shapes((5, 20, 3, 4), 1, relu=False),
)


@pytest.mark.slow(reason="a sweep over edges; test_small_shapes and the tests of bits have both tiles and precisions")
@pytest.mark.parametrize("case", parameters(Case(p, shapes) for shapes in SHAPES for p in PRECISIONS))
def test_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "case", parameters([Case("fp16", Shapes((2, 70, 5, 18), 3)), Case("bf16", Shapes((1, 9, 9, 3), 4))])
)
def test_small_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.first_case(reason="test_small_shapes has the other precision")
@pytest.mark.parametrize("case", parameters(Case(p, Shapes((2, 70, 18, 20), 3)) for p in PRECISIONS))
def test_every_tile_gives_the_same_bits(device: Device, case: Case) -> None:
    first, *others = [check_case(device, replace(case, tile=tile)).value("y") for tile in TILES]
    for other in others:
        assert_same_bits(other, first)


def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device) -> None:
    trial = Case("fp16", Shapes((4, 70, 9, 17), 3)).trial()
    check_positions(device, trial)
    check_batches(device, trial, 1, 3)


def test_nan_reaches_the_windows_that_hold_it_and_no_other(device: Device) -> None:
    reached = np.zeros((8, 18), np.bool_)
    reached[2:5, 3:6] = True
    check_nan(device, Case("fp16", Shapes((3, 70, 8, 18), 3)).trial(), reached)


def test_padding_channels_stay_zero_beside_an_infinity(device: Device) -> None:
    trial = Case("fp16", Shapes((1, 70, 8, 8), 3)).trial()
    conv = trial.graph.ops[0]
    graph = replace(trial.graph, ops=(conv, Identity("y", "z", ("z",))), outputs=("z",))
    x = trial.x.copy()
    x[0, 2, 3, 4] = np.inf
    result = replace(trial, graph=graph, x=x).run(device)
    result.value("y")  # looks at the padding
    assert result.nonfinite.tolist() == [True]


# ---- Where it is taken, without a device

H200 = DeviceFacts("cuda", "an H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)


def planned(shapes: Shapes, precision: str = "bf16", facts: DeviceFacts = H200, batch: int = 1) -> str:
    """The kernel that computes it."""
    conv, x = shapes.make()
    graph = Graph(GraphInput("x", (None, *x.shape[1:])), (conv,), ("y",))
    plan = make_plan(graph, facts, [(batch, *x.shape[1:])], PlanOptions(precision))
    return next(step.kernel.label for step in plan.programs[0].steps if step.flop)


def test_few_outputs_of_many_channels_are_its_own() -> None:
    image = Shapes((1, 64, 32, 32), 3)
    for precision in PRECISIONS:
        assert planned(image, precision).startswith("conv_few")
    assert planned(image, facts=replace(H200, compute_capability=(8, 0))).startswith("conv_few")
    others = (
        replace(image, filters=5),
        replace(image, shape=(1, 8, 32, 32)),
        replace(image, pool=True),
        replace(image, kernel=(5, 5), pads=(2, 2, 2, 2)),
        replace(image, strides=(2, 2)),
        replace(image, pads=(0, 0, 0, 0)),
    )
    for other in others:
        assert not planned(other).startswith("conv_few")
    assert planned(image, "fp32").startswith("conv_igemm")


def test_tiles_are_small_where_they_would_leave_multiprocessors_idle() -> None:
    image = Shapes((1, 64, 256, 256), 3)
    assert "16,16" in planned(image, batch=16)
    assert "8,16" in planned(image)
