"""kernels/general/pool.cu against float64 numpy: maxima exactly, means within the tolerance."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.support.closeness import assert_close
from tests.support.kernel_harness import assert_same_bits, bounds, check_op, normal, run_op, seeded
from tests.support.onnx_models import Model, onnxruntime_values
from tests.support.reference import Array64, apply
from vgg16gpu.checks.accuracy import tolerance
from vgg16gpu.compiler.graph.ops import Array, GlobalPool, Pool, Shape
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.devices.base import Device

Kind = Literal["max", "average"]
KINDS: tuple[Kind, ...] = ("max", "average")

WINDOWS = {
    "2x2": Window((2, 2), (2, 2)),
    "3x3-overlapping": Window((3, 3), (2, 2)),
    "3x3-padded": Window((3, 3), (2, 2), Pads(1, 1, 1, 1)),
    "3x3-same": Window((3, 3), (1, 1), Pads(1, 1, 1, 1)),
    "3x3-one-sided": Window((3, 3), (2, 2), Pads(0, 2, 1, 0)),
    "2x3": Window((2, 3), (2, 1), Pads(1, 0, 0, 2)),
    "2x2-gaps": Window((2, 2), (3, 3)),
    "5x5-padded": Window((5, 5), (3, 2), Pads(2, 2, 2, 2)),
}
MAPS: tuple[Shape, ...] = ((1, 4, 8, 8), (2, 3, 15, 15), (3, 5, 7, 9))


def pool(kind: Kind, window: Window, count_include_pad: bool = False) -> Pool:
    return Pool("x", "y", ("y",), kind, window, count_include_pad)


def image(shape: Shape) -> Array:
    return normal(seeded(str(shape)), *shape)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", MAPS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_windows(device: Device, kind: Kind, shape: Shape, window: str) -> None:
    check_op(device, pool(kind, WINDOWS[window]), image(shape), inner=True)


def test_maximum_of_negative_values_and_minus_infinity(device: Device) -> None:
    x = image((1, 4, 6, 6)) - 100
    assert (check_op(device, pool("max", WINDOWS["3x3-padded"]), x) < 0).all()  # the padding is no zero
    x[0, 1] = -np.inf
    assert np.isneginf(check_op(device, pool("max", WINDOWS["3x3-padded"]), x)[0, 1]).all()
    x[0, 2, 3, 3] = np.inf
    assert np.isposinf(check_op(device, pool("max", WINDOWS["2x2"]), x)[0, 2, 1, 1])


@pytest.mark.parametrize("window", ["2x2", "3x3-overlapping", "3x3-padded", "5x5-padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_reaches_the_windows_that_hold_it_and_no_other(device: Device, kind: Kind, window: str) -> None:
    x = image((2, 5, 9, 9))
    op = pool(kind, WINDOWS[window])
    clean = run_op(device, op, x)
    for row, column in ((0, 0), (3, 4), (6, 7)):
        x[1, 2, row, column] = np.nan
    y = run_op(device, op, x)
    expected = np.isnan(apply(op, x.astype(np.float64)))
    assert expected.any()
    np.testing.assert_array_equal(np.isnan(y), expected)
    assert_same_bits(y[~expected], clean[~expected])


# ---- Dilations, padding that follows from the map, sizes rounded up


def judged(op: Pool, x: Array) -> Array64:
    """Each window element by element, in float64: which lie in the map, which in the padded map."""
    _, _, height, width = x.shape
    pads, window = op.window.padding(height, width), op.window
    rows, columns = window.output_size(height, width)
    y = np.empty((*x.shape[:2], rows, columns))
    for index in np.ndindex(rows, columns):
        h, w = (
            [at * stride - before + k * step for k in range(kernel)]
            for at, stride, before, kernel, step in zip(
                index, window.strides, (pads.top, pads.left), window.kernel, window.dilations, strict=True
            )
        )
        inside = [[i for i in h if 0 <= i < height], [i for i in w if 0 <= i < width]]
        taken = x.astype(np.float64)[:, :, inside[0]][:, :, :, inside[1]]
        count = math.prod(map(len, inside))
        if op.count_include_pad:
            count = len([i for i in h if i < height + pads.bottom]) * len([i for i in w if i < width + pads.right])
        if not taken.size:
            y[:, :, *index] = 0 if op.kind == "average" else np.finfo(np.float32).min
        else:
            y[:, :, *index] = taken.max(axis=(2, 3)) if op.kind == "max" else taken.sum(axis=(2, 3)) / count
    return y


def check(device: Device, op: Pool, x: Array) -> Array:
    y = run_op(device, op, x, inner=True)
    assert_close(y, judged(op, x), *bounds(op, x))
    return y


GENERAL_WINDOWS = {
    "dilated": Window((2, 2), dilations=(2, 2)),
    "dilated-padded": Window((3, 2), (1, 2), Pads(1, 1, 2, 0), (2, 3)),
    "dilated-strided": Window((2, 3), (2, 3), Pads(0, 2, 1, 2), (4, 2)),
    "dilated-same": Window((3, 3), (2, 2), dilations=(2, 1), same="upper"),
    "same-upper": Window((3, 3), (2, 2), same="upper"),
    "same-lower": Window((4, 2), (1, 2), same="lower"),
    "same-unused-pads": Window((2, 3), (1, 1), Pads(9, 9, 9, 9), same="upper"),
    "ceil": Window((3, 3), (2, 2), ceil=True),
    "ceil-padded": Window((3, 3), (2, 2), Pads(1, 1, 1, 1), ceil=True),
    "ceil-beyond": Window((3, 3), (3, 3), Pads(1, 1, 1, 1), ceil=True),
    "ceil-one-sided": Window((2, 4), (3, 2), Pads(0, 3, 1, 0), ceil=True),
    "ceil-dilated": Window((3, 2), (2, 3), Pads(1, 0, 1, 1), (2, 3), ceil=True),
}
GENERAL_MAPS: tuple[Shape, ...] = ((1, 4, 7, 7), (2, 3, 8, 8), (2, 5, 10, 9))


@pytest.mark.parametrize("count_include_pad", [False, True], ids=["real", "padded"])
@pytest.mark.parametrize("window", GENERAL_WINDOWS)
@pytest.mark.parametrize("shape", GENERAL_MAPS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_general_windows(
    device: Device, tmp_path: Path, kind: Kind, shape: Shape, window: str, count_include_pad: bool
) -> None:
    op, x = pool(kind, GENERAL_WINDOWS[window], count_include_pad), image(shape)
    y = check(device, op, x)
    if window != "dilated-same":  # onnxruntime pads these as if they were not dilated, and gives fewer than ONNX says
        np.testing.assert_allclose(y, by_onnxruntime(tmp_path, op, x), rtol=1e-5, atol=1e-6)


def by_onnxruntime(folder: Path, op: Pool, x: Array) -> Array:
    window, model, count = op.window, Model(x.shape), int(op.count_include_pad)
    options: dict[str, Any] = {"kernel_shape": window.kernel, "strides": window.strides, "dilations": window.dilations}
    options |= {"ceil_mode": int(window.ceil)} | ({} if op.kind == "max" else {"count_include_pad": count})
    options |= {"auto_pad": f"SAME_{window.same.upper()}"} if window.same else {"pads": window.pads}
    model.node("MaxPool" if op.kind == "max" else "AveragePool", ["input"], "y", **options)
    return np.asarray(onnxruntime_values(model.save(folder / "m.onnx", opset=19), x)["y"])


def random_window(random: np.random.Generator) -> Window:
    kernel, strides, dilations = (tuple(map(int, random.integers(1, most, 2))) for most in (5, 4, 4))
    pads = Pads(*(int(random.integers(0, kernel[axis % 2])) for axis in range(4)))
    same: Literal["", "upper", "lower"] = ("", "", "upper", "lower")[random.integers(4)]
    return Window(kernel, strides, pads, dilations, same, bool(random.integers(2)) and not same)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", range(60))
def test_random_windows(device: Device, case: int) -> None:
    random = seeded(f"window {case}")
    shape = (2, 3, *map(int, random.integers(10, 14, 2)))
    for kind in KINDS:
        check(device, pool(kind, random_window(random), bool(random.integers(2))), image(shape))


EMPTY = Window((2, 1), (1, 1), Pads(1, 0, 1, 0), (2, 1))  # in a map of one row: both elements lie in the padding


@pytest.mark.parametrize("count_include_pad", [False, True], ids=["real", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_of_nothing_but_padding(device: Device, kind: Kind, count_include_pad: bool) -> None:
    check(device, pool(kind, EMPTY, count_include_pad), image((2, 3, 1, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime_says_the_same_of_nothing_but_padding(tmp_path: Path, kind: Kind) -> None:
    op, x = pool(kind, EMPTY), image((2, 3, 1, 5))
    np.testing.assert_array_equal(judged(op, x), by_onnxruntime(tmp_path, op, x))


def test_a_large_window_is_added_up_in_groups(device: Device) -> None:
    """Equal numbers: the roundings of one running sum of 40,000 would go the same way, to 1e-4."""
    x = np.full((1, 4, 200, 200), 0.7, np.float32)
    for window in (Window((200, 200)), Window((100, 100), dilations=(2, 2)), Window((3, 200), (3, 1))):
        np.testing.assert_allclose(run_op(device, pool("average", window), x), 0.7, rtol=5e-6)


# ---- Whole maps


def global_pool(kind: Kind) -> GlobalPool:
    return GlobalPool("x", "y", ("y",), kind)


def check_global(device: Device, kind: Kind, x: Array, *, inner: bool = True) -> Array:
    y = run_op(device, global_pool(kind), x, inner=inner)
    if kind == "max":
        np.testing.assert_array_equal(y, x.max(axis=(2, 3), keepdims=True))
    else:
        size = x.shape[2] * x.shape[3]
        expected = x.astype(np.float64).mean(axis=(2, 3), keepdims=True)
        assert_close(y, expected, tolerance(size, float(np.abs(x).max())) / size, 2.0**-22)
    return y


@pytest.mark.parametrize("inner", [False, True], ids=["output", "inner"])
@pytest.mark.parametrize("channels", [1, 4, 5, 33])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 7), (13, 13), (15, 17), (16, 16), (1, 257), (30, 41)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_whole_maps(device: Device, kind: Kind, size: tuple[int, int], channels: int, inner: bool) -> None:
    check_global(device, kind, image((2, channels, *size)), inner=inner)


def test_a_large_map_is_added_up_in_groups(device: Device) -> None:
    """A thread's share of 3000 equal numbers, in one running sum, would be wrong by 3e-5."""
    x = np.full((1, 1, 750, 1024), 0.7, np.float32)
    np.testing.assert_allclose(run_op(device, global_pool("average"), x), 0.7, rtol=5e-6)


