"""`Engine.vjp` of every convolution of the kernels' tests: VGG's, awkward sizes, other kernels, strides and pads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.conv.test_conv_igemm import BATCHES, EDGES, GEOMETRY, VGG, Case, parameters
from tests.runtime.plans.test_gradients import check
from tests.support.kernel_harness import normal, seeded
from tests.support.onnx_models import Model
from vgg16gpu import Engine
from vgg16gpu.devices.base import Device


def model_of(case: Case) -> Model:
    """The convolution of a case, with what it has behind it."""
    channels = case.shape[1]
    model = Model((None, *case.shape[1:]))
    weights = [model.weight("weight", case.filters, channels, *case.kernel)]
    weights += [model.weight("bias", case.filters)] if case.bias else []
    options = {"kernel_shape": list(case.kernel), "strides": list(case.strides), "pads": list(case.pads)}
    x = model.node("Conv", ["input", *weights], "conv", **options)
    if case.relu:
        x = model.node("Relu", [x], "relu")
    if case.pool:
        model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    return model


@pytest.mark.parametrize("case", parameters((*VGG, *EDGES, *BATCHES, *GEOMETRY)))
def test_a_convolution(device: Device, case: Case) -> None:
    x = normal(seeded(f"gradient of {case}"), *case.shape)
    with Engine(model_of(case).proto(), device=device.facts.kind, batch=len(x), gradient=True) as engine:
        check(engine, x)


def test_most_of_them_hand_something_back() -> None:
    """A ReLU may let nothing through where there are few values; the check would hold of zeros, too."""
    found = []
    for case in (*VGG, *EDGES, *GEOMETRY):
        if np.prod(case.shape) < 1 << 14:
            with Engine(model_of(case).proto(), device="cpu", batch=case.shape[0], gradient=True) as engine:
                y = engine.run(normal(seeded(f"gradient of {case}"), *case.shape))
                assert isinstance(y, np.ndarray)
                found.append(
                    bool(engine.vjp(normal(seeded(f"gradient of {case}"), *case.shape), np.ones_like(y)).any())
                )
    assert sum(found) >= len(found) - 2
