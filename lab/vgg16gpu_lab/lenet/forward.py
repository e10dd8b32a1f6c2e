"""LeNet's forward pass with its two convolutions computed by a variant of the lab, or one after the other on the host.

A convolution adds its bias: in the kernel, where that takes one, else on the host. ReLU, pools and the fully connected
layers are numpy's on the host, for every version: so versions differ by their convolutions alone, and what lies outside
of them can be told apart. Maps go to the device and back for each convolution.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, Protocol

import numpy as np

from vgg16gpu.bench.measure.timing import Summary, sample_until, summarise, wall
from vgg16gpu.devices.base import Device
from vgg16gpu_lab.layout import in_layout, room
from vgg16gpu_lab.lenet.net import CONVOLUTIONS, Floats, LeNet, columns_of
from vgg16gpu_lab.measure.measure import Effort, Measurement, Status, TimedTrial, Times, measure, verdict
from vgg16gpu_lab.problem import Array, Problem
from vgg16gpu_lab.reference import Reference
from vgg16gpu_lab.variant import Parameters, Variant

TOLERANCE: Final = 1e-5  # norm-wise error of scores and of the convolutions on the host


@dataclass(frozen=True, eq=False, kw_only=True)
class Activations(Reference):
    """A convolution of the net, with its bias, and the maps that it meets there."""

    x: Array
    filters: tuple[Array, Array]  # (weight, bias)

    @cached_property
    def inputs(self) -> tuple[Array, Array]:
        """(x, weight)."""
        return self.x, self.filters[0]

    @cached_property
    def bias(self) -> Array | None:
        """(outputs,), if the problem has one."""
        return self.filters[1] if self.problem.bias else None

    @cached_property
    def without_bias(self) -> Activations:
        """Activations for a kernel that adds no bias."""
        return replace(self, problem=replace(self.problem, bias=False))


class Version(Protocol):
    """A way to compute the convolutions of a batch."""

    def convolve(self, layer: str, x: Floats) -> Floats:
        """Compute conv1 or conv2 of x, bias included, with copies to and from a device."""

    def measure(self, layer: str, maps: Activations, effort: Effort) -> Measurement:
        """Measure without these copies, once the answer is checked; with warm caches, as after the layer before."""


class Sequential:
    """im2col, a matrix product and the bias, image by image, on one thread: numpy's plain loops, no parallel BLAS."""

    def __init__(self, net: LeNet) -> None:
        self._net = net

    def convolve(self, layer: str, x: Floats) -> Floats:
        """Convolve (N, C, H, W) to (N, outputs, rows, columns)."""
        one = self._net.shape.convolution(layer, 1)
        y = np.empty((len(x), *one.y_shape[1:]), np.float32)
        for image, maps in zip(x, y, strict=True):
            multiply(self._net, layer, np.ascontiguousarray(columns_of(image[None], one)[0]), maps)
        return y

    def measure(self, layer: str, maps: Activations, effort: Effort) -> Measurement:
        """Measure wall clock."""
        work = partial(self.convolve, layer, maps.x)
        judged = verdict(maps.error(work()), maps.extent, TOLERANCE)
        samples = sample_until(lambda: wall(work), effort.seconds, most=effort.samples)
        return timed(judged, summarise(samples))


class ConvolutionLayer(TimedTrial):
    """A trial that takes one x after the other."""

    def convolve(self, x: Array) -> Array:
        """Convolve another x: copied in, converted, computed, copied out."""
        self.feed(x)
        self.convert()
        self.compute()
        return self._read_into(room(self.problem.y_shape, self.variant.y_layout))

    def feed(self, x: Array) -> None:
        """Copy x in, and the weights to constant memory where they belong there: other layers share that."""
        self.x = x
        self._sent = in_layout(x, self.variant.x_layout)  # has to stay while it is copied
        self.device.copy_in(self._at(self._places.x), self._sent)
        self._fill_constants()


