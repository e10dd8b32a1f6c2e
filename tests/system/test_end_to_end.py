"""Real images with known answers: the digits net, trained, against its labels and against onnxruntime."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Device
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, heldout

LEAST_ACCURACY = 0.98


@pytest.fixture(scope="module")
def expected() -> Array:
    """onnxruntime's scores of the held-out images."""
    return Oracle(digits_model()).scores(heldout()[1])


@pytest.mark.parametrize(("element_type", "count"), [("float32", 100), ("uint8", 50)])
def test_digits_are_read(device: Device, element_type: str, count: int, expected: Array) -> None:
    pixels, images, labels = (values[:count] for values in heldout())
    expected = expected[:count]
    x: npt.NDArray[np.generic] = images if element_type == "float32" else pixels
    assert x.dtype == element_type
    assert len(labels) == count
    with Engine(digits_model(), device=device.facts.kind, batch=[1, 64], mean=DIGITS_MEAN, std=DIGITS_STD) as engine:
        scores = engine.run(x)
    assert isinstance(scores, np.ndarray)
    predicted = scores.argmax(axis=1)
    assert np.mean(predicted == labels) >= LEAST_ACCURACY
    np.testing.assert_array_equal(predicted, expected.argmax(axis=1))
    if element_type == "float32":  # bytes are normalised on the device, in float32
        assert (score_error(scores, expected) <= SCORE_TOLERANCE).all()
