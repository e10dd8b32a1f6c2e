"""kernels/general/row_sum.cu against float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.general.test_feature_loss import exact
from tests.support.general_harness import compute_all
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from vgg16gpu.compiler.graph.loss import RowSum
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError


@pytest.mark.sanitize
@pytest.mark.parametrize("shapes", [[(3, 7, 1)], [(2, 700, 1), (2,), (2, 3, 3)], [(1, 300, 1)] * 8], ids=str)
def test_sums_of_rows(device: Device, shapes: list[Shape]) -> None:
    names = [f"o{k}" for k in range(len(shapes))]
    op = RowSum(names[0], "y", ("y",), tuple(names[1:]))
    given = [normal(seeded(f"rows {k}"), *shape) for k, shape in enumerate(shapes)]
    (found,) = compute_all(device, op, given)
    assert_same_bits(compute_all(device, op, given)[0], found)
    np.testing.assert_allclose(found, exact(op, given)[0], rtol=0, atol=2e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="RowSum 'y'"):
        RowSum("a", "y", ("y",), ("b",)).shape_of_y((2, 3), (3, 3))