class OnDevice:
    """Both convolutions by a variant, for one batch size. Raises what `Trial` raises."""

    def __init__(
        self, device: Device, net: LeNet, variant: Variant, batch: int, parameters: Parameters | None = None
    ) -> None:
        with ExitStack() as stack:
            self._layers: dict[str, ConvolutionLayer] = {}
            for layer in CONVOLUTIONS:
                problem = net.shape.convolution(layer, batch, bias=variant.takes_bias)
                weight, bias = net.filters(layer)
                inputs = np.zeros(problem.x_shape, np.float32), weight
                own = bias if variant.takes_bias else None
                trial = ConvolutionLayer(device, variant, problem, parameters, inputs, own)
                self._layers[layer] = stack.enter_context(trial)
            self._net, self._adds_bias = net, not variant.takes_bias
            self._stack = stack.pop_all()

    def convolve(self, layer: str, x: Floats) -> Floats:
        """Convolve (N, C, H, W) to (N, outputs, rows, columns)."""
        y = self._layers[layer].convolve(x.astype(np.float32, copy=False))
        if self._adds_bias:
            y += self._net.filters(layer)[1].reshape(-1, 1, 1)
        return y

    def measure(self, layer: str, maps: Activations, effort: Effort) -> Measurement:
        """Measure between two events on a GPU; without the bias, where the host adds that."""
        self._layers[layer].feed(maps.x)
        return measure(self._layers[layer], maps.without_bias if self._adds_bias else maps, effort, None)

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        self._stack.close()


@dataclass(frozen=True)
class ForwardTimes:
    """Wall clock of a forward pass from images to scores on the host, and of its two convolutions with their copies."""

    forward: Summary
    layers: Summary


def forward_times(net: LeNet, version: Version, x: Array, effort: Effort) -> ForwardTimes:
    """Run a pass that is not timed, then sample."""
    layers: list[float] = []

    def convolve(layer: str, maps: Floats) -> Floats:
        start = time.perf_counter()
        y = version.convolve(layer, maps)
        layers.append(time.perf_counter() - start)
        return y

    net.scores(x, version.convolve)
    forward = sample_until(lambda: wall(lambda: net.scores(x, convolve)), effort.seconds, most=effort.samples)
    both = [sum(layers[i : i + len(CONVOLUTIONS)]) for i in range(0, len(layers), len(CONVOLUTIONS))]
    return ForwardTimes(summarise(forward), summarise(both))


def activations(net: LeNet, x: Array) -> dict[str, Activations]:
    """Return the input of each convolution when the net runs on x, computed in float64 and rounded once."""
    found, maps = {}, x
    for layer in CONVOLUTIONS:
        problem: Problem = net.shape.convolution(layer, len(x), bias=True)
        found[layer] = Activations(problem, 10**9, x=maps, filters=net.filters(layer))
        maps = net.after_convolution(found[layer].expected).astype(np.float32)
    return found


def multiply(net: LeNet, layer: str, columns: Floats, y: Floats) -> None:
    """Multiply weights by an image's columns on the host into y (outputs, rows, columns), and add the bias."""
    weight, bias = net.filters(layer)
    np.einsum("ok,kp->op", weight.reshape(len(weight), -1), columns, out=y.reshape(len(weight), -1), optimize=False)
    y += bias.reshape(-1, 1, 1)


def scores_of_all(net: LeNet, version: Version, x: Array, batch: int) -> Floats:
    """Return scores of any number of images in batches of one size, the last one filled with the first images."""
    filled = np.resize(np.arange(len(x)), -(-len(x) // batch) * batch)
    parts = [net.scores(x[chosen], version.convolve) for chosen in filled.reshape(-1, batch)]
    return np.concatenate(parts)[: len(x)]


def timed(judged: Measurement, summary: Summary) -> Measurement:
    """Add this time if the measurement is right."""
    return replace(judged, compute=Times(summary)) if judged.status is Status.RIGHT else judged
