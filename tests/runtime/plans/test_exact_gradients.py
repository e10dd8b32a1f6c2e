"""`Engine.vjp` of small whole numbers: every sum is exact, so each precision has the gradient of numpy to the last bit.

Also where values are equal in a pool, and 0 at a ReLU. numpy scatters here what the way there has gathered: nothing of
the graph that engines make of a gradient is asked for.
"""

from __future__ import annotations

from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.conv import test_conv_general as general
from tests.kernels.conv.test_conv_igemm import BATCHES, EDGES, GEOMETRY, REDUCTIONS, VGG, Case, parameters, reduction
from tests.support.kernel_harness import seeded
from tests.support.onnx_models import Model
from vgg16gpu import Engine
from vgg16gpu.compiler.graph.ops import Array, GeneralConv
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.devices.base import Device

Array64: TypeAlias = npt.NDArray[np.float64]

LARGEST = 256  # what bfloat16 tells apart from its neighbours: values beyond would be equal in a pool
KERNELS = [("fp32", "ffma"), ("fp16", "mma"), ("bf16", "mma"), ("fp16", "auto"), ("bf16", "auto")]
CASES = (*VGG, *EDGES, *BATCHES, *GEOMETRY, *map(reduction, REDUCTIONS))
GENERAL = (*general.ALL_LAYOUTS, *map(general.random_case, range(48)))


class Problem:
    """A convolution of small whole numbers; few of many weights, so that sums are small, too."""

    def __init__(self, case: Case | general.Case) -> None:
        random = seeded(f"exact {case}")
        self.pools = isinstance(case, Case) and case.pool
        shape, window, group = _shapes(case)
        weights = (case.filters, shape[1] // group, *window.kernel)
        density = min(1.0, 60 / np.prod(weights[1:]))
        self.x = _whole(random, *shape)
        self.weight = _whole(random, *weights) * (random.random(weights) < density).astype(np.float32)
        self.bias = _whole(random, case.filters) if case.bias else None
        operands = ("w", "b") if case.bias else ("w",)
        self.op = GeneralConv("x", "y", ("y",), operands, window, group, case.relu)
        self.y = general.reference(self.op, self.x, self.weight, self.bias)
        assert abs(self.y).max() < LARGEST
        self.slopes = random.integers(-2, 3, self.values.shape).astype(np.float32)

    @property
    def values(self) -> Array64:
        """What the model gives."""
        return _windows(self.y).max(-1) if self.pools else self.y

    @property
    def gradient(self) -> Array64:
        slopes = self.slopes.astype(np.float64)
        if self.pools:
            slopes = _to_first_maxima(self.y, slopes)
        return scattered(self.op, self.x.shape, self.weight, slopes * (self.y > 0) if self.op.relu else slopes)

    def model(self) -> Model:
        model, window = Model((None, *self.x.shape[1:])), self.op.window
        weights = [model.constant("weight", self.weight)]
        weights += [] if self.bias is None else [model.constant("bias", self.bias)]
        options: dict[str, Any] = {"kernel_shape": window.kernel, "strides": window.strides, "group": self.op.group}
        options |= {"auto_pad": f"SAME_{window.same.upper()}"} if window.same else {"pads": list(window.pads)}
        x = model.node("Conv", ["input", *weights], "conv", dilations=window.dilations, **options)
        x = model.node("Relu", [x], "relu") if self.op.relu else x
        if self.pools:
            model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
        return model


def _whole(random: np.random.Generator, *shape: int) -> Array:
    return random.integers(-1, 2, shape).astype(np.float32)


def _shapes(case: Case | general.Case) -> tuple[tuple[int, ...], Window, int]:
    if isinstance(case, Case):
        return case.shape, Window(case.kernel, case.strides, Pads(*case.pads)), 1
    return case.x, case.window, case.group


def _windows(y: Array64) -> Array64:
    """The 2x2 windows of a map, row by row: (N, C, H/2, W/2, 4)."""
    rows, columns = (side // 2 for side in y.shape[2:])
    cut = y[:, :, : 2 * rows, : 2 * columns].reshape(*y.shape[:2], rows, 2, columns, 2)
    return np.moveaxis(cut, 3, 4).reshape(*y.shape[:2], rows, columns, 4)


def _to_first_maxima(y: Array64, slopes: Array64) -> Array64:
    found = np.zeros_like(y)
    first = _windows(y).argmax(-1)
    rows, columns = (2 * np.arange(side) for side in slopes.shape[2:])
    n, c = np.ogrid[: y.shape[0], : y.shape[1]]
    found[n[..., None, None], c[..., None, None], rows[:, None] + first // 2, columns + first % 2] = slopes
    return found


def scattered(op: GeneralConv, shape: tuple[int, ...], weight: Array, slopes: Array64) -> Array64:
    """Each slope goes back to the pixels that its value was computed from, tap by tap, group by group."""
    window, (batch, channels, height, width) = op.window, shape
    (SH, SW), (DH, DW), (KH, KW) = window.strides, window.dilations, window.kernel
    OH, OW = slopes.shape[2:]
    top, left, bottom, right = window.padding(height, width)
    found = np.zeros((batch, channels, height + top + bottom, width + left + right))
    parts = (np.split(found, op.group, 1), np.split(slopes, op.group, 1), np.split(weight.astype(np.float64), op.group))
    for to, given, taps in zip(*parts, strict=True):
        for kh, kw in product(range(KH), range(KW)):
            rows = slice(kh * DH, kh * DH + (OH - 1) * SH + 1, SH)
            columns = slice(kw * DW, kw * DW + (OW - 1) * SW + 1, SW)
            to[:, :, rows, columns] += np.einsum("nohw,oc->nchw", given, taps[:, :, kh, kw])
    return found[:, :, top : top + height, left : left + width]


def check(device: Device, case: Case | general.Case, precision: str, kernels: str) -> None:
    problem, batch = Problem(case), _shapes(case)[0][0]
    options: dict[str, Any] = {"precision": precision, "kernels": kernels, "batch": batch, "gradient": True}
    with Engine(problem.model().proto(), device=device.facts.kind, **options) as engine:
        np.testing.assert_array_equal(engine.run(problem.x), problem.values)
        np.testing.assert_array_equal(engine.vjp(problem.x, problem.slopes), problem.gradient)


@pytest.mark.parametrize(("precision", "kernels"), KERNELS)
@pytest.mark.parametrize("case", parameters(CASES))
def test_convolutions(device: Device, case: Case, precision: str, kernels: str) -> None:
    check(device, case, precision, kernels)


@pytest.mark.parametrize(("precision", "kernels"), [KERNELS[0], *KERNELS[3:]])  # of mma there are none of groups
@pytest.mark.parametrize("number", range(len(GENERAL)))
def test_groups_dilations_and_pads_that_are_found(device: Device, number: int, precision: str, kernels: str) -> None:
    check(device, GENERAL[number], precision, kernels)
