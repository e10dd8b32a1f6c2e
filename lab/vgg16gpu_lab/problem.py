"""A forward convolution as the lab's kernels compute it, random numbers for it, and the right answer in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError

Array: TypeAlias = npt.NDArray[np.float32]
Array64: TypeAlias = npt.NDArray[np.float64]

_FIELDS = ("batch", "channels", "height", "width", "outputs", "kernel", "stride")


@dataclass(frozen=True)
class Problem:
    """y[n,o,i,j] = sum over c, p, q of x[n,c,i*stride+p-padding,j*stride+q-padding] * weight[o,c,p,q] (+ bias[o]).

    What lies outside of x is zero. Raises InputError for sizes without an output.
    """

    batch: int
    channels: int
    height: int
    width: int
    outputs: int  # output channels
    kernel: int = 3  # rows and columns of a filter
    stride: int = 1
    padding: int = 0  # on each side
    bias: bool = False  # whether there is one, a number for each output channel

    def __post_init__(self) -> None:
        wrong = [name for name in _FIELDS if getattr(self, name) < 1] + ["padding"] * (self.padding < 0)
        if wrong:
            raise InputError(f"{', '.join(wrong)} of {self}: too small")
        if min(self.out_height, self.out_width) < 1:
            raise InputError(
                f"a {self.kernel}x{self.kernel} kernel does not fit into {self.height}x{self.width} with padding "
                f"{self.padding}: take a larger image or a smaller kernel"
            )

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        return self.batch, self.channels, self.height, self.width

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """(outputs, C, K, K)."""
        return self.outputs, self.channels, self.kernel, self.kernel

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """(N, outputs, rows, columns)."""
        return self.batch, self.outputs, self.out_height, self.out_width

    @property
    def taps(self) -> int:
        """Products that make an output."""
        return self.channels * self.kernel**2

    @property
    def flop(self) -> int:
        """Floating point operations that a direct computation needs, products with padding included."""
        return 2 * math.prod(self.y_shape) * self.taps

    @property
    def nbytes(self) -> int:
        """Bytes that have to be moved at least: x, the weights and the bias read once, y written once."""
        values = math.prod(self.x_shape) + math.prod(self.weight_shape) + math.prod(self.y_shape)
        return 4 * values + self.bias_nbytes

    @property
    def bias_nbytes(self) -> int:
        """Bytes of the bias, 0 without one."""
        return 4 * self.outputs if self.bias else 0

    def random(self, seed: int = 0) -> tuple[Array, Array]:
        """Draw (x, weight): normal numbers, the weights scaled so that y is about as large as x."""
        random = np.random.default_rng(seed)
        x = random.standard_normal(self.x_shape, np.float32)
        weight = random.standard_normal(self.weight_shape, np.float32) / np.float32(math.sqrt(self.taps))
        return x, weight

    def random_bias(self, seed: int = 0) -> Array | None:
        """Draw (outputs,) normal numbers; None for a problem without a bias."""
        if not self.bias:
            return None
        return np.random.default_rng((seed, 1)).standard_normal(self.outputs, np.float32)

    def expected(self, x: npt.NDArray[Any], weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None) -> Array64:
        """Compute the answer in float64, tap by tap; the bias, if there is one, is added last."""
        padding = ((0, 0), (0, 0), (self.padding, self.padding), (self.padding, self.padding))
        padded = np.pad(x.astype(np.float64), padding)
        y = np.zeros(self.y_shape)
        rows, columns = self.stride * (self.out_height - 1) + 1, self.stride * (self.out_width - 1) + 1
        for p in range(self.kernel):
            for q in range(self.kernel):
                window = padded[:, :, p : p + rows : self.stride, q : q + columns : self.stride]
                y += np.einsum("nchw,oc->nohw", window, weight[:, :, p, q].astype(np.float64), optimize=True)
        return y if bias is None else y + bias.astype(np.float64)[:, np.newaxis, np.newaxis]


@dataclass(frozen=True)
class Network:
    """A whole network on one image: what there is to do, however it is done."""

    channels: int
    height: int
    width: int
    flop: int
    nbytes: int  # weights, image and scores, moved once
