"""conv_direct.cu against float64 numpy, and its bits: those of conv_igemm for every shape, batch and neighbour."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.kernels.conv.test_conv_igemm import EDGES, GEOMETRY, REDUCTIONS, VGG, Case, parameters, reduction
from tests.support.kernel_harness import FFMA, assert_same_bits, check_op, one_op, run_op
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.facts import H200
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import DeviceFacts

CPU = replace(H200, kind="cpu", compute_capability=(0, 0))
# Columns: of WIDE, and of fours behind them; rows: of a part of a thread's, of several threads.
COLUMNS = tuple(Case((1, 4, 5, 5), filters, pool=pool) for filters in (16, 20, 31, 32, 61) for pool in (False, True))
ROWS = tuple(Case((1, 3, 1, columns), 20) for columns in (7, 8, 9, 31, 32, 33, 65))
SANITIZED = (
    Case((2, 3, 9, 9), 18),
    Case((1, 5, 7, 7), 9, pool=True),
    Case((1, 3, 9, 8), 6, (2, 3), (2, 1), (0, 1, 1, 0), relu=False),
    Case((1, 40, 4, 5), 17, pool=True),  # two groups
)

# Of conv_direct, also on a GPU, where conv_igemm is planned; and of that:
run, by_igemm = partial(run_op, inner=True, of="cpu"), partial(run_op, inner=True, of="cuda")


def check(device: Device, case: Case) -> None:
    """Right, and to the bit what conv_igemm gives."""
    op, x = case.make()
    y = check_op(device, op, x, inner=True, of="cpu")
    assert_same_bits(y, by_igemm(device, op, x))


@pytest.mark.parametrize("case", parameters((*EDGES, *GEOMETRY, *map(reduction, REDUCTIONS))))
def test_shapes(device: Device, case: Case) -> None:
    check(device, case)


@pytest.mark.parametrize("case", parameters((*COLUMNS, *ROWS)))
def test_edges_of_tiles(device: Device, case: Case) -> None:
    check(device, case)


def test_groups_that_end_within_a_tap(device: Device) -> None:
    """A group of 288 products is 14.4 taps of 20 channels: the second begins in the middle of one."""
    check(device, Case((1, 20, 6, 7), 17, (5, 5), pads=(2, 2, 2, 2)))


@pytest.mark.sanitize
@pytest.mark.parametrize("case", parameters(SANITIZED))
def test_small_shapes(device: Device, case: Case) -> None:
    check_op(device, *case.make(), inner=True, of="cpu")


@pytest.mark.first_case(reason="NaN stays where it belongs; infinity and pools go the same way")
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_where_it_belongs(device: Device, bad: float, pool: bool) -> None:
    op, x = Case((3, 4, 8, 8), 6, pool=pool).make()
    clean = run(device, op, x)
    x[1, 2, 3, 4] = bad
    y = run(device, op, x)  # looks at the padding channels: they are zero
    assert_same_bits(y[[0, 2]], clean[[0, 2]])
    np.testing.assert_array_equal(y, by_igemm(device, op, x))
    assert not np.isfinite(y[1]).all()


def test_an_image_has_the_same_bits_in_any_batch(device: Device) -> None:
    op, x = Case((5, 20, 7, 7), 12).make()
    alone = np.concatenate([run(device, op, image[None]) for image in x])
    assert_same_bits(run(device, op, x), alone)


# ---- Where it is planned


def planned(facts: DeviceFacts, case: Case) -> str:
    op, x = case.make()
    plan = make_plan(one_op(op, x.shape), facts, [x.shape], FFMA)
    return next(step.kernel.name for step in plan.programs[0].steps if step.flop)


@pytest.mark.parametrize("case", parameters((VGG[0], GEOMETRY[4], EDGES[-1])))
def test_on_a_cpu_alone(case: Case) -> None:
    assert planned(CPU, case) == "conv_direct_f32"
    assert planned(H200, case) == planned(replace(CPU, kind="cuda"), case) == "conv_igemm_f32"


def test_maps_beyond_the_integers_of_a_gpu_are_refused() -> None:
    op, _ = Case((1, 1, 3, 3), 5).make()
    with pytest.raises(ModelError, match="is too large"):
        make_plan(one_op(op, (1, 1, 1, 32768)), CPU, [(1, 1, 1, 32768)], FFMA)
