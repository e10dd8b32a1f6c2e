"""What S5 published of the ladder's kernels: sums in an array of fixed size, padded maps, pools from 0; grids."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.lab.ladder.test_kernels import BOUND, EDGES, POOL_CASES, check_conv, of_problem, run
from tests.support.kernel_harness import normal, seeded
from tests.support.reference import apply
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.ops import Pool
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Arena, Pointer
from vgg16gpu_lab.ladder.kernels import Placed, conv_serial, conv_tree, fits_published, padded, pool_columns, pool_from
from vgg16gpu_lab.ladder.layers import Site
from vgg16gpu_lab.ladder.rungs import SERIAL, TREE
from vgg16gpu_lab.problem import Problem

ROWS = {  # a block for each row
    "serial rows": replace(SERIAL, conv=partial(conv_serial, rows=True)),
    "tree rows": replace(TREE, conv=partial(conv_tree, rows=True)),
}
TECHNIQUES = {"serial": SERIAL, "tree": TREE, **ROWS}
PLACE = Pointer(Arena.ACTIVATIONS, 0)


@pytest.mark.sanitize
@pytest.mark.every_case
@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_block_for_each_row_and_maps_that_the_host_has_padded(device: Device, name: str) -> None:
    for problem in EDGES:
        if name in ROWS:
            check_conv(device, ROWS[name], problem)
    for problem in EDGES[1:4]:
        x, weight = problem.random()
        site = of_problem(problem, weight)
        pads = site.window.pads
        beside = np.pad(x[0], ((0, 0), (pads.top, pads.bottom), (pads.left, pads.right)))
        y = run(device, TECHNIQUES[name], padded(site), beside)
        assert layer_error(y, problem.expected(x, weight)[0].astype(np.float32)) <= BOUND


def test_what_a_convolution_is_compiled_for() -> None:
    """The published array where it fits; bounds are tested where there is something beside the map."""
    for problem, fits in (
        (Problem(1, 512, 4, 3, 1, padding=1), 1),
        (Problem(1, 513, 4, 3, 1, padding=1), 0),
        (Problem(1, 2, 7, 7, 1, kernel=5, padding=1), 0),
    ):
        site = of_problem(problem, problem.random()[1])
        assert fits_published(site) is bool(fits)
        for each, is_padded in ((site, 0), (padded(site), 1)):
            step = conv_serial(Placed(each, PLACE, PLACE, PLACE))
            assert step.kernel.defines == (("FIXED", fits), ("PADDED", is_padded))
            assert (step.shared == 0) is bool(fits)
            assert conv_tree(Placed(each, PLACE, PLACE, PLACE)).kernel.defines == (("PADDED", is_padded),)


@pytest.mark.sanitize
def test_a_maximum_from_zero_needs_a_relu_before(device: Device) -> None:
    shape, window = POOL_CASES[-2]
    pool = Pool("x", "y", ("y",), "max", window)
    from_zero = replace(TREE, pool=partial(pool_from, zero=True))
    x = normal(seeded(str(shape)), 1, *shape) - np.float32(1)
    expected = apply(pool, x.astype(np.float64))[0]
    site = Site(pool, shape, expected.shape)
    np.testing.assert_array_equal(run(device, from_zero, site, x[0]), np.maximum(expected, 0))
    above = np.maximum(x, np.float32(0))
    behind = replace(site, follows_relu=True)
    for technique, each in ((from_zero, site), (TREE, behind), (TREE, site)):
        found = run(device, technique, each, above[0])
        np.testing.assert_array_equal(found, apply(pool, above.astype(np.float64))[0])
    starts = [pool_columns(Placed(each, PLACE, PLACE)).kernel.defines for each in (site, behind)]
    assert starts == [(("START_AT_ZERO", 0),), (("START_AT_ZERO", 1),)]
