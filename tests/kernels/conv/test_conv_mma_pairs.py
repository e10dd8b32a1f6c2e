"""conv_mma.cu and conv_mma_3x3.cu in float32, from pairs of float16: against float64 on any device, and their bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.kernels.conv.test_conv_igemm import Case as Shapes
from tests.support.judged_bits import check_batches, check_nan, check_positions
from tests.support.kernel_harness import Result, assert_same_bits, seeded
from tests.support.kernel_signatures import arguments
from tests.support.mma_harness import MmaTrial, build_module, tile_id
from tests.support.wgmma_harness import check, fully, parameters, resident, step_of, value_of
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Conv, Op
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import PAIR_TILES, HaloTile
from vgg16gpu.compiler.op_kernels.mma import PAIR_CONV_TILES, MmaTile
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import DeviceFacts, DType

READER = 70  # outputs of the fully connected layer behind the convolution: wide enough for pairs


@dataclass(frozen=True)
class Case:
    """A convolution of pairs; a fully connected layer reads it, or (`last`) no op does: then it is float32."""

    shapes: Shapes
    last: bool = False
    tile: MmaTile | HaloTile | None = None

    def __str__(self) -> str:
        return f"{self.shapes}{'-last' * self.last}{tile_id(self.tile)}"

    def trial(self) -> MmaTrial:
        """The graph and its input. The tile changes nothing of them."""
        conv, x = self.shapes.make()
        ops: tuple[Op, ...] = (conv,)
        graph = Graph(GraphInput("x", (None, *x.shape[1:])), ops, ("y",))
        if not self.last:
            _, channels, height, width = infer_shapes(graph, x.shape)["y"]
            gemm = fully(seeded(str(self.shapes)), "y", "z", channels * height * width, READER, flattens=True)
            graph = Graph(graph.input, (conv, gemm), ("z",))
        return MmaTrial(graph, x, "fp32", conv_tile=self.tile, first_on=())


@pytest.fixture(scope="module")
def device(device: Device, request: pytest.FixtureRequest) -> Device:
    return build_module(device, request.session, __name__)


def check_case(device: Device, case: Case) -> Result:
    """Judge a case, once its convolution has been found to multiply pairs, and to be stored as it should."""
    result = check(device, case.trial())
    step = step_of(result.program, "y")
    assert ("ELEMENT", DType.F16_PAIR.number) in step.kernel.defines
    halos = case.shapes.kernel == (3, 3) and case.shapes.strides == (1, 1) and case.shapes.shape[3] >= 8
    assert step.kernel.name == ("conv_mma_3x3" if halos else "conv_mma")
    assert value_of(result.program, "y").element is (DType.F32 if case.last else DType.F16_PAIR)
    return result


HALOS = (
    Shapes((3, 20, 9, 9), 70),  # columns of three images in a tile, channels that end within a group
    Shapes((3, 70, 17, 8), 70, pool=True),  # a last row that no window has
    Shapes((1, 64, 8, 30), 64, relu=False),
    Shapes((2, 33, 30, 11), 65, pool=True),  # a last column that no window has
    Shapes((1, 130, 7, 8), 130),
)
OTHERS = (
    Shapes((1, 100, 7, 7), 70),
    Shapes((2, 100, 7, 7), 70, pool=True),
    Shapes((2, 64, 9, 5), 130, (1, 1), pads=(0, 0, 0, 0)),
    Shapes((1, 70, 9, 8), 33, (5, 5), (2, 1), (2, 2, 2, 2), relu=False),
    Shapes((40, 17, 2, 2), 64, pool=True),
    Shapes((9, 17, 1, 1), 65, (1, 1), pads=(0, 0, 0, 0)),
    Shapes((1, 9, 1, 1), 9, relu=False),
)
SANITIZED = (Shapes((2, 20, 5, 9), 70), Shapes((1, 9, 6, 8), 20, pool=True), Shapes((2, 20, 5, 5), 9, pool=True))


@pytest.mark.first_case(reason="test_small_shapes has both kernels and a pool")
@pytest.mark.parametrize("case", parameters(map(Case, (*HALOS, *OTHERS))))
def test_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(map(Case, SANITIZED)))
def test_small_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.parametrize("shapes", [HALOS[1], OTHERS[1]], ids=str)
def test_what_nobody_reads_is_float32(device: Device, shapes: Shapes) -> None:
    check_case(device, Case(replace(shapes, relu=False), last=True))


def test_weights_are_packed_for_all_stored_channels(device: Device) -> None:
    """Hold a layer of 20 channels against one of 64 whose last 44 are zeros: the kernel sees stored channels alone."""
    result = check_case(device, Case(HALOS[0]))
    assert arguments(step_of(result.program, "y"))["CP"] == 64


def test_a_clip_in_place_of_a_relu(device: Device) -> None:
    trial = Case(HALOS[0], last=True).trial()
    (conv,) = trial.graph.ops
    assert isinstance(conv, Conv)
    plain, clipped = replace(conv, relu=False), replace(conv, relu=False, limits=(-0.25, 0.5))
    results = [replace(trial, graph=replace(trial.graph, ops=(op,))).run(device) for op in (plain, clipped)]
    assert ("CLIPS", 1) in step_of(results[1].program, "y").kernel.defines
    expected = np.clip(results[0].value("y"), np.float32(-0.25), np.float32(0.5))
    np.testing.assert_array_equal(results[1].value("y"), expected)


# ---- Bits


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("shapes", "tiles"), [(HALOS[0], PAIR_TILES), (OTHERS[0], PAIR_CONV_TILES)], ids=["3x3", "any"]
)
def test_every_tile_gives_the_same_bits(device: Device, shapes: Shapes, tiles: tuple[MmaTile | HaloTile, ...]) -> None:
    first, *others = (check_case(device, Case(shapes, tile=tile)) for tile in tiles)
    assert step_of(first.program, "y").shared == tiles[0].shared
    for other in others:
        assert_same_bits(other.value("y"), first.value("y"))


@pytest.mark.parametrize("shapes", [HALOS[1], OTHERS[1]], ids=str)
def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device, shapes: Shapes) -> None:
    images, *rest = shapes.shape
    check_positions(device, Case(shapes).trial())
    check_batches(device, Case(replace(shapes, shape=(images + 2, *rest))).trial(), 1, images)


# ---- Images out of range


@pytest.mark.parametrize("shapes", [HALOS[0], OTHERS[1]], ids=str)
@pytest.mark.parametrize("factor", [1e5, 1e-5])
def test_an_image_out_of_range_is_computed_on_ffma(device: Device, shapes: Shapes, factor: float) -> None:
    """Alone: values that overflow a half, and values whose low halves would lose digits."""
    trial = Case(replace(shapes, shape=(3, *shapes.shape[1:]))).trial()
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
    with resident(device, replace(trial, kernels="ffma", conv_tile=None)) as plan:
        assert_same_bits(y[1], plan.run(3, x).outputs[0][1])


@pytest.mark.parametrize("pool", [False, True])
def test_nan_is_reported_and_stays_in_its_image(device: Device, pool: bool) -> None:
    """It reaches the windows that hold it."""
    reached = np.zeros((8, 8), np.bool_)
    reached[2:5, 3:6] = True
    if pool:
        reached = reached.reshape(4, 2, 4, 2).any(axis=(1, 3))
    check_nan(device, Case(Shapes((3, 20, 8, 8), 70, pool=pool), last=True).trial(), reached)


BESIDE = (Shapes((1, 20, 8, 8), 70), Shapes((1, 20, 7, 7), 70, pool=True))


@pytest.mark.parametrize("shapes", BESIDE, ids=str)
def test_padding_channels_stay_zero_beside_an_infinity(device: Device, shapes: Shapes) -> None:
    """Or 0 times NaN would make a maximum NaN, and the padding that the next layer reads."""
    trial = Case(shapes).trial()
    x = trial.x.copy()
    x[0, 2, 3, 4] = np.inf
    result = replace(trial, x=x, samples=trial.x).run(device)
    result.value("y")  # looks at the padding
    assert result.nonfinite.tolist() == [True]


# ---- Choices, without a device

A100 = DeviceFacts("cuda", "an A100", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)


@pytest.mark.parametrize("batch", [1, 8, 128])
def test_the_kernel_does_not_depend_on_the_batch(batch: int) -> None:
    """Its bits would."""
    for size, name in ((56, "conv_mma_3x3"), (14, "conv_mma_3x3"), (8, "conv_mma_3x3"), (7, "conv_mma")):
        trial = Case(Shapes((1, 64, size, size), 64)).trial()
        plan = make_plan(trial.graph, A100, [(batch, 64, size, size)], trial.options)
        assert step_of(plan.programs[0], "y").kernel.name == name


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("shared", [99 << 10, 163 << 10, 227 << 10])
def test_tiles_fit_and_hold_whole_windows(shared: int, pool: bool) -> None:
    facts = replace(A100, shared_nbytes=shared)
    for size in (8, 14, 28, 57):
        trial = Case(Shapes((1, 64, size, size), 64, pool=pool)).trial()
        step = step_of(make_plan(trial.graph, facts, [(32, 64, size, size)], trial.options).programs[0], "y")
        assert step.shared <= shared
        assert not pool or dict(step.kernel.defines)["TILE_ROWS"] % 2 == 0


def test_maps_beyond_the_kernels_integers_stay_on_ffma() -> None:
    """Keep conv_igemm for larger maps, whose offsets exceed the integers of these kernels."""
    conv, _ = Shapes((1, 64, 3, 3), 64).make()
    for size, family in ((2300, "mma"), (2400, "ffma")):  # three images of 64 channels, two bytes each
        graph = Graph(GraphInput("x", (None, 64, size, size)), (conv,), ("y",))
        options = PlanOptions("fp32", samples=lambda: np.zeros((1, 64, 1, 1), np.float32))
        assert make_plan(graph, A100, [(1, 64, size, size)], options).families == {"y": family}
