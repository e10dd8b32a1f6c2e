"""The structured pictures and the sample as text."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import CALIBRATION_SEED, TESTBENCH_SEED, structured_images, write_sample_text


@pytest.mark.parametrize(
    ("count", "size", "seed", "digest"),
    [
        (8, 224, CALIBRATION_SEED, "127bbf289fe730ed04f95513a32a7a827fe9c8d4ce891a0738618ed20472466c"),
        (10, 244, TESTBENCH_SEED, "26f8fbc7fbdc41fd807e151b835ddab7f746d2564d9d85b3911a890993bbdc36"),
    ],
)
def test_recorded_pixels(count, size, seed, digest):
    assert hashlib.sha256(structured_images(count, size, seed).tobytes()).hexdigest() == digest


def test_text_brings_the_same_floats_back(tmp_path):
    path = tmp_path / "image.txt"
    write_sample_text(path, 40)
    numbers = np.array([np.float32(word) for word in path.read_text().split()], np.float32)
    expected = normalise(structured_images(1, 40, TESTBENCH_SEED), IMAGENET_MEAN, IMAGENET_STD)
    assert np.array_equal(numbers, expected.ravel())
