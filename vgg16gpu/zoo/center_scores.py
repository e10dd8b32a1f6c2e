"""A VGG's answers to a few pictures, computed so that they are the same bits on every machine.

The generator subtracts the mean answer from the last bias, and the model file has one SHA-256. Ordinary floating-point
sums depend on the BLAS and the number of threads. So the inputs of every matrix product are rounded to integers of 16
bits times a power of two, the weights are integers anyway (weights.py), and the product sums integers below 2**53 in
float64: exact in any order. All the rest is elementwise and correctly rounded. Against the real network the rounding is
an error of about 1e-4 of the scores, which does not matter here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.normalize import Floats
from vgg16gpu.zoo.model_writer import Integers

Doubles: TypeAlias = npt.NDArray[np.float64]

_BITS = 16  # of an input: at most 2**16, times a weight below 2**17, summed over at most 2**20 inputs: 2**53
_STRIP = 1 << 21  # elements of unfolded input at a time


class Fixed(NamedTuple):
    """integers * unit; the integers are held as float64, the unit is a power of two."""

    integers: Doubles
    unit: float


def quantise(x: Doubles) -> Fixed:
    """Round x to 16 bits below its largest value."""
    exponent = math.frexp(float(np.abs(x).max()))[1] - _BITS
    return Fixed(np.rint(np.ldexp(x, -exponent)), math.ldexp(1.0, exponent))


def convolution(x: Doubles, weight: Integers, scale: np.float32, bias: Floats) -> Doubles:
    """Convolve one image 3x3 with padding 1, (C, H, W) to (OC, H, W); the weight is weight * scale."""
    channels, height, width = x.shape
    matrix = weight.reshape(len(weight), -1).astype(np.float64)
    fixed = quantise(x)
    padded = np.pad(fixed.integers, ((0, 0), (1, 1), (1, 1)))
    sums = np.empty((len(weight), height, width))
    rows = max(_STRIP // (channels * 9 * width), 1)
    for top in range(0, height, rows):
        count = min(rows, height - top)
        taps = [padded[:, top + ky : top + ky + count, kx : kx + width] for ky in range(3) for kx in range(3)]
        unfolded = np.stack(taps, axis=1).reshape(channels * 9, count * width)
        sums[:, top : top + count] = (matrix @ unfolded).reshape(-1, count, width)
    sums *= float(scale) * fixed.unit
    sums += bias.astype(np.float64)[:, None, None]
    return sums


def batch_norm(x: Doubles, *, scale: Floats, shift: Floats, mean: Floats, variance: Floats, epsilon: float) -> Doubles:
    """Normalise (C, H, W) channel by channel."""
    gain, offset, centre, spread = (array.astype(np.float64)[:, None, None] for array in (scale, shift, mean, variance))
    return (x - centre) / np.sqrt(spread + epsilon) * gain + offset


def relu(x: Doubles) -> Doubles:
    """Return the larger of x and 0."""
    return np.maximum(x, 0.0)


def max_pool(x: Doubles) -> Doubles:
    """Max-pool (C, H, W) 2x2, stride 2; an odd last row or column is dropped."""
    height, width = (side // 2 * 2 for side in x.shape[1:])
    rows = np.maximum(x[:, 0:height:2, :width], x[:, 1:height:2, :width])
    maxima: Doubles = np.maximum(rows[:, :, 0::2], rows[:, :, 1::2])
    return maxima


def average_pool(x: Doubles, window: int) -> Doubles:
    """Average each window x window square of (C, H, W)."""
    channels, height, width = x.shape
    fixed = quantise(x)
    squares = fixed.integers.reshape(channels, height // window, window, width // window, window)
    averages: Doubles = squares.sum(axis=(2, 4)) / window**2 * fixed.unit
    return averages


def fully_connected(columns: Sequence[Fixed], weight: Integers, scale: np.float32) -> Doubles:
    """Multiply (OUT, IN) weight * scale by each column of IN inputs: (len(columns), OUT)."""
    sums = weight.astype(np.float64) @ np.stack([column.integers for column in columns], axis=1)
    factors = np.array([float(scale) * column.unit for column in columns])
    products: Doubles = (sums * factors).T
    return products


def mean_of(rows: Doubles) -> Doubles:
    """Return the mean over axis 0, added up one row after another: numpy promises no order of its own."""
    total: Doubles = rows[0]
    for row in rows[1:]:
        total = total + row
    return total / len(rows)
