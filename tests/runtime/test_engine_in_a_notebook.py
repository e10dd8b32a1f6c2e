"""What somebody sees who has an engine at a prompt."""

import numpy as np
import pytest

from vgg16gpu import Engine
from vgg16gpu.zoo.digits import heldout

X = heldout()[1][:2]


@pytest.fixture(scope="module")
def engine():
    with Engine("digits", device="cpu", batch=(1, 2), precision="fp16") as made:
        yield made


def test_it_says_what_it_is(engine):
    text = repr(engine)
    assert text.startswith("Engine(")
    for part in ("digits.onnx on ", ", fp16, batch 1, 2;", "input: float32 (N, 1, 32, 32) -> output: float32 (N, 10))"):
        assert part in text
    with Engine("digits", device="cpu") as other:
        assert "closed" not in repr(other)
    assert "batch 1, closed;" in repr(other)


def test_calling_it_is_running_it(engine):
    np.testing.assert_array_equal(engine(X), engine.run(X))
