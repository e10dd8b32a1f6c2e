"""LeNet trained by numpy alone: Adam on cross-entropy, the same from the same seed, under a minute on two cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.io.normalize import Pixels
from vgg16gpu_lab.lenet.data import Dataset, Labels
from vgg16gpu_lab.lenet.net import CONVOLUTIONS, FULLY_CONNECTED, Floats, LeNet, Shape, columns_of
from vgg16gpu_lab.problem import Problem

Parameters: TypeAlias = dict[str, Floats]
Progress: TypeAlias = Callable[[int, int], None]  # (steps done, of all)

STEPS: Final = 1200
BATCH: Final = 64
RATE: Final = 2e-3  # of Adam, at its largest
SHIFT: Final = 2  # pixels, at most, that a training image is moved

_WARM_UP = 50  # steps
_MOMENTUM, _SQUARES, _TINY = 0.9, 0.999, 1e-8  # Adam's usual constants
_RECIPE = "1"  # to be counted up with every change of this file that changes the weights


def trained_model(data: Dataset, seed: int = 0, steps: int = STEPS, progress: Progress | None = None) -> Path:
    """Return the ONNX file of the net for `data`, from the cache, or trained now and put there.

    Raises KernelError when the cache has no room.
    """
    key = (_RECIPE, data.digest, str(data.image), str(seed), str(steps))
    found = KernelCache("lenet").fetch(
        key, ".onnx", lambda path: train(data, seed, steps, progress).write(path, data.classes)
    )
    return found.path


def train(data: Dataset, seed: int = 0, steps: int = STEPS, progress: Progress | None = None) -> LeNet:
    """Train a new net; the same seed gives the same one on the same machine."""
    random = np.random.default_rng(seed)
    shape = Shape(data.image)
    parameters = initial(shape, random)
    optimiser = _Adam(parameters)
    for step in range(steps):
        chosen = random.integers(0, len(data.training), BATCH)
        x = data.normalised(shifted(data.training[chosen], random))
        _, gradients = loss_and_gradients(shape, parameters, x, data.training_labels[chosen])
        optimiser.update(gradients, rate(step, steps))
        if progress:
            progress(step + 1, steps)
    return LeNet(shape, {name: value.astype(np.float32) for name, value in parameters.items()}, data.mean, data.std)


def initial(shape: Shape, random: np.random.Generator) -> Parameters:
    """Draw weights of He's variance; biases are zero."""
    return {
        name: (random.standard_normal(size, np.float32) * np.float32(math.sqrt(2 / math.prod(size[1:]))))
        if len(size) > 1
        else np.zeros(size, np.float32)
        for name, size in shape.parameters.items()
    }


def rate(step: int, steps: int) -> float:
    """Return the learning rate: linear up, then half a cosine down to zero."""
    warm_up = min(_WARM_UP, steps)
    return RATE * min((step + 1) / warm_up, 1) * (1 + math.cos(math.pi * step / steps)) / 2


def shifted(pixels: Pixels, random: np.random.Generator) -> Pixels:
    """Shift each image by up to SHIFT pixels both ways, black coming in."""
    side = pixels.shape[1]
    padded = np.pad(pixels[..., 0], ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), (1, 2))
    rows, columns = random.integers(0, 2 * SHIFT + 1, (2, len(pixels)))
    moved: Pixels = windows[np.arange(len(pixels)), rows, columns][..., None]
    return moved


def loss_and_gradients(shape: Shape, parameters: Parameters, x: Floats, labels: Labels) -> tuple[float, Parameters]:
    """Return the mean cross-entropy of a batch and its derivative by each parameter, in the precision of x."""
    backward: list[Callable[[Floats], Floats]] = []  # each turns d loss / d its result into d loss / d its input
    gradients: Parameters = {}
    for layer in CONVOLUTIONS:
        problem = shape.convolution(layer, len(x))
        x = _convolve(layer, problem, parameters, x, gradients, backward)
        x = _relu(_pool(x, backward), backward)
    maps = x.shape
    x = x.reshape(len(x), -1)
    backward.append(lambda dy: dy.reshape(maps))
    for layer in FULLY_CONNECTED:
        x = _connect(layer, parameters, x, gradients, backward)
        x = x if layer == FULLY_CONNECTED[-1] else _relu(x, backward)
    loss, slope = _cross_entropy(x, labels)
    for step in reversed(backward):
        slope = step(slope)
    return loss, gradients


