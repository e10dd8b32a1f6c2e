"""conv_first_two.cu against the two kernels that it stands for: the same bits, whatever the tile and map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from tests.support.judged_bits import check_batches, check_fault, check_nan, check_positions, check_replays
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from tests.support.wgmma_harness import Images, Trial, convolution, fully, parameters, raw, resident, step_of, tile_id
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.op_kernels.conv.conv_first_two import CUTS, ConvPairTile
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

PRECISIONS = ("fp16", "bf16", "int8")


@dataclass(frozen=True)
class ChainCase:
    """Two 3x3 convolutions, a pool, and the size of the input, of which everything else is random."""

    precision: str
    shape: tuple[int, int, int, int]  # N, C, H, W
    tile: ConvPairTile | None = None
    filters: tuple[int, int] = (64, 64)
    relu: tuple[bool, bool] = (True, True)
    bias: bool = True
    pixels: bool = False  # the input comes as bytes

    def __str__(self) -> str:
        batch, channels, height, width = self.shape
        flags = "-filters{}_{}".format(*self.filters) * (self.filters != (64, 64))
        flags += "-relu{:d}{:d}".format(*self.relu) * (not all(self.relu))
        flags += "-nobias" * (not self.bias) + "-bytes" * self.pixels
        return f"{self.precision}-n{batch}-c{channels}-{height}x{width}{flags}{tile_id(self.tile)}"

    @property
    def element_type(self) -> str:
        return "uint8" if self.pixels else "float32"

    def trial(self) -> Trial:
        """Both in one. int8 has a fully connected layer at the end, which reads integers."""
        random = seeded(str(self))
        batch, channels, height, width = self.shape
        first, second = self.filters
        ops: tuple[Op, ...] = (
            convolution(random, "x", "mid", channels, first, relu=self.relu[0]),
            convolution(random, "mid", "y", first, second, relu=self.relu[1], pool=True),
        )
        if not self.bias:
            ops = tuple(replace(op, bias=None) for op in ops)
        if self.precision == "int8":
            ops = (*ops, fully(random, "y", "z", second * (height // 2) * (width // 2), 20, flattens=True))
        if self.pixels:
            x: Images = random.integers(0, 256, (batch, height, width, channels), np.uint8)
        else:
            x = normal(random, *self.shape)
        graph = Graph(GraphInput("x", (None, *self.shape[1:])), ops, (ops[-1].y,))
        return Trial(graph, x, self.precision, self.tile, keep_values=False)

    def apart(self) -> Trial:
        """The same on two kernels."""
        return replace(self.trial(), tile=None, keep_values=True)


def check_chain(device: CudaDevice, case: ChainCase) -> None:
    """The same bits as two kernels give, and the largest magnitude of both."""
    one, two = case.trial().run(device), case.apart().run(device)
    assert step_of(one.program, "y", case.element_type).kernel.name == "conv_first_two"
    assert step_of(two.program, "mid", case.element_type).kernel.name == "conv_first"
    assert "mid" not in [value.name for value in one.program.values]
    assert not one.nonfinite.any()
    expected = raw(two, "y")
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(raw(one, "y"), expected)
    for ours, theirs in zip(one.outputs, two.outputs, strict=True):
        assert_same_bits(ours, theirs)
    assert one.program.control.watched == (("y",) if case.precision == "fp16" else ())
    if case.precision == "fp16":
        recorded = one.at(one.program.control.maxima(0), (one.program.batch,))
        stored = [np.abs(raw(two, name)[0].view(np.float16)).max(axis=(1, 2, 3)) for name in ("mid", "y")]
        np.testing.assert_array_equal(recorded, np.maximum(*stored).astype(np.float32))


SIZES = ((2, 2), (7, 9), (30, 30), (17, 131), (56, 224))
ODD = (3, 3, 61, 35)  # tiles that hang over both edges, whatever their rows
CASES = (
    *(
        ChainCase(precision, (batch, 3, *size), pixels=pixels)
        for precision, size, batch, pixels in product(PRECISIONS, SIZES, (1, 3), (False, True))
    ),
    *(ChainCase(precision, ODD, ConvPairTile(*cut)) for precision, cut in product(PRECISIONS, CUTS)),
    *(
        ChainCase("fp16", (40, 3, 61, 130), ConvPairTile(*cut)) for cut in list(CUTS)[:2]
    ),  # several tiles for each warpgroup
    *(ChainCase(precision, (2, channels, 15, 17)) for precision in PRECISIONS for channels in (1, 2, 4)),
    *(
        ChainCase(precision, (2, 3, 15, 17), filters=(20, 63), relu=(False, False), bias=False)
        for precision in PRECISIONS
    ),
    *(
        ChainCase(precision, (2, 3, 15, 17), relu=relu)
        for precision in PRECISIONS[:2]
        for relu in ((False, True), (True, False))
    ),
)
SANITIZED = tuple(
    ChainCase(precision, (2, 3, 5, 19), filters=(20, 64), pixels=pixels)
    for precision in PRECISIONS
    for pixels in (False, True)
)


@pytest.mark.parametrize("case", parameters(CASES))
def test_shapes_sources_and_tiles(hopper: CudaDevice, case: ChainCase) -> None:
    check_chain(hopper, case)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(hopper: CudaDevice, case: ChainCase) -> None:
    check_chain(hopper, case)


@pytest.mark.parametrize("pixels", [False, True], ids=["float32", "uint8"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_at_any_place(hopper: CudaDevice, precision: str, pixels: bool) -> None:
    check_positions(hopper, ChainCase(precision, (5, 3, 15, 17), pixels=pixels).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_has_the_same_bits_in_any_batch(hopper: CudaDevice, precision: str) -> None:
    """Whatever tiles there are, and however many of them a warpgroup walks through."""
    check_batches(hopper, ChainCase(precision, (200, 3, 34, 18)).trial(), 1, 5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_replays(hopper: CudaDevice, precision: str) -> None:
    check_replays(hopper, ChainCase(precision, (2, 3, 30, 17)).trial())


# ---- Numbers that are none, and those that are too large


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_its_image(hopper: CudaDevice, precision: str) -> None:
    check_nan(hopper, ChainCase(precision, (3, 3, 15, 17)).trial())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_whatever_pixel_it_is(hopper: CudaDevice, precision: str, bad: float) -> None:
    """Those of a row or column too that the pool drops, and those between two tiles."""
    trial = ChainCase(precision, (3, 3, 65, 17)).trial()
    with resident(hopper, trial) as plan:
        clean = plan.run(3, trial.x).outputs[0]
        for row, column in product((0, 27, 28, 64), (0, 7, 8, 16)):
            x = trial.x.copy()
            x[1, 2, row, column] = bad
            (y,), nonfinite, _ = plan.run(3, x)
            assert nonfinite.tolist() == [False, True, False], (row, column)
            assert_same_bits(y[::2], clean[::2], f"{row}, {column}")


@pytest.mark.parametrize("keep_values", [False, True], ids=["one kernel", "two kernels"])
def test_an_image_whose_inner_values_overflow_is_refused(hopper: CudaDevice, keep_values: bool) -> None:
    """Also where nothing can be seen of it behind the second ReLU."""
    trial = ChainCase("fp16", (3, 3, 9, 9), bias=False).trial()
    first, second = trial.graph.ops
    ops = (
        replace(first, weight=np.abs(first.weight)),
        replace(second, weight=-np.abs(second.weight)),
    )
    x = np.abs(trial.x)
    x[1] *= 60000 / x[1].max()
    with resident(hopper, replace(trial, graph=replace(trial.graph, ops=ops), x=x), keep_values=keep_values) as plan:
        (y,), nonfinite, out_of_range = plan.run(3, x)
    assert not y.any()
    assert not nonfinite.any()
    assert out_of_range.tolist() == [False, True, False]


# ---- A wait that runs out


def test_a_wait_that_runs_out_is_reported_and_does_no_harm(hopper: CudaDevice) -> None:
    """What both compute is one operator of the plan, the first."""
    check_fault(hopper, ChainCase("fp16", (2, 3, 15, 17)).trial(), "conv_first_two", operator=1, y="y")
