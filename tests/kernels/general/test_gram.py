"""kernels/general/gram.cu, and its gradient by matmul.cu, against float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.general.test_feature_loss import exact
from tests.support.general_harness import compute_all
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from vgg16gpu.compiler.graph.loss import Gram, GramGradient
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError

# Parts of a tile, of a piece, of a group and of a slice; several tiles and slices; one pixel.
SHAPES = [(1, 4, 3, 3), (2, 64, 16, 16), (2, 70, 33, 40), (1, 130, 9, 31), (3, 3, 64, 65), (2, 12, 1, 1)]
BOUND = 2e-6
OP = Gram("x", "y", ("y",))
BACK = GramGradient("g", "y", ("y",), ("x",))


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_channels(device: Device, shape: Shape) -> None:
    x = normal(seeded("gram"), *shape)
    (found,) = compute_all(device, OP, [x])
    (right,) = exact(OP, [x])
    assert np.linalg.norm(found - right) <= BOUND * np.linalg.norm(right)
    assert_same_bits(found, np.ascontiguousarray(found.swapaxes(1, 2)))
    for n in range(shape[0]):
        assert_same_bits(compute_all(device, OP, [x[n : n + 1]])[0], found[n : n + 1])


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(device: Device, shape: Shape) -> None:
    x, g = normal(seeded("gram"), *shape), normal(seeded("of gram"), shape[0], shape[1], shape[1])
    g += g.swapaxes(1, 2)
    (found,) = compute_all(device, BACK, [g, x])
    (right,) = exact(BACK, [g, x])
    assert np.linalg.norm(found - right) <= BOUND * np.linalg.norm(right)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="Gram 'y': its input has shape"):
        OP.shape_of_y((2, 3))
    with pytest.raises(ModelError, match="GramGradient 'y'"):
        BACK.shape_of_y((1, 4, 4), (1, 3, 2, 2))
