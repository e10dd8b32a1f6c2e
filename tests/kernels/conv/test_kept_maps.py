"""The kernels that store a map and what its pool makes of it, against those that store one: the same bits of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.kernels.conv.test_conv_first_two import ChainCase
from tests.kernels.conv.test_conv_wgmma import HALVES, PAIR, TALL
from tests.kernels.conv.test_conv_wgmma_small import CLUSTER, THREE, TWO, UNEVEN, WHOLE, WORKSPACE
from tests.support.judged_bits import check_batches, check_positions, check_replays
from tests.support.kernel_harness import assert_same_bits
from tests.support.wgmma_harness import ConvCase, Trial, parameters, raw, step_of
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Conv, Op, Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.compiler.op_kernels.conv.conv_first_two import CUTS
from vgg16gpu.compiler.op_kernels.conv.conv_first_two import ConvPairTile as ChainTile
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import SmallTile
from vgg16gpu.compiler.planner.selection import KEEPING
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class KeptCase:
    """A case whose last op has a pool: here the pool reads a map that is an output, too."""

    case: ConvCase | ChainCase

    def __str__(self) -> str:
        return str(self.case)

    def trial(self) -> Trial:
        """Both maps from one kernel."""
        trial = self.case.trial()
        *others, last = trial.graph.ops
        assert isinstance(last, Conv)
        assert last.pool
        pool = Pool("map", last.y, (last.y,), "max", MAX_POOL_2X2)
        ops: tuple[Op, ...] = (*others, replace(last, y="map", names=("map",), pool=False), pool)
        return replace(trial, graph=Graph(trial.graph.input, ops, ("map", last.y)), keep_values=False)

    def apart(self) -> Trial:
        """A kernel for each op, whose sums are split as they are there."""
        trial = self.trial()
        return replace(trial, tile=None if isinstance(self.case, ChainCase) else trial.tile, keep_values=True)


def check_kept(device: CudaDevice, case: KeptCase, kernel: str) -> None:
    """The same bits of both maps, and the largest magnitude of all that is stored, odd rows and columns with it."""
    one, two = case.trial().run(device), case.apart().run(device)
    element_type = case.case.element_type if isinstance(case.case, ChainCase) else "float32"
    step = step_of(one.program, "y", element_type)
    assert step.kernel.name == kernel
    assert dict(step.kernel.defines)["KEEP"] == 1
    assert "map" in step.names
    assert not one.nonfinite.any()
    for name in ("map", "y"):
        assert len(np.unique(raw(two, name))) > 1
        np.testing.assert_array_equal(raw(one, name), raw(two, name), name)
    for ours, theirs in zip(one.outputs, two.outputs, strict=True):
        assert_same_bits(ours, theirs)
    watched = one.program.control.watched
    assert {*watched} - {"x"} == ({"y"} if case.case.precision == "fp16" else set())
    if case.case.precision == "fp16":
        recorded = one.at(one.program.control.maxima(watched.index("y")), (one.program.batch,))
        seen = [value.name for value in two.program.values if value.name in ("mid", "map")]
        stored = [np.abs(raw(two, name)[0].view(np.float16)).max(axis=(1, 2, 3)) for name in seen]
        np.testing.assert_array_equal(recorded, np.max(stored, axis=0).astype(np.float32))


LARGE = (
    ConvCase("", (2, 64, 15, 13), 128, HALVES, pool=True),
    ConvCase("", (3, 65, 17, 9), 65, HALVES, relu=False, bias=False, pool=True),
    ConvCase("", (2, 20, 31, 30), 64, PAIR, pool=True),
    ConvCase("", (2, 64, 57, 9), 70, TALL, pool=True),
    ConvCase("", (40, 64, 20, 9), 64, PAIR, pool=True),  # several tiles a block
)
SMALL = (
    ConvCase("", (2, 20, 9, 10), 17, WHOLE, pool=True),
    ConvCase("", (1, 320, 15, 15), 128, CLUSTER, pool=True),
    ConvCase("", (1, 320, 31, 9), 64, WORKSPACE, pool=True),
    ConvCase("", (1, 512, 7, 7), 64, UNEVEN, relu=False, pool=True),
    ConvCase("", (3, 64, 15, 15), 64, TWO, pool=True),
    ConvCase("", (2, 128, 7, 7), 100, THREE, pool=True),
    ConvCase("", (2, 320, 15, 17), 64, SmallTile(rows=12, splits=2, exchange=1), bias=False, pool=True),
)
CHAINS = (
    *(ChainCase("", (batch, 3, *size)) for size in ((2, 2), (7, 9), (30, 30), (17, 131)) for batch in (1, 3)),
    *(ChainCase("", (3, 3, 61, 35), ChainTile(*cut)) for cut in CUTS),
    ChainCase("", (40, 3, 61, 130), ChainTile(*next(iter(CUTS)))),  # several tiles for each warpgroup
    ChainCase("", (2, 1, 15, 17), filters=(20, 63), relu=(False, False), bias=False),
    ChainCase("", (3, 3, 30, 37), pixels=True),
)
SANITIZED = (
    ("conv_wgmma", ConvCase("", (2, 65, 5, 9), 70, HALVES, pool=True)),
    ("conv_wgmma_small", ConvCase("", (2, 64, 5, 9), 64, TWO, pool=True)),
    ("conv_first_two", ChainCase("", (2, 3, 5, 19), filters=(20, 64))),
)


def cases(*chosen: ConvCase | ChainCase) -> list[KeptCase]:
    return [KeptCase(replace(case, precision=precision)) for precision in KEEPING for case in chosen]


@pytest.mark.parametrize("case", parameters(cases(*LARGE)))
def test_conv_wgmma(hopper: CudaDevice, case: KeptCase) -> None:
    check_kept(hopper, case, "conv_wgmma")


@pytest.mark.parametrize("case", parameters(cases(*SMALL)))
def test_conv_wgmma_small(hopper: CudaDevice, case: KeptCase) -> None:
    check_kept(hopper, case, "conv_wgmma_small")


@pytest.mark.parametrize("case", parameters(cases(*CHAINS)))
def test_conv_first_two(hopper: CudaDevice, case: KeptCase) -> None:
    check_kept(hopper, case, "conv_first_two")


@pytest.mark.sanitize
@pytest.mark.parametrize("precision", KEEPING)
@pytest.mark.parametrize(("kernel", "case"), SANITIZED, ids=[kernel for kernel, _ in SANITIZED])
def test_small_shapes(hopper: CudaDevice, kernel: str, case: ConvCase | ChainCase, precision: str) -> None:
    check_kept(hopper, KeptCase(replace(case, precision=precision)), kernel)


BITS = {kernel: KeptCase(replace(case, precision="fp16")) for kernel, case in SANITIZED}


@pytest.mark.parametrize("kernel", BITS)
def test_an_image_has_the_same_bits_at_any_place_in_any_batch_again_and_again(hopper: CudaDevice, kernel: str) -> None:
    wide = replace(BITS[kernel].case, shape=(70, *BITS[kernel].case.shape[1:]))
    check_positions(hopper, KeptCase(replace(wide, shape=(5, *wide.shape[1:]))).trial())
    check_batches(hopper, KeptCase(wide).trial(), 1, 5)
    check_replays(hopper, KeptCase(wide).trial(), 200)
