"""The trained net that ships: real images, known answers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from PIL import Image

from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_SIZE, DIGITS_STD, digit_sample, enlarge, heldout


def scores(x):
    session = open_session(digits_model())
    return session.run(None, {"input": x})[0]


def test_at_least_98_percent_of_the_held_out_images_are_right():
    images, x, labels = heldout()
    assert (images.shape, images.dtype) == ((450, 32, 32, 1), np.uint8)
    assert (x.shape, x.dtype) == ((450, 1, 32, 32), np.float32)
    assert set(labels) == set(range(10))
    assert np.mean(scores(x).argmax(axis=1) == labels) >= 0.98


def test_the_file_is_small_valid_and_takes_any_batch():
    assert digits_model().stat().st_size <= 1_000_000
    onnx.checker.check_model(digits_model(), full_check=True)
    graph = onnx.load(digits_model()).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds == [*["Conv", "Relu", "Conv", "Relu", "MaxPool"] * 3, "Flatten", "Gemm", "Relu", "Gemm"]
    shape = graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in shape] == ["batch", 1, DIGITS_SIZE, DIGITS_SIZE]
    assert scores(heldout()[1][:3]).shape == (3, 10)


def test_the_sample_picture_is_a_two():
    """Shrunk back to the net's size by Pillow, as an image that a user brings."""
    with Image.open(digit_sample()) as picture:
        assert (picture.mode, picture.size) == ("L", (256, 256))
        small = np.asarray(picture.resize((DIGITS_SIZE, DIGITS_SIZE), Image.Resampling.BILINEAR))
    x = ((small / 255 - DIGITS_MEAN[0]) / DIGITS_STD[0]).astype(np.float32)
    answer = scores(x[None, None])[0]
    assert answer.argmax() == 2
    assert np.sort(answer)[-1] - np.sort(answer)[-2] > 2


@pytest.mark.parametrize("size", [8, 16, 32, 64, 256])
def test_enlarging_is_bilinear_with_aligned_centres(size):
    levels = np.random.default_rng(size).integers(0, 17, size=(3, 8, 8), dtype=np.uint8)
    centres = np.clip((np.arange(size) + 0.5) * 8 / size - 0.5, 0, 7)
    rows = np.array([[np.interp(centres, range(8), row) for row in image] for image in levels])
    both = np.array([[np.interp(centres, range(8), column) for column in image.T] for image in rows])
    expected = both.transpose(0, 2, 1) * 255 / 16
    got = enlarge(levels, size)
    assert got.shape == (3, size, size, 1)
    assert np.abs(got[..., 0] - expected).max() <= 0.5 + 1e-9
