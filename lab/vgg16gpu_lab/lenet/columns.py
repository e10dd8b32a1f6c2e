"""LeNet's convolutions as S3 has them at first (3.3.1): im2col in parallel on the device, the product on the host.

A thread of the device fetches what an output pixel needs; the columns come back, and the host multiplies them as the
sequential version does.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property, partial
from typing import Final

import numpy as np

from vgg16gpu.bench.measure.timing import sample_until, summarise, wall
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.lenet.forward import TOLERANCE, Activations, ConvolutionLayer, multiply, timed
from vgg16gpu_lab.lenet.net import CONVOLUTIONS, Floats, LeNet
from vgg16gpu_lab.measure.measure import Effort, Measurement, verdict
from vgg16gpu_lab.problem import Array, Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:  # noqa: ARG001 - it has none
    return Launches((im2col.rows_of_taps(problem, places),))


IM2COL: Final = Variant(  # in no list of variants: it computes no convolution
    name="im2col-alone",
    title="im2col alone",
    order=0,
    source=im2col.SOURCE,
    teaches="The product is most of the work: with the columns made in no time, it still takes as long.",
    launches=_launches,
    workspace_nbytes=im2col.workspace_nbytes,
)


class ColumnsLayer(ConvolutionLayer):
    """The columns of one x after the other."""

    def columns(self, x: Array) -> Array:
        """Return (N, C * K * K, pixels) of x: copied in, gathered, copied out. The next call overwrites the array."""
        self.feed(x)
        self.compute()
        self.device.copy_out(self._columns, self._at(self._places.workspace))
        self.device.synchronize()
        return self._columns

    @cached_property
    def _columns(self) -> Array:
        return np.empty((self.problem.batch, self.problem.taps, im2col.pixels(self.problem)), np.float32)


class ColumnsOnDevice:
    """Both convolutions for one batch size. Raises what `Trial` raises."""

    def __init__(self, device: Device, net: LeNet, batch: int) -> None:
        self._net = net
        self.layers: dict[str, ColumnsLayer] = {}
        with ExitStack() as stack:
            for layer in CONVOLUTIONS:
                problem = net.shape.convolution(layer, batch)
                inputs = np.zeros(problem.x_shape, np.float32), net.filters(layer)[0]
                self.layers[layer] = stack.enter_context(ColumnsLayer(device, IM2COL, problem, inputs=inputs))
            self._stack = stack.pop_all()

    def convolve(self, layer: str, x: Floats) -> Floats:
        """Convolve (N, C, H, W) to (N, outputs, rows, columns)."""
        trial = self.layers[layer]
        y = np.empty(trial.problem.y_shape, np.float32)
        for columns, maps in zip(trial.columns(x.astype(np.float32, copy=False)), y, strict=True):
            multiply(self._net, layer, columns, maps)
        return y

    def measure(self, layer: str, maps: Activations, effort: Effort) -> Measurement:
        """Measure wall clock, with the copies: there is no convolution without them."""
        work = partial(self.convolve, layer, maps.x)
        judged = verdict(maps.error(work()), maps.extent, TOLERANCE)
        samples = sample_until(lambda: wall(work), effort.seconds, most=effort.samples)
        return timed(judged, summarise(samples))

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        self._stack.close()