def _convolve(
    layer: str,
    problem: Problem,
    parameters: Parameters,
    x: Floats,
    gradients: Parameters,
    backward: list[Callable[[Floats], Floats]],
) -> Floats:
    weight = parameters[f"{layer}.weight"]
    flat = weight.reshape(problem.outputs, -1)
    columns = columns_of(x, problem)

    def back(dy: Floats) -> Floats:
        rows = dy.reshape(problem.batch, problem.outputs, -1)
        gradients[f"{layer}.weight"] = np.tensordot(rows, columns, ((0, 2), (0, 2))).reshape(weight.shape)
        gradients[f"{layer}.bias"] = rows.sum((0, 2))
        return dy if layer == CONVOLUTIONS[0] else _summed(flat.T @ rows, problem)  # nobody asks for the image's

    backward.append(back)
    return (flat @ columns).reshape(problem.y_shape) + parameters[f"{layer}.bias"].reshape(-1, 1, 1)


def _summed(columns: Floats, problem: Problem) -> Floats:
    """Invert im2col, for stride 1 without padding: what was copied to several places is added up."""
    k, rows, width = problem.kernel, problem.out_height, problem.out_width
    parts = columns.reshape(problem.batch, problem.channels, k, k, rows, width)
    x = np.zeros(problem.x_shape, columns.dtype)
    for p in range(k):
        for q in range(k):
            x[:, :, p : p + rows, q : q + width] += parts[:, :, p, q]
    return x


def _pool(y: Floats, backward: list[Callable[[Floats], Floats]]) -> Floats:
    n, c, height, width = y.shape
    rows, columns = height // 2, width // 2
    windows = y[:, :, : 2 * rows, : 2 * columns].reshape(n, c, rows, 2, columns, 2).transpose(0, 1, 2, 4, 3, 5)
    windows = windows.reshape(n, c, rows, columns, 4)
    best = windows.argmax(-1)[..., None]

    def back(dy: Floats) -> Floats:
        spread = np.zeros_like(windows)
        np.put_along_axis(spread, best, dy[..., None], -1)
        dx = np.zeros_like(y)
        cells = spread.reshape(n, c, rows, columns, 2, 2).transpose(0, 1, 2, 4, 3, 5)
        dx[:, :, : 2 * rows, : 2 * columns] = cells.reshape(n, c, 2 * rows, 2 * columns)
        return dx

    backward.append(back)
    return np.take_along_axis(windows, best, -1)[..., 0]


def _relu(x: Floats, backward: list[Callable[[Floats], Floats]]) -> Floats:
    backward.append(lambda dy: dy * (x > 0))
    return np.maximum(x, 0)


def _connect(
    layer: str, parameters: Parameters, x: Floats, gradients: Parameters, backward: list[Callable[[Floats], Floats]]
) -> Floats:
    weight = parameters[f"{layer}.weight"]

    def back(dy: Floats) -> Floats:
        gradients[f"{layer}.weight"], gradients[f"{layer}.bias"] = dy.T @ x, dy.sum(0)
        return dy @ weight

    backward.append(back)
    return x @ weight.T + parameters[f"{layer}.bias"]


def _cross_entropy(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    scores = scores - scores.max(1, keepdims=True)
    sums = np.exp(scores).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float((np.log(sums[:, 0]) - scores[rows, labels]).mean())
    chances = np.exp(scores) / sums
    chances[rows, labels] -= 1
    return loss, chances / len(labels)


class _Adam:
    """Changes parameters in place. Source: D. Kingma, J. Ba, "Adam" (2014), algorithm 1."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._squares = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._steps = 0

    def update(self, gradients: Parameters, rate: float) -> None:
        self._steps += 1
        scale = rate * math.sqrt(1 - _SQUARES**self._steps) / (1 - _MOMENTUM**self._steps)
        for name, gradient in gradients.items():
            mean, square = self._means[name], self._squares[name]
            mean += (1 - _MOMENTUM) * (gradient - mean)
            square += (1 - _SQUARES) * (gradient**2 - square)
            self._parameters[name] -= scale * mean / (np.sqrt(square) + _TINY)
