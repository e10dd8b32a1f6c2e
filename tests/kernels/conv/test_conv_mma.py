"""conv_mma.cu and conv_mma_3x3.cu the production way: every precision against float64 or exact integers, their bits.

tests/kernels/test_mma.py has what it is made of, and the kernel alone, on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest

from tests.kernels.conv.test_conv_igemm import BATCHES, EDGES, GEOMETRY
from tests.kernels.conv.test_conv_igemm import Case as Shapes
from tests.support.judged_bits import check_batches, check_nan, check_positions
from tests.support.kernel_harness import Result, assert_same_bits, seeded
from tests.support.kernel_signatures import arguments
from tests.support.mma_harness import PRECISIONS, STORED, MmaTrial, build_module, tile_id
from tests.support.wgmma_harness import Trial, check, fully, parameters, resident, step_of, value_of
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import TILES, HaloTile
from vgg16gpu.compiler.op_kernels.mma import CONV_TILES, MmaTile
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import DeviceFacts, DType
from vgg16gpu.runtime.outputs import LARGEST_FLOAT16

READER = 20  # outputs of the fully connected layer behind the convolution


@dataclass(frozen=True)
class Case:
    """A convolution in a precision, in a tile of either kernel; None: the planner's.

    A fully connected layer reads it, or (`last`) nobody does: then it is float32.
    """

    precision: str
    shapes: Shapes
    last: bool = False
    tile: MmaTile | HaloTile | None = None

    def __str__(self) -> str:
        return f"{self.precision}-{self.shapes}{'-last' * self.last}{tile_id(self.tile)}"

    def trial(self) -> MmaTrial:
        """The graph and its input. The tile changes nothing of them."""
        conv, x = self.shapes.make()
        ops: tuple[Op, ...] = (conv,)
        graph = Graph(GraphInput("x", (None, *x.shape[1:])), ops, ("y",))
        if not self.last:
            _, channels, height, width = infer_shapes(graph, x.shape)["y"]
            gemm = fully(seeded(str(self.shapes)), "y", "z", channels * height * width, READER, flattens=True)
            graph = Graph(graph.input, (conv, gemm), ("z",))
        return MmaTrial(graph, x, self.precision, conv_tile=self.tile, first_on=())


@pytest.fixture(scope="module")
def device(device: Device, request: pytest.FixtureRequest) -> Device:
    return build_module(device, request.session, __name__)


def check_case(device: Device, case: Case) -> Result:
    """Judge a case, once its convolution has been found to run on conv_mma and to be stored as it should."""
    result = check(device, case.trial())
    names = {HaloTile: "conv_mma_3x3", MmaTile: "conv_mma"}
    allowed = [*names.values()] if case.tile is None else [names[type(case.tile)]]
    assert step_of(result.program, "y").kernel.name in allowed
    element = value_of(result.program, "y").element
    signed = DType.S8 if case.precision == "int8" and not case.shapes.relu else STORED[case.precision]
    assert element is (DType.F32 if case.last else signed)
    return result


FEW_CHANNELS = tuple(Shapes((2, channels, 6, 7), 9, pool=True) for channels in (1, 3, 8, 9, 16, 17))
AWKWARD = (
    Shapes((1, 100, 7, 7), 70),
    Shapes((1, 100, 7, 7), 70, pool=True),
    Shapes((2, 64, 9, 5), 130, (1, 1), pads=(0, 0, 0, 0)),
    Shapes((1, 70, 9, 8), 33, (5, 5), (2, 1), (2, 2, 2, 2), relu=False),
    Shapes((9, 17, 1, 1), 65, (1, 1), pads=(0, 0, 0, 0)),
    Shapes((40, 8, 2, 2), 4, pool=True),
    Shapes((1, 1, 1, 1), 1, relu=False),
    Shapes((1, 1, 1, 1), 1, (1, 1), pads=(0, 0, 0, 0), relu=False),
)
INSIDE = (*(shapes for shapes in EDGES if shapes.shape[2:] not in {(1, 1), (2, 32767)}), *BATCHES)
WIDE = {(1, 32767), (32767, 1)}  # a sum over all of it would lose float32's bits on tensor cores
SANITIZED = (
    Case("fp16", Shapes((2, 20, 7, 7), 70, pool=True)),
    Case("bf16", Shapes((1, 3, 9, 8), 6, (2, 3), (2, 1), (0, 1, 1, 0), relu=False)),
    Case("int8", Shapes((1, 5, 7, 7), 9, pool=True)),
    Case("int8", Shapes((1, 65, 5, 4), 9), last=True),
)


@pytest.mark.first_case(reason="test_small_shapes and the tests of bits have the other precisions")
@pytest.mark.parametrize("case", parameters(Case(p, shapes) for shapes in AWKWARD for p in PRECISIONS))
def test_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.first_case(reason="test_small_shapes has strides in bfloat16")
@pytest.mark.parametrize("case", parameters(Case(p, shapes) for shapes in GEOMETRY for p in PRECISIONS))
def test_kernels_strides_and_padding(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.parametrize("case", parameters(Case("fp16", s, last=s.shape[2:] in WIDE) for s in INSIDE))
def test_edges(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.parametrize("case", parameters(Case(p, shapes) for shapes in FEW_CHANNELS for p in ("fp16", "int8")))
def test_few_channels_are_padded_to_16_bytes(device: Device, case: Case) -> None:
    result = check_case(device, case)
    channels = case.shapes.shape[1]
    nbytes = 1 if case.precision == "int8" else 2
    stored = 16 // nbytes if channels * nbytes <= 16 else 64
    assert arguments(step_of(result.program, "y"))["CP"] == stored


@pytest.mark.first_case(reason="test_small_shapes has it in int8")
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_nobody_reads_is_float32(device: Device, precision: str, pool: bool) -> None:
    check_case(device, Case(precision, Shapes((2, 20, 9, 7), 70, relu=False, pool=pool), last=True))


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(device: Device, case: Case) -> None:
    check_case(device, case)


# ---- conv_mma_3x3

HALO = TILES[-1]  # the smaller tile: two in a map of 9 rows
SAME_3X3 = (
    Shapes((3, 20, 9, 9), 70),  # columns of three images in a tile, channels that end within a chunk
    Shapes((3, 70, 17, 8), 70, pool=True),  # three chunks of float16, two of bytes; a last row that no window has
    Shapes((1, 64, 8, 30), 64, relu=False),
    Shapes((2, 33, 30, 11), 5, pool=True),  # a last column that no window has
)


@pytest.mark.first_case(reason="test_tiles_of_halos_give_the_same_bits has the other precisions, without a GPU")
@pytest.mark.parametrize("case", parameters(Case(p, s, tile=HALO) for s in SAME_3X3 for p in PRECISIONS))
def test_halos(device: Device, case: Case) -> None:
    check_case(device, case)


@pytest.mark.sanitize
@pytest.mark.parametrize("precision", PRECISIONS)
def test_tiles_of_halos_give_the_same_bits(device: Device, precision: str) -> None:
    """At any place of any batch, too; in int8 those of conv_mma."""
    case = Case(precision, SAME_3X3[0], tile=HALO)
    found = check_case(device, case).value("y")
    for tile in (*TILES[:-1], *([None] if precision == "int8" else [])):
        assert_same_bits(check_case(device, replace(case, tile=tile)).value("y"), found)
    check_positions(device, case.trial())
    check_batches(device, case.trial(), 1, 2)


@pytest.mark.first_case(reason="float32 goes through the same lines")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_halos_stored_as_float32(device: Device, precision: str) -> None:
    check_case(device, Case(precision, Shapes((2, 20, 9, 9), 70, relu=False, pool=True), last=True, tile=HALO))


# ---- Bits

TILED = (Shapes((3, 70, 7, 9), 70, pool=True), Shapes((3, 70, 7, 9), 70))


@pytest.mark.slow(reason="tiles of GPUs alone")
@pytest.mark.parametrize(
    "case", parameters(Case(p, s, tile=tile) for tile in CONV_TILES for p in ("fp16", "int8") for s in TILED)
)
def test_every_tile_gives_the_same_bits(device: Device, case: Case) -> None:
    assert case.tile is not None
    result = check_case(device, case)
    assert step_of(result.program, "y").shared == case.tile.shared
    assert_same_bits(result.value("y"), check_case(device, replace(case, tile=CONV_TILES[0])).value("y"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place_of_any_batch(device: Device, precision: str) -> None:
    pool = precision != "bf16"
    check_positions(device, Case(precision, Shapes((5, 20, 7, 7), 12, pool=pool)).trial())
    check_batches(device, Case(precision, Shapes((17, 20, 7, 7), 70, pool=pool)).trial(), 1, 5)


# ---- What is not finite


@pytest.mark.first_case(reason="other windows are tested with numbers")
@pytest.mark.parametrize("tile", [None, HALO], ids=tile_id)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_nan_reaches_the_windows_that_hold_it_and_no_other(
    device: Device, precision: str, pool: bool, tile: HaloTile | None
) -> None:
    reached = np.zeros((8, 8), np.bool_)
    reached[2:5, 3:6] = True
    if pool:
        reached = reached.reshape(4, 2, 4, 2).any(axis=(1, 3))
    check_nan(device, Case(precision, Shapes((3, 3, 8, 8), 70, pool=pool), last=True, tile=tile).trial(), reached)


def test_nan_is_reported_in_int8(device: Device) -> None:
    """The integer that it becomes is 0, so only the status word knows."""
    check_nan(device, Case("int8", Shapes((3, 3, 8, 8), 70)).trial())


@pytest.mark.parametrize("tile", [None, HALO], ids=tile_id)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_padding_channels_stay_zero_beside_an_infinity(
    device: Device, precision: str, pool: bool, tile: HaloTile | None
) -> None:
    """Or 0 times NaN would make the next layer NaN where ONNX says infinity."""
    trial = Case(precision, Shapes((1, 20, 8, 8), 6, pool=pool), tile=tile).trial()
    x = trial.x.copy()
    x[0, 2, 3, 4] = np.inf
    scaled = replace(trial, x=x)
    with mock.patch.object(Trial, "scales", trial.scales):
        result = scaled.run(device)
    result.value("y")  # looks at the padding
    assert result.nonfinite.tolist() == [True]


@pytest.mark.parametrize("tile", [None, HALO], ids=tile_id)
def test_overflow_of_float16_is_reported(device: Device, tile: HaloTile | None) -> None:
    """Of the image in which it happens, inside the network: what comes in is within the range."""
    trial = Case("fp16", Shapes((4, 40, 8, 8), 70), tile=tile).trial()
    x = trial.x.copy()
    x[2] *= 6000
    assert np.abs(x).max() < LARGEST_FLOAT16
    with resident(device, trial) as plan:
        clean = plan.run(4, trial.x)
        found = plan.run(4, x)
    assert not clean.out_of_range.any()
    assert found.out_of_range.tolist() == [False, False, True, False]
    assert not found.nonfinite.any()
    assert_same_bits(found.outputs[0][[0, 1, 3]], clean.outputs[0][[0, 1, 3]])


# ---- Limits, without a device

A100 = DeviceFacts("cuda", "an A100", 108, (8, 0), 163 << 10, 80 << 30, 80 << 30)


@pytest.mark.parametrize("shape", [(1, 5, 1, 32768), (1, 5, 32768, 1), (1, 64, 32767, 600)], ids=str)
def test_maps_beyond_the_kernels_integers_are_refused(shape: tuple[int, int, int, int]) -> None:
    conv, _ = Shapes((1, shape[1], 3, 3), 5).make()
    graph = Graph(GraphInput("x", (None, *shape[1:])), (conv,), ("y",))
    with pytest.raises(ModelError, match=r"Conv 'y': its input .* is too large; maps and kernels may have up to 32767"):
        make_plan(graph, A100, [shape], PlanOptions("fp16", kernels="mma"))


def test_the_estimate_takes_halos_where_they_were_measured_to_be_faster() -> None:
    """Layers of VGG16 in fp16 on an H200: milliseconds of both kernels are in docs/performance.md."""
    facts = DeviceFacts("cuda", "an H200", 132, (9, 0), 227 << 10, 140 << 30, 140 << 30)

    def kernel(batch: int, channels: int, size: int, outputs: int, device: DeviceFacts = facts) -> str:
        conv, _ = Shapes((1, channels, 3, 3), outputs).make()
        graph = Graph(GraphInput("x", (None, channels, size, size)), (conv,), ("y",))
        plan = make_plan(graph, device, [(batch, channels, size, size)], PlanOptions("fp16", kernels="mma"))
        return step_of(plan.programs[0], "y").kernel.name

    assert [kernel(batch, 256, 56, 256) for batch in (1, 8, 32, 128)] == ["conv_mma_3x3"] * 4
    assert [kernel(batch, 512, 14, 512) for batch in (1, 8, 32)] == ["conv_mma", "conv_mma_3x3", "conv_mma_3x3"]
    assert kernel(8, 256, 56, 256, A100) == "conv_mma_3x3"
    assert kernel(8, 256, 56, 256, replace(A100, compute_capability=(7, 5), shared_nbytes=64 << 10)) == "conv_mma"
    assert kernel(8, 256, 7, 256) == "conv_mma"  # four images in a tile
