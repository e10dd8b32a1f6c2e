"""fp32 on tensor cores keeps its promise: scales fit what is typical, and what they do not fit is computed once more.

The judge is the float32 path: no layer of an image may be further from float64 than 1.2 times its own error, or
FLOOR; and an image that was run again has its very bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support import reference
from tests.support.kernel_harness import assert_same_bits, seeded
from tests.support.wgmma_harness import Array64, Trial, convolution, fully, resident
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Op
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.synthetic import SCALES_SEED, TESTBENCH_SEED, typical_inputs

pytestmark = pytest.mark.gpu

FLOOR = 5e-7
FACTOR = 1.2
SIDE = 24
BATCH = 4
SPREAD = 10  # powers of two: channels lie between 2^-10 and 2^10


def net(*, bias: bool = True) -> Graph:
    """A small VGG. Without biases it answers s * x with s times the answer to x."""
    random = seeded("second pass")
    ops = (
        convolution(random, "x", "a", 3, 64, relu=True),
        convolution(random, "a", "b", 64, 64, relu=True, pool=True),
        convolution(random, "b", "c", 64, 128, relu=True, pool=True),
        fully(random, "c", "d", 128 * (SIDE // 4) ** 2, 96, relu=True, flattens=True),
        fully(random, "d", "y", 96, 20),
    )
    kept: tuple[Op, ...] = ops if bias else tuple(replace(op, bias=None) for op in ops)
    return Graph(GraphInput("x", (None, 3, SIDE, SIDE)), kept, ("y",))


def spread_net(*places: int, spread: float = SPREAD) -> Graph:
    """The same function through channels of very different sizes: what one layer multiplies, the next divides."""
    graph = net()
    random = seeded("spread")
    ops: list[Any] = list(graph.ops)
    for i in places:
        first, second = ops[i], ops[i + 1]
        factor = (2.0 ** random.uniform(-spread, spread, len(first.bias))).astype(np.float32)
        factor[:2] = 2.0**-spread, 2.0**spread
        ops[i] = replace(first, weight=first.weight * factor[:, None, None, None], bias=first.bias * factor)
        by_input = second.weight.reshape(len(second.weight), len(factor), -1) / factor[:, None]
        ops[i + 1] = replace(second, weight=by_input.reshape(second.weight.shape))
    return replace(graph, ops=tuple(ops))


def pictures(count: int, seed: int = TESTBENCH_SEED) -> Array:
    """Natural enough."""
    return typical_inputs(count, (3, SIDE, SIDE), IMAGENET_MEAN, IMAGENET_STD, seed)


def trial_of(graph: Graph, x: npt.NDArray[Any], samples_scale: float = 1.0) -> Trial:
    return Trial(graph, x, "fp32", samples=pictures(8, SCALES_SEED) * np.float32(samples_scale))


def exactly(device: CudaDevice, trial: Trial) -> Array:
    """What float32 arithmetic says."""
    with resident(device, replace(trial, kernels="ffma")) as plan:
        return plan.run(len(trial.x), trial.x).outputs[0]


def errors(device: CudaDevice, trial: Trial, expected: Mapping[str, Array64]) -> tuple[dict[str, float], int]:
    """The norm-wise error of every value, as far as a first pass leaves them, and how many images were run again."""
    with resident(device, trial, keep_values=True) as plan:
        plan.run(len(trial.x), trial.x)
        program = plan.plan.programs[0]
        values = {value.name: layer_error(plan.read(value), expected[value.name]) for value in program.values}
        return values, plan.second_passes


def check_layers_keep_the_promise(device: CudaDevice, trial: Trial) -> None:
    """Directly: no image is run again."""
    expected = reference.evaluate(trial.graph, trial.floats)
    found, second_passes = errors(device, trial, expected)
    by_float32, _ = errors(device, replace(trial, kernels="ffma"), expected)
    assert second_passes == 0
    for name, error in found.items():
        limit = max(FACTOR * by_float32[name], FLOOR)
        assert error <= limit, f"{name}: {error:.3g}, float32 arithmetic {by_float32[name]:.3g}"


# ---- Within the range


def test_natural_images(hopper: CudaDevice) -> None:
    check_layers_keep_the_promise(hopper, trial_of(net(), pictures(16)))


def test_channels_of_very_different_sizes(hopper: CudaDevice) -> None:
    check_layers_keep_the_promise(hopper, trial_of(spread_net(0, 1), pictures(BATCH)))


@pytest.mark.parametrize("power", [-4, 4])
def test_samples_of_another_size(hopper: CudaDevice, power: int) -> None:
    """There is room for that on both sides."""
    check_layers_keep_the_promise(hopper, trial_of(net(bias=False), pictures(BATCH), 2.0**power))


# ---- Beyond it


MakeImage = Callable[[Array], Array]


def one_pixel(image: Array) -> Array:
    changed = image.copy()
    changed[1, 5, 7] = 1e6
    return changed


STRANGE: Mapping[str, MakeImage] = {
    "a pixel of 1e6": one_pixel,
    "times 1e6": lambda image: image * np.float32(1e6),
    "times 1e-6": lambda image: image * np.float32(1e-6),
    "zeros": np.zeros_like,
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_image_is_run_again_and_the_others_keep_their_bits(hopper: CudaDevice, strange: str) -> None:
    x = pictures(BATCH)
    trial = trial_of(net(bias=False), x)
    mixed = x.copy()
    mixed[2] = STRANGE[strange](x[2])
    with resident(hopper, trial) as plan:
        clean = plan.run(BATCH, x).outputs[0]
        assert plan.second_passes == 0
        y, nonfinite, out_of_range = plan.run(BATCH, mixed)
        assert plan.second_passes == 1
        assert_same_bits(plan.run(BATCH, x).outputs[0], clean, "afterwards")
    assert not nonfinite.any()
    assert not out_of_range.any()
    others = np.arange(BATCH) != 2
    assert_same_bits(y[0][others], clean[others])
    assert_same_bits(y[0][2], exactly(hopper, replace(trial, x=mixed))[2])


def test_nan_is_run_again_and_stays_nan(hopper: CudaDevice) -> None:
    x = pictures(BATCH)
    x[3, 0, 0, 0] = np.nan
    trial = trial_of(net(), x)
    with resident(hopper, trial) as plan:
        y, nonfinite, _ = plan.run(BATCH, x)
        assert plan.second_passes == 1
    assert np.isnan(y[0][3]).all()
    assert np.isfinite(y[0][:3]).all()
    assert nonfinite.tolist() == [False, False, False, True]


# ---- The engine's own memory
