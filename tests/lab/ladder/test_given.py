"""lab/ladder/given.py: a user's own inputs, of every kind, as the networks take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import Model
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.pictures.images import load_image
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, digit_sample, heldout
from vgg16gpu_lab.ladder.given import MOST, given_inputs

SHAPE = (1, 1, 32, 32)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return OnnxModel(digits_model()).graph()


def given(where: Path, graph: Graph) -> Array:
    return given_inputs(where, OnnxModel(digits_model()), graph, SHAPE)


def samples(count: int) -> Any:
    return np.random.default_rng(0).standard_normal((count, *SHAPE[1:])).astype(np.float32)


def test_numbers_in_every_form(graph: Graph, tmp_path: Path) -> None:
    x = samples(3)
    np.savetxt(tmp_path / "x.txt", x.reshape(3, -1), "%.9g")
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x)
    for name in ("x.txt", "x.npy", "x.npz"):
        found = given(tmp_path / name, graph)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, x)


def test_pictures_are_prepared_as_the_model_says(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "digit.png").write_bytes(digit_sample().read_bytes())
    (tmp_path / "numbers.txt").write_text("1 2 3")
    pixels = load_image(digit_sample(), 1, 32, 32)
    expected = normalise(pixels, DIGITS_MEAN, DIGITS_STD)[np.newaxis]
    for where in (tmp_path, tmp_path / "digit.png"):
        np.testing.assert_array_equal(given(where, graph), expected)


def test_pixels_are_normalised(graph: Graph, tmp_path: Path) -> None:
    pixels, numbers, _ = heldout()
    np.save(tmp_path / "x.npy", pixels[:2])
    np.testing.assert_allclose(given(tmp_path / "x.npy", graph), numbers[:2], rtol=1e-6)


def test_a_file_with_channels_last_is_turned(tmp_path: Path) -> None:
    model = Model(("n", 6, 4, 3))
    x = model.conv(model.node("Transpose", ["input"], "t", perm=[0, 3, 1, 2]), "c", 3, 4)
    model.gemm(model.node("Flatten", [x], "f"), "y", 96, 5)
    path, x = model.save(tmp_path / "keras.onnx"), np.random.default_rng(0).standard_normal((2, 6, 4, 3))
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    opened = OnnxModel(path)
    turned = opened.graph()
    shape: Shape = (1, 3, 6, 4)
    found = given_inputs(tmp_path / "x.npy", opened, turned, shape)
    np.testing.assert_array_equal(found, np.moveaxis(x.astype(np.float32), -1, 1))


def test_what_is_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no files that end in \.txt, \.npy"):
        given(tmp_path, graph)
    np.save(tmp_path / "many.npy", samples(MOST + 1))
    with pytest.raises(InputError, match=f"more than {MOST} inputs"):
        given(tmp_path / "many.npy", graph)
    np.save(tmp_path / "many.npy", samples(MOST))
    assert len(given(tmp_path / "many.npy", graph)) == MOST
    (tmp_path / "x.txt").write_text("1 2 3")
    with pytest.raises(InputError, match="has 3 numbers; the model takes 1024"):
        given(tmp_path / "x.txt", graph)
    for name in (tmp_path / "none", Path("-")):
        with pytest.raises(InputError, match=r"--inputs '.*' does not exist"):
            given(name, graph)
