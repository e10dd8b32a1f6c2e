"""The ladder's kernels against float64 numpy, each on the devices that there are, with watched memory around arrays."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.support.kernel_harness import Bench, normal, seeded
from tests.support.reference import apply
from tests.support.selection import ALL, choice
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Pool
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.ladder.kernels import Placed, Technique, bias_relu, padded
from vgg16gpu_lab.ladder.layers import Site
from vgg16gpu_lab.ladder.rungs import (
    PARTIALS,
    PIPELINE,
    PIXELS,
    REGISTERS,
    SERIAL,
    SHARED,
    SWIZZLE,
    TREE,
    VECTORS,
    WARPS,
)
from vgg16gpu_lab.problem import Problem

TECHNIQUES = {
    "partials": PARTIALS,
    "serial": SERIAL,
    "tree": TREE,
    "pixels": PIXELS,
    "shared": SHARED,
    "registers": REGISTERS,
    "vectors": VECTORS,
    "warps": WARPS,
    "swizzle": SWIZZLE,
    "pipeline": PIPELINE,
}
TILED = ("vectors", "warps", "swizzle", "pipeline")  # the sums of "registers", in the same order
GEMMS = ("partials", "serial", "tree")
POOLS = {"columns": TREE, "pixels": PIXELS}
BOUND = 1e-6  # norm-wise, of float32 sums of at most some thousand products

EDGES = (
    Problem(1, 1, 1, 1, 1, kernel=1),
    Problem(1, 3, 20, 37, 4, padding=1),
    Problem(1, 9, 18, 17, 2, kernel=5, stride=2, padding=2),
    Problem(1, 7, 13, 11, 131, padding=1),  # more than two tiles of channels; 143 pixels, one and a bit
    Problem(1, 4, 16, 16, 64, kernel=2, stride=2),  # whole tiles, whole quads
    Problem(1, 515, 3, 4, 2, padding=1),  # more channels than a block has threads
)


def of_problem(problem: Problem, weight: Array) -> Site:
    window = Window((problem.kernel,) * 2, (problem.stride,) * 2, Pads(*(problem.padding,) * 4))
    return Site(Conv("x", "y", ("y",), weight, None, window), problem.x_shape[1:], problem.y_shape[1:])


def run(device: Device, technique: Technique, site: Site, x: Array) -> Array:
    """The layer as a rung computes it, without bias and ReLU."""
    bench = Bench(device)
    if technique is PARTIALS and isinstance(site.layer, Conv):
        pads = site.window.pads
        site, x = padded(site), np.pad(x, ((0, 0), (pads.top, pads.bottom), (pads.left, pads.right)))
    addends = technique.addends(site)
    y = bench.room(4 * site.y_size * addends)
    given = technique.weight(site)
    weight = None if given is None else bench.put(given)
    bench.run(technique.step(Placed(site, bench.put(x), y, weight), device.facts))
    return bench.get(y, (site.y_shape[0], addends, site.y_size // site.y_shape[0])).sum(axis=1).reshape(site.y_shape)


def check_conv(device: Device, technique: Technique, problem: Problem) -> None:
    x, weight = problem.random()
    y = run(device, technique, of_problem(problem, weight), x[0])
    assert layer_error(y, problem.expected(x, weight)[0].astype(np.float32)) <= BOUND


@pytest.mark.every_case
@pytest.mark.sanitize
@pytest.mark.parametrize("name", TECHNIQUES)
def test_convolutions(device: Device, name: str) -> None:
    edges = EDGES if name in GEMMS else EDGES[:-1]
    for problem in edges if choice() == ALL else edges[1:4:2]:  # each is a kernel to compile
        check_conv(device, TECHNIQUES[name], problem)
    # Windows that are no squares
    random = seeded(name)
    window = Window((2, 5), (3, 1), Pads(0, 2, 1, 3))
    conv = Conv("x", "y", ("y",), normal(random, 6, 4, 2, 5), None, window)
    x = normal(random, 1, 4, 11, 9)
    expected = apply(conv, x.astype(np.float64))[0]
    y = run(device, TECHNIQUES[name], Site(conv, x.shape[1:], expected.shape), x[0])
    assert layer_error(y, expected) <= BOUND


def test_tiles_add_as_registers_do(device: Device) -> None:
    """One change after the other, and none of what is computed: the same bits."""
    problem = Problem(1, 9, 15, 13, 70, padding=1)
    x, weight = problem.random()
    site = of_problem(problem, weight)
    expected = run(device, REGISTERS, site, x[0])
    for name in TILED:
        np.testing.assert_array_equal(run(device, TECHNIQUES[name], site, x[0]), expected, name)


def check_gemm(device: Device, technique: Technique, features: int, outputs: int) -> None:
    random = seeded(f"{features}x{outputs}")
    gemm = Gemm("x", "y", ("y",), normal(random, outputs, features), None)
    x = normal(random, 1, features)
    y = run(device, technique, Site(gemm, (features,), (outputs,)), x[0])
    assert layer_error(y, apply(gemm, x.astype(np.float64))[0]) <= BOUND


@pytest.mark.sanitize
def test_fully_connected(device: Device) -> None:
    for technique in map(TECHNIQUES.__getitem__, GEMMS):
        for features, outputs in ((1, 1), (511, 2), (513, 3), (1700, 17)):
            check_gemm(device, technique, features, outputs)


POOL_CASES = (
    ((3, 8, 8), Window((2, 2), (2, 2))),
    ((2, 61, 61), Window((2, 2), (2, 2))),  # the last row and column are dropped
    ((5, 15, 16), Window((2, 2), (2, 2))),
    ((1, 1, 1), Window((1, 1), (1, 1))),
    ((2, 9, 33), Window((3, 3), (2, 2), Pads(1, 1, 1, 1))),
    ((2, 7, 9), Window((3, 2), (1, 3), Pads(2, 0, 1, 1))),
    ((1, 3, 1100), Window((2, 2), (1, 1))),  # more columns than a block has threads
)


@pytest.mark.sanitize
def test_pools_of_negative_numbers_too(device: Device) -> None:
    """Where the published pool, whose maximum began at 0, gives 0."""
    for shape, window in POOL_CASES:
        pool = Pool("x", "y", ("y",), "max", window)
        x = normal(seeded(str(shape)), 1, *shape) - np.float32(2)
        expected = apply(pool, x.astype(np.float64))[0]
        assert expected.min() < 0
        for technique in POOLS.values():
            np.testing.assert_array_equal(run(device, technique, Site(pool, shape, expected.shape), x[0]), expected)


def test_a_pool_keeps_nan(device: Device) -> None:
    x = np.zeros((1, 4, 4), np.float32)
    x[0, 1, 0] = np.nan
    site = Site(Pool("x", "y", ("y",), "max", Window((2, 2), (2, 2))), (1, 4, 4), (1, 2, 2))
    for technique in POOLS.values():
        assert np.isnan(run(device, technique, site, x)).tolist() == [[[True, False], [False, False]]]


@pytest.mark.sanitize
def test_bias_and_relu(device: Device) -> None:
    shapes: tuple[tuple[int, ...], ...] = ((3, 5, 7), (300,))
    for shape, relu in product(shapes, (False, True)):
        random = seeded(str(shape))
        sums, bias = normal(random, *shape), normal(random, shape[0])
        bench = Bench(device)
        y = bench.put(sums)
        layer = Gemm("x", "y", ("y",), normal(random, shape[0], 1), bias, relu)
        bench.run(bias_relu(y, bench.put(bias), Site(layer, (1,), shape)))
        expected = sums + bias.reshape(-1, *[1] * (len(shape) - 1))
        np.testing.assert_array_equal(bench.get(y, shape), np.maximum(expected, 0) if relu else expected)