def test_largest_of_negative_values_and_minus_infinity(device: Device) -> None:
    x = image((2, 3, 5, 5)) - 100
    x[1, 1] = -np.inf
    y = check_global(device, "max", x)
    assert (y < 0).all()
    assert np.isneginf(y[1, 1])


@pytest.mark.parametrize("pixel", [0, 31, 32, 255, 256, 398])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_a_map_reaches_its_channel_and_no_other(device: Device, kind: Kind, pixel: int) -> None:
    x = image((2, 5, 19, 21))
    clean = run_op(device, global_pool(kind), x)
    x.reshape(2, 5, -1)[1, 2, pixel] = np.nan
    y = run_op(device, global_pool(kind), x)
    assert np.isnan(y[1, 2])
    y[1, 2] = clean[1, 2]
    assert_same_bits(y, clean)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", KINDS)
def test_small_shapes(device: Device, kind: Kind) -> None:
    check_op(device, pool(kind, WINDOWS["3x3-padded"]), image((2, 3, 7, 5)), inner=True)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", KINDS)
def test_small_maps(device: Device, kind: Kind) -> None:
    check(device, pool(kind, GENERAL_WINDOWS["ceil-dilated"], count_include_pad=True), image((2, 3, 10, 8)))
    check_global(device, kind, image((2, 5, 17, 19)))
