"""`Engine.vjp` of a convolution, a ReLU and a pool, of the shapes that the kernels' tests have; and by differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.plans.test_gradients import BOUND, cotangents, exact
from tests.support.kernel_harness import normal, seeded
from tests.support.onnx_models import Model
from vgg16gpu import Engine
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Device

# batch, channels, height, width, filters, pool: those of tests/kernels/conv, and maps of one pixel, row, column.
SHAPES = [
    (2, 3, 30, 30, 64, True),
    (3, 3, 17, 131, 65, False),
    (5, 4, 7, 16, 20, True),
    (2, 64, 15, 13, 128, False),
    (3, 65, 17, 9, 65, True),
    (2, 64, 15, 15, 70, True),
    (1, 100, 30, 30, 320, False),
    (2, 20, 31, 30, 64, True),
    (3, 320, 1, 1, 20, False),
    (2, 320, 14, 14, 128, True),
    (2, 64, 1, 35, 64, False),
    (2, 64, 19, 2, 64, True),
    (1, 512, 14, 14, 512, True),  # as conv5 of VGG16: sums of 4608
]


def layer(channels: int, filters: int, *, pools: bool) -> Model:
    """A convolution with a ReLU behind it, a second one that reads what came of it."""
    model = Model((None, channels, None, None))
    x = model.node("Relu", [model.conv("input", "a", channels, filters)], "relu")
    if pools:
        x = model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    model.conv(x, "y", filters, 8)
    return model


def copying(model: Model) -> Model:
    """A filter of the first convolution copies a value or its opposite, and adds nothing; the second has few weights.

    So many values are equal, or 0, in every kernel: pairs of float16 have sums of what should cancel that are not 0.
    """
    random = np.random.default_rng(3)
    copies, _, sums, _ = model.weights
    filters = np.zeros((copies.dims[0], int(np.prod(copies.dims[1:]))), np.float32)
    filters[np.arange(len(filters)), random.integers(0, filters.shape[1], len(filters))] = random.choice(
        [-1, 1], len(filters)
    )
    values = random.integers(-1, 2, sums.dims) * (random.random(sums.dims) < 0.3)
    for tensor in model.weights:
        tensor.raw_data = np.zeros(tensor.dims, np.float32).tobytes()
    copies.raw_data, sums.raw_data = filters.tobytes(), values.astype(np.float32).tobytes()
    return model


def check(device: Device, model: Model, x: Array, given: Array | None = None) -> None:
    with Engine(model.proto(), device=device.facts.kind, batch=len(x), gradient=True) as engine:
        y = engine.run(x)
        assert isinstance(y, np.ndarray)
        slopes = cotangents([y]) if given is None else [np.broadcast_to(given, y.shape).copy()]
        gradient = engine.vjp(x, slopes)
        expected = exact(engine, x, slopes)
    assert np.linalg.norm(expected) > 0
    assert np.linalg.norm(gradient - expected) <= BOUND * np.linalg.norm(expected)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_a_layer_of_any_shape(device: Device, shape: tuple[int, int, int, int, int, bool]) -> None:
    batch, channels, height, width, filters, pools = shape
    x = normal(seeded("layers"), batch, channels, height, width)
    check(device, layer(channels, filters, pools=pools), x)


@pytest.mark.parametrize("shape", SHAPES[:10], ids=lambda shape: "x".join(map(str, shape)))
def test_equal_values_in_pools_and_zeros_at_relus(device: Device, shape: tuple[int, int, int, int, int, bool]) -> None:
    """Of several maxima the first gets all, and a ReLU at 0 hands nothing on."""
    batch, channels, height, width, filters, pools = shape
    x = seeded("ties").integers(-1, 2, (batch, channels, height, width)).astype(np.float32)
    model = copying(layer(channels, filters, pools=pools))
    with Engine(model.proto(), device=device.facts.kind, batch=batch) as engine:
        y = engine.run(x)
    assert isinstance(y, np.ndarray)
    given = seeded("slopes").integers(-2, 3, y.shape).astype(np.float32)
    check(device, model, x, given)


@pytest.mark.parametrize(("name", "bound"), [("smooth", 1e-4), ("relus", 5e-3), ("pools", 5e-3)])
def test_differences_of_the_device_itself(device: Device, name: str, bound: float) -> None:
    """Along the gradient: (f(x + hd) - f(x - hd)) / 2h, f the outputs weighed by the cotangents; some ReLUs flip."""
    model = Model((None, 3, None, None))
    x = model.conv("input", "a", 3, 16)
    if name != "smooth":
        x = model.node("Relu", [x], "relu")
    pool = "MaxPool" if name == "pools" else "AveragePool"
    x = model.conv(model.node(pool, [x], "p", kernel_shape=[2, 2], strides=[2, 2]), "b", 16, 8)
    model.node("GlobalAveragePool", [x], "y")
    images, step = normal(seeded(f"differences {name}"), 2, 3, 24, 20), np.float32(2.0**-8)
    with Engine(model.proto(), device=device.facts.kind, batch=2, gradient=True) as engine:
        (slopes,) = cotangents([engine.run(images)])
        gradient = engine.vjp(images, slopes)
        direction = gradient / np.float32(np.sqrt(np.mean(gradient**2)))
        above, below = (
            np.vdot(np.asarray(engine.run(images + sign * step * direction), np.float64), slopes) for sign in (1, -1)
        )
    expected = np.vdot(np.asarray(gradient, np.float64), direction)
    assert abs((above - below) / (2 * step) - expected) < bound * expected
