"""lab/kernels/lab/direct: edges of groups, tiles and constant memory; the published faults are really there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.devices.base import Device
from vgg16gpu.program.values import Pointer
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import places
from vgg16gpu_lab.variants import variants

DIRECT = {variant.name: variant for variant in variants()}
CONSTANT = pytest.mark.parametrize("name", ["constant-weights", "tiled-constant"])
GROUPS = pytest.mark.parametrize("name", ["several-outputs", "several-channels"])
TILED = pytest.mark.parametrize("name", ["tiled-shared", "tiled-constant"])


@pytest.mark.first_case(reason="each variant has its float64 test")
def test_every_mapping_computes_the_same_bits(device: Device) -> None:
    """Threads differ, not the order of the sums; weights lie in global or in constant memory."""
    names = ("direct-published", "direct-rows", "direct-planes", "several-outputs", "several-channels")
    problem = Problem(2, 3, 20, 37, 5, padding=1)
    with Trial(device, DIRECT["direct-chw"], problem) as first:
        expected = first.run()
    for name in (*names, "tiled-shared", "tiled-constant"):
        with Trial(device, DIRECT[name], problem) as other:
            np.testing.assert_array_equal(other.run(), expected, name)


@pytest.mark.parametrize(("name", "first"), [("direct-planes", 1), ("direct-published", 0)])
def test_the_sum_after_each_channel_is_stored(device: Device, name: str, first: int) -> None:
    """The fault is really there: planes that nobody reads, of the published kernel also the last."""
    problem = Problem(2, 4, 9, 20, 3)
    planes = np.empty((problem.channels - first, *problem.y_shape), np.float32)
    assert DIRECT[name].workspace_nbytes(problem, {}) == planes.nbytes
    x, weight = problem.random()
    with Trial(device, DIRECT[name], problem, inputs=(x, weight)) as trial:
        y = trial.run()
        device.copy_out(planes, trial._at(trial._places.workspace))
        device.synchronize()
    for done, plane in enumerate(planes, start=1):
        expected = replace(problem, channels=done).expected(x[:, :done], weight[:, :done])
        np.testing.assert_allclose(plane, expected, rtol=0, atol=1e-5)
    assert np.array_equal(planes[-1], y) is (first == 0)


def test_the_published_grid_walks_rows_first() -> None:
    variant, problem = DIRECT["direct-published"], Problem(1, 3, 10, 70, 1)
    parameters = variant.with_defaults({})
    where, _ = places(problem, variant.workspace_nbytes(problem, parameters))
    (step,) = variant.launches(problem, parameters, where).compute
    assert tuple(step.grid) == (1, 5, 1)  # 8 rows, 68 columns, 16 of each in a block


@pytest.mark.parametrize("size", [16, 17, 32])
def test_sizes_about_a_block(device: Device, size: int) -> None:
    check(device, DIRECT["simple-16x16"], Problem(1, 1, size, size, 1, kernel=5, padding=2))


@GROUPS
@pytest.mark.parametrize("per_thread", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("problem", random_problems("per_thread", 2, kernel=3, stride=2), ids=problem_id)
def test_counts_per_thread(device: Device, name: str, problem: Problem, per_thread: int) -> None:
    check(device, DIRECT[name], problem, {"per_thread": per_thread})


@pytest.mark.parametrize("width", [66, 67, 69])
def test_rows_that_end_inside_a_group(device: Device, width: int) -> None:
    """Of 64 to 67 outputs: the last thread of a block, and the first of the next one."""
    check(device, DIRECT["several-outputs"], Problem(1, 1, 5, width, 1))


@TILED
@pytest.mark.parametrize("tile", [8, 16, 32, 1, 5])
@pytest.mark.parametrize("size", [32, 35], ids=lambda size: f"{size}x{size - 1}")
def test_tiles(device: Device, name: str, size: int, tile: int) -> None:
    """Outputs that fill whole tiles, and such that do not."""
    check(device, DIRECT[name], Problem(2, 3, size, size - 1, 2, padding=1), {"tile": tile})


def test_a_tile_that_is_too_large_is_refused(device: Device) -> None:
    """The largest that is not refused, 110 x 110 floats, runs."""
    largest = Problem(1, 2, 50, 50, 1, kernel=17, stride=3)
    check(device, DIRECT["tiled-shared"], largest, {"tile": 32})
    for name in ("tiled-shared", "tiled-constant"):
        for problem in (replace(largest, kernel=18), Problem(1, 2, 50, 50, 1, kernel=3, stride=4)):
            with pytest.raises(RefusedError, match=r"takes more than 48 KiB; take a smaller 'tile'"):
                Trial(device, DIRECT[name], problem, {"tile": 32})


@pytest.mark.first_case(reason="each variant has its float64 test")
@CONSTANT
def test_constant_memory(device: Device, name: str) -> None:
    """As many weights as fit, 64 KiB, copied before the launch: no thread gets their address. One more is refused."""
    variant, full = DIRECT[name], Problem(1, 64, 5, 6, 256, kernel=1)
    check(device, variant, full)
    with Trial(device, variant, full) as trial:
        weights = trial.launches.constants["weight"]
        (step,) = trial.launches.compute
        assert isinstance(weights, Pointer)
        assert weights not in step.arguments
    for problem in (Problem(1, 65, 5, 6, 253, kernel=1), Problem(1, 64, 5, 6, 257, kernel=1)):
        with pytest.raises(RefusedError, match=r"the weights take .* bytes, constant memory holds 65,536"):
            Trial(device, variant, problem)
    # Trials with other weights share the array: each fills it anew
    first, second = Problem(1, 2, 9, 9, 3, bias=variant.takes_bias), Problem(1, 3, 9, 9, 2)
    for problem in (first, second, first):
        check(device, variant, problem)
