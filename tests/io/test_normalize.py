"""io/normalize.py: the constants, their order, and the formula."""

import numpy as np

from vgg16gpu.io.imagenet import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import default_mean, default_std, normalise


def test_constants_are_imagenets_in_rgb_order():
    assert IMAGENET_MEAN == (0.485, 0.456, 0.406)
    assert IMAGENET_STD == (0.229, 0.224, 0.225)
    assert default_mean(3) == IMAGENET_MEAN
    assert (default_mean(1), default_std(1)) == ((0.0,), (1.0,))


def test_known_pixel():
    pixels = np.zeros((2, 4, 5, 3), np.uint8)
    pixels[1, 2, 3] = (255, 128, 0)
    x = normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)
    assert x.shape == (2, 3, 4, 5)
    assert x.dtype == np.float32
    expected = [(1 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, -0.406 / 0.225]
    np.testing.assert_allclose(x[1, :, 2, 3], expected, rtol=1e-6)
