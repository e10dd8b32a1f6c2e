"""What somebody sees who has an engine at a prompt."""

import pydoc

import numpy as np
import pytest

import vgg16gpu
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


def test_help_shows_every_public_attribute(engine):
    text = pydoc.render_doc(Engine, renderer=pydoc.plaintext)
    names = {name for name in (*vars(engine), *dir(Engine)) if not name.startswith("_")}
    assert {"model", "graph", "plan", "device", "timings", "inputs", "run", "stream"} <= names
    assert not {name for name in names if f"`{name}`" not in text and f" {name}" not in text}


@pytest.mark.parametrize("name", vgg16gpu.__all__)
def test_the_package_has_what_it_names(name):
    assert getattr(vgg16gpu, name) is not None
    assert name in dir(vgg16gpu)
