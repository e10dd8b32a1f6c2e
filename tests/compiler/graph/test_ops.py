"""graph: shapes, and what is said when they do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from vgg16gpu.compiler.graph.ops import BatchNorm, Conv, Gemm, Op, Pool, Shape, Softmax
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.errors import ModelError

XY = ("x", "y", ("y",))


def ones(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def conv(*, window: Window | None = None, pool: bool = False) -> Conv:
    return Conv(*XY, ones(4, 3, 3, 3), None, window or Window((3, 3), pads=Pads(1, 1, 1, 1)), pool=pool)


@pytest.mark.parametrize(
    ("op", "shape", "message"),
    [
        (conv(), (1, 4, 7, 7), "Conv 'y': weights for 3 channels, input has 4"),
        (conv(), (1, 3), r"Conv 'y': its input has shape \(1, 3\); it needs \(N, C, H, W\)$"),
        (conv(), (3, 7, 7), r"its input has shape \(3, 7, 7\); it needs \(N, C, H, W\), so a batch dimension in front"),
        (conv(window=Window((3, 3))), (1, 3, 2, 7), "a 3x3 window does not fit a 2x7 map; use a larger input image"),
        (conv(pool=True), (1, 3, 1, 7), "a 2x2 window does not fit a 1x7 map"),
        (Pool(*XY, "max", Window((2, 2))), (1, 3, 7, 1), "Pool 'y': a 2x2 window does not fit a 7x1 map"),
        (Gemm(*XY, ones(5, 6), None), (2, 7), r"Gemm 'y': weights for 6 features, its input \(2, 7\) has 7"),
        (Gemm(*XY, ones(5, 6), None), (2, 3, 1, 6), "weights for 6 features"),
        (Gemm(*XY, ones(5, 6), None, flattens=True), (2, 3, 1, 1), r"its input \(2, 3, 1, 1\) has 3"),
        (Softmax(*XY), (1, 3, 2, 2), r"only \(N, F\) is supported"),
        (BatchNorm(*XY, ones(4), ones(4), ones(4), ones(4), 1e-5), (1, 3, 2, 2), "4 scales for 3 channels"),
    ],
)
@pytest.mark.every_case
def test_shapes_that_do_not_fit(op: Op, shape: Shape, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        op.shape_of_y(shape)
