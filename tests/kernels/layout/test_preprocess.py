"""kernels/layout/preprocess.cu: bytes become normalised values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.closeness import assert_close
from tests.support.kernel_harness import FFMA, Result, one_op, run_graph, seeded
from vgg16gpu.checks.accuracy import tolerance
from vgg16gpu.compiler.graph.ops import Identity
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.devices.base import Device
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.preprocessing import Preprocess

EPSILON = float(np.finfo(np.float32).eps)
IMAGENET = Normalisation(tuple(IMAGENET_MEAN), tuple(IMAGENET_STD))
Pixels = npt.NDArray[np.uint8]


def normalisation(channels: int) -> Normalisation:
    """Another mean and deviation for every channel."""
    return Normalisation(tuple(0.3 + 0.1 * c for c in range(channels)), tuple(0.2 + 0.05 * c for c in range(channels)))


def pixels(*shape: int) -> Pixels:
    return seeded(str(shape)).integers(0, 256, shape, dtype=np.uint8)


def run(device: Device, images: Pixels, normal: Normalisation) -> Result:
    batch, height, width, channels = images.shape
    graph = one_op(Identity("x", "y", ("y",)), (batch, channels, height, width))
    return run_graph(device, graph, images, replace(FFMA, normalisation=normal))


def check(device: Device, images: Pixels, normal: Normalisation) -> None:
    result = run(device, images, normal)
    expected = (images / 255.0 - np.array(normal.mean)) / np.array(normal.std)
    atol = tolerance(1, 1 / min(normal.std))
    assert_close(np.moveaxis(result.value("x"), 1, -1), expected, atol)
    assert_close(np.moveaxis(result.outputs[0], 1, -1), expected, atol)
    assert not result.status.any()


SHAPES = ((1, 1, 1, 3), (2, 16, 16, 3), (3, 17, 15, 3), (5, 5, 7, 1), (2, 9, 9, 4), (1, 3, 4, 6), (2, 130, 129, 3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Device, shape: tuple[int, ...]) -> None:
    check(device, pixels(*shape), normalisation(shape[-1]))


@pytest.mark.parametrize("preset", ["torchvision", "keras", "unit", "symmetric", "raw"])
def test_every_preset_in_its_own_range(device: Device, preset: str) -> None:
    """The formula of the preset itself, not of pixels / 255, within the rounding of what is added."""
    wanted = Preprocess.named(preset)
    images = np.repeat(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), 3, axis=-1)
    result = run(device, images, Normalisation(wanted.unit_mean, wanted.unit_std))
    expected = (images * (wanted.pixel_range / 255) - np.array(wanted.mean)) / np.array(wanted.std)
    largest = 255 if wanted.pixel_range == 255 else 2 / min(wanted.std)
    np.testing.assert_allclose(np.moveaxis(result.value("x"), 1, -1), expected, rtol=0, atol=2 * EPSILON * largest)


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(2, 17, 16, 3), (1, 3, 3, 1)], ids=str)
def test_small_shapes(device: Device, shape: tuple[int, ...]) -> None:
    check(device, pixels(*shape), normalisation(shape[-1]))
