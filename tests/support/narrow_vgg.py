"""Narrow VGGs for tests of engines (tests/runtime/conftest.py makes them): sizes, and inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vgg16gpu import Engine
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import structured_images

SIZES = {"vgg16-48": 48, "vgg16_bn-48": 48, "vgg11-61": 61}  # 61: odd maps all the way
SCORES = 10


def pixels(count: int, size: int = 48) -> Any:
    return structured_images(count, size, seed=3)


def images(count: int, size: int = 48) -> Array:
    return normalise(pixels(count, size), IMAGENET_MEAN, IMAGENET_STD)


def run(engine: Engine, x: Any) -> Array:
    scores = engine.run(x)
    assert isinstance(scores, np.ndarray)
    return scores
