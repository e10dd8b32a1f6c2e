"""What tensor cores lose of a sum, emulated, and what the correction of float32 pairs leaves of it.

The emulation takes sums of 16 products as exact and cuts the running sum to 24 bits, towards zero. Its errors are those
that were measured on an H200 (docs/performance.md), a sixth to a third larger.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import seeded
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.op_kernels.conv.common import TAPS
from vgg16gpu.compiler.op_kernels.conv.conv_mma_pairs import CORRECTION
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma import TRUNCATION, promote_taps

PIXELS, OUTPUTS, BLOCK, STEP = 64, 64, 64, 16
CUT_BITS = np.uint64(53 - 24)  # of float64


def cut(x: Array) -> Array:
    """The float32 next to x on the side of zero."""
    return (x.view(np.uint64) >> CUT_BITS << CUT_BITS).view(np.float64)


def sums(inp: Array, weight: Array, taps_per_sum: int) -> Array:
    """inp (pixels, C, taps) by weight (C, taps, OUT), cut at every step and promoted after some taps of a block."""
    total = np.zeros((PIXELS, OUTPUTS), np.float32)
    for block in range(0, inp.shape[1], BLOCK):
        running = np.zeros((PIXELS, OUTPUTS))
        for tap in range(TAPS):
            for channel in range(block, block + BLOCK, STEP):
                step = slice(channel, channel + STEP)
                running = cut(running + inp[:, step, tap] @ weight[step, tap])
            if tap % taps_per_sum == taps_per_sum - 1 or tap == TAPS - 1:
                total += running.astype(np.float32)
                running = np.zeros_like(running)
    return total.astype(np.float64)


def bias_and_error(found: Array, exact: Array) -> tuple[float, float]:
    """The part of `exact` that `found` has too much, and the norm of all that differs by that of `exact`."""
    difference = found - exact
    return float((difference * exact).sum() / (exact**2).sum()), float(
        np.linalg.norm(difference) / np.linalg.norm(exact)
    )


@pytest.mark.parametrize("channels", [64, 128, 256, 512])
def test_the_correction_leaves_no_bias(channels: int) -> None:
    random = seeded(f"truncation {channels}")
    inp = np.maximum(random.standard_normal((PIXELS, channels, TAPS)), 0)
    weight = random.standard_normal((channels, TAPS, OUTPUTS))
    exact = np.einsum("pct,cto->po", inp, weight)
    taps = promote_taps(channels)
    truncated = sums(inp, weight, taps)
    bias, error = bias_and_error(truncated, exact)
    assert bias < -1e-7
    left, corrected = bias_and_error(truncated * (1 + TRUNCATION[taps]), exact)
    assert abs(left) < 0.8e-7
    assert corrected < 0.7 * error


def halves(x: Any) -> tuple[Any, Any]:
    """x as a pair of float16, each as float64."""
    high = x.astype(np.float16).astype(np.float64)
    return high, (x - high).astype(np.float16).astype(np.float64)


def sums_by_parts(inp: Any, weight: Any) -> Any:
    """The same from pairs, in conv_mma_3x3's order: parts of 16 channels, a kw and three kh, small products first."""
    (x_high, x_low), (w_high, w_low) = halves(inp), halves(weight)
    total = np.zeros((PIXELS, OUTPUTS), np.float32)
    for channel in range(0, inp.shape[1], STEP):
        step = slice(channel, channel + STEP)
        for kw in range(3):
            part: Any = np.zeros((PIXELS, OUTPUTS))
            for x, w in ((x_high, w_low), (x_low, w_high), (x_high, w_high)):
                for tap in range(kw, TAPS, 3):
                    part = cut(part + x[:, step, tap] @ w[step, tap])
            total += part.astype(np.float32)
    return total.astype(np.float64)


@pytest.mark.parametrize("channels", [64, 256, 512])
def test_parts_that_begin_with_small_products_lose_little(channels: int) -> None:
    """Three products of a part are cut at its size; the factor brings most of that back."""
    random = seeded(f"parts {channels}")
    inp = 100 * np.maximum(random.standard_normal((PIXELS, channels, TAPS)), 0)
    weight = 4096 * random.standard_normal((channels, TAPS, OUTPUTS))
    exact = np.einsum("pct,cto->po", inp, weight)
    found = sums_by_parts(inp, weight)
    bias, error = bias_and_error(found, exact)
    assert -1.1e-7 < bias < -0.6e-7
    left, corrected = bias_and_error(found * CORRECTION, exact)
    assert abs(left) < 0.6e-7
    assert corrected < min(error, 2.2e-7)
