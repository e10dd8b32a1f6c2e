"""fp32 gradients in pairs of float16: on a Hopper GPU, and planned for one, its convolutions in numpy; on mma.sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import compute
from tests.support.hopper_on_cpu import HopperOnCpu, hopper_for
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from tests.support.narrow_vgg import images
from tests.support.wgmma_harness import convolution
from vgg16gpu.compiler.graph.gradient import gradient_graph
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, Conv, Op, Pool, Shape
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2
from vgg16gpu.compiler.op_kernels.mma_pairs import has_pairs
from vgg16gpu.devices.base import Device
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.synthetic import SCALES_SEED, typical_inputs
from vgg16gpu.runtime.plans.gradients import Gradients, gradient_plan

SIZE = 25
BOUND = 2e-6  # of the distance to float64, by the length of the gradient


def samples(shape: Shape) -> Array:
    return typical_inputs(2, shape[1:], IMAGENET_MEAN, IMAGENET_STD, SCALES_SEED)


@pytest.fixture(params=["wgmma", "mma"])
def kernels(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hopper(device: Device, kernels: str) -> Any:
    if kernels == "mma" and device.facts.kind == "cuda":
        return device if has_pairs(device.facts) else pytest.skip("this GPU has no kernels for pairs")
    return hopper_for(device)


def net(widths: Sequence[int] = (20, 20, 72, 100)) -> Graph:
    """Four convolutions, the second and third with pools behind them: names b, c and d."""
    random = seeded("net in pairs")
    ops: list[Op] = []
    for x, y, before, after in zip("xabc", "abcd", (3, *widths), widths, strict=False):
        ops.append(convolution(random, x, y, before, after, relu=True, pool=y == "c"))
    pool = Pool("b", "p", ("p",), "max", MAX_POOL_2X2)
    ops[2:] = [pool, replace(ops[2], x="p"), ops[3]]
    return Graph(GraphInput("x", (None, 3, None, None)), tuple(ops), ("b", "c", "d"))


@pytest.fixture
def graph() -> Graph:
    return net()


def distance(found: Array, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def exact(graph: Graph, x: Array, slopes: Sequence[Array]) -> Any:
    found = gradient_graph(graph, x.shape)
    given = {graph.input.name: x, **dict(zip(found.cotangents, slopes, strict=True))}
    return compute(found.graph, {item.name: given[item.name] for item in found.graph.inputs})[found.graph.outputs[0]]


def slopes_of(graph: Graph, shape: Shape, scale: float = 1.0) -> list[Array]:
    shapes, random = infer_shapes(graph, shape), seeded("slopes")
    return [normal(random, *shapes[name], scale=scale) for name in graph.outputs]


def test_against_float64(hopper: Any, graph: Graph, kernels: str) -> None:
    """And whatever power of two a cotangent has comes out again; rows behind the last image change no bit."""
    gradients: Any = Gradients(graph, hopper, "fp32", kernels, samples)
    x = images(3, SIZE)
    slopes = slopes_of(graph, x.shape, 1e-6)
    found = gradients.vjp(x, slopes, [(0, 3)])
    if isinstance(hopper, HopperOnCpu):
        assert hopper.multiplied == (2 * 4 if kernels == "wgmma" else 0)  # convolutions, there and back
    if kernels == "mma":
        steps = gradient_plan(graph, x.shape, hopper.facts, "fp32", kernels, samples).programs[0].all_steps("float32")
        launched = Counter(step.kernel.name for step in steps)
        assert sum(launched[name] for name in ("conv_mma_3x3", "conv_mma", "conv_mma_first_pairs")) == 2 * 4
    assert distance(found, exact(graph, x, slopes)) < BOUND
    assert_same_bits(gradients.vjp(x, slopes, [(0, 3)]), found)
    factors = np.array([2.0**-60, 1.0, 2.0**40], np.float32)[:, None, None, None]
    for factor in (1, 0):  # zeros stay zeros
        factors[1] = factor
        np.testing.assert_array_equal(gradients.vjp(x, [y * factors for y in slopes], [(0, 3)]), found * factors)
    whole = gradients.vjp(np.concatenate([x, x[:1]]), [np.concatenate([y, y[:1]]) for y in slopes], [(0, 4)])
    assert_same_bits(gradients.vjp(x, slopes, [(0, 4)]), whole[:3])
    assert second_passes(gradients) == 0
    gradients.close()


def second_passes(programs: Gradients) -> int:
    """How many there have been."""
    return programs._programs.second_passes


@pytest.mark.first_case(reason="the kernels' own tests have NaN and infinite slopes")
@pytest.mark.parametrize("case", ["large", "nan", "slope of nan", "slope of infinity", "slope of next to nothing"])
def test_what_is_out_of_range_is_computed_by_ffma(hopper: Any, graph: Graph, kernels: str, case: str) -> None:
    gradients: Any = Gradients(graph, hopper, "fp32", kernels, samples)
    x = images(3, SIZE)
    slopes = slopes_of(graph, x.shape)
    match case:
        case "large":
            x[1] *= np.float32(1e6)
        case "nan":
            x[1, 2, 5, 5] = np.nan
        case "slope of nan":
            slopes[2][1, :, 3, 3] = np.nan
        case "slope of infinity":
            slopes[1][1, :, 3, 3] = np.inf
        case "slope of next to nothing":
            for y in slopes:
                y[1] = 0
            slopes[2][1, :, 3, 3] = 1e-40
    found = gradients.vjp(x, slopes, [(0, 3)])
    by_ffma: Any = Gradients(graph, hopper, "fp32", "ffma", samples)
    expected = by_ffma.vjp(x, slopes, [(0, 3)])
    np.testing.assert_array_equal(found, expected)
    assert second_passes(gradients) == 1
    gradients.close()
    by_ffma.close()


def test_small_images_without_biases(hopper: Any, kernels: str) -> None:
    """Scales from samples do not fit these; a gradient to them is no smaller."""
    graph = net()
    graph = replace(graph, ops=tuple(replace(op, bias=None) if isinstance(op, Conv) else op for op in graph.ops))
    x = images(2, SIZE)
    x[1] *= np.float32(1e-6)
    slopes = slopes_of(graph, x.shape)
    gradients: Any = Gradients(graph, hopper, "fp32", kernels, samples)
    by_ffma: Any = Gradients(graph, hopper, "fp32", "ffma", samples)
    np.testing.assert_array_equal(gradients.vjp(x, slopes, [(0, 2)]), by_ffma.vjp(x, slopes, [(0, 2)]))
    assert second_passes(gradients) == 1
    for one in (gradients, by_ffma):
        one.close()


def test_products_that_hand_on_what_they_get(hopper: Any, kernels: str) -> None:
    """Without ReLUs between, one of two convolutions is in pairs: a result with factors is not multiplied again."""
    random = seeded("linear")
    ops = (
        convolution(random, "x", "a", 3, 64),
        convolution(random, "a", "b", 64, 72),
        convolution(random, "b", "c", 72, 64),
    )
    graph = Graph(GraphInput("x", (None, 3, None, None)), ops, ("c",))
    x = images(2, 20)
    slopes = slopes_of(graph, x.shape, 1e-7)
    gradients: Any = Gradients(graph, hopper, "fp32", kernels, samples)
    found = gradients.vjp(x, slopes, [(0, 2)])
    assert distance(found, exact(graph, x, slopes)) < BOUND
    assert second_passes(gradients) == 0
    gradients.close()
