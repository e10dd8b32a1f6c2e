"""Write a VGG with random weights as ONNX: every byte is a function of the arguments.

The weights have He's variance, so that the signal neither grows nor dies; the biases are not zero; and the last bias
makes the mean answer to eight pictures zero. Without that a random net gives all pictures nearly the same scores, and
no test could tell the right answer from the answer to another picture.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.compiler.onnx.file import OnnxFile
from vgg16gpu.compiler.onnx.metadata import NOTE_KEY, PREPROCESS_KEY, RANDOM_NOTE
from vgg16gpu.compiler.onnx.wire import INSIDE
from vgg16gpu.compiler.vgg.architecture import EPSILON, Vgg, VggLayer
from vgg16gpu.errors import ModelError
from vgg16gpu.io.files import Progress, atomic_writer
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import Floats, normalise
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.shown import printable
from vgg16gpu.io.synthetic import CALIBRATION_SEED, structured_images
from vgg16gpu.zoo import center_scores
from vgg16gpu.zoo.center_scores import Doubles, Fixed
from vgg16gpu.zoo.model_writer import LIMIT, SIGMA, IntegerStream, ModelWriter, he_scale, scaled

Stage: TypeAlias = Callable[[Doubles], Doubles]  # one layer of the convolutional part, on one picture

CALIBRATION_IMAGES: Final = 8
LARGEST_FILE: Final = 2**31 - 1  # bytes; protobuf's limit

_BIAS_SCALE = np.float32(0.125 / SIGMA)
_WEIGHTS_AT_ONCE = 1 << 22  # of a fully connected layer
_MULTIPLY_ADDS_PER_WEIGHT = 1000  # take about as long as making, hashing and writing one weight


def make_vgg(
    path: str | Path,
    *,
    variant: str = "vgg16",
    size: int = 224,
    batch_norm: bool = False,
    batch: int | None = None,
    seed: int = 0,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    progress: Progress | None = None,
) -> str:
    """Write a VGG with seeded random weights and return the SHA-256 of what was written, as hexadecimal digits.

    Input "input" (batch, 3, size, size), output "output" (batch, classes); any batch unless `batch` is given. `width`
    is the number of channels of the first block (VGG: 64), `hidden` that of the fully connected layers. Where
    `weights_file` names one the weights are there, and the checksum is of both, the model first. Needs under 1 GB of
    memory. Raises ModelError for a net that cannot be built or a file that cannot be written; nothing of it is left
    then.
    """
    net = Vgg(variant, size, batch_norm, batch, width, hidden, classes)
    if seed < 0:
        raise ModelError(f"seed is {seed}; it must not be negative")
    beside = weights_file(net, Path(path))
    writer = _writer(net, beside.name if beside else "")
    outside = atomic_writer(beside) if beside else contextlib.nullcontext()
    with contextlib.ExitStack() as undo:
        with atomic_writer(Path(path)) as stream:
            with outside as data:
                writer.open(stream, data)
                _Generator(net, IntegerStream(seed), writer, progress).write()
                digest = writer.finish()
            if beside:  # in place before the model is: one that was there before must not meet these weights
                undo.callback(beside.unlink, missing_ok=True)
        undo.pop_all()
    return digest


def weights_file(net: Vgg, path: Path) -> Path | None:
    """Return the file beside `path` for weights too large for an ONNX file, named as by torch's exporter; or None.

    Raises ModelError where a reader would not find it there.
    """
    if _writer(net).nbytes <= LARGEST_FILE:
        return None
    beside = path.parent / f"{path.name}.data"
    if not path.name or any(part in path.name for part in ":\\") or not path.name.isprintable():
        raise ModelError(
            f"{printable(str(path))}: its weights need a file of their own, named after it, which this name does not "
            "allow; choose one of printable characters without ':' and '\\'"
        )
    for link in (path, beside):
        if link.is_symlink():
            raise ModelError(
                f"{link}: is a link, but a model whose weights are in a second file needs both in one folder; "
                "name the file that it leads to, or delete the link"
            )
    return beside


def external_file(file: OnnxFile) -> Path | None:
    """Return the file that holds a model's weights, if it is not its own."""
    for tensor in file.model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value != INSIDE:
                return file.path.parent / str(entry.value)
    return None


def _writer(net: Vgg, data_name: str = "") -> ModelWriter:
    tensors = {name: shape for layer in net.layers for name, shape in layer.parameters}
    metadata = {NOTE_KEY: RANDOM_NOTE, PREPROCESS_KEY: Preprocess.named("torchvision").to_json()}
    return ModelWriter(net.graph(), tensors, metadata, data_name)


class _Generator:
    """Makes the tensors in file order and carries the calibration pictures through the net on the way."""

    def __init__(self, net: Vgg, source: IntegerStream, writer: ModelWriter, progress: Progress | None) -> None:
        self._net, self._source, self._writer, self._progress = net, source, writer, progress
        self._done = 0
        weights = sum(math.prod(shape) for layer in net.layers for _, shape in layer.parameters)
        self._total = weights + CALIBRATION_IMAGES * (net.multiply_adds() // _MULTIPLY_ADDS_PER_WEIGHT)

    def write(self) -> None:
        """Write every tensor."""
        layers = self._net.layers
        rows = self._features([self._convolutional(layer) for layer in layers if layer.name.startswith("features")])
        *hidden, last = (layer for layer in layers if layer.kind == "Gemm")
        for layer in hidden:
            sums = self._fully_connected(layer, rows)
            bias = self._bias(layer)
            rows = [center_scores.quantise(center_scores.relu(row)) for row in sums + bias.astype(np.float64)]
        mean = center_scores.mean_of(self._fully_connected(last, rows))
        self._tensor(f"{last.name}.bias", (-mean).astype(np.float32))

    def _convolutional(self, layer: VggLayer) -> Stage:
        """Write the tensors of one layer; what it does to a calibration picture."""
        match layer.kind:
            case "Conv":
                weight, scale = self._source.integers(layer.shape), he_scale(math.prod(layer.shape[1:]))
                self._tensor(f"{layer.name}.weight", scaled(weight, scale))
                return partial(center_scores.convolution, weight=weight, scale=scale, bias=self._bias(layer))
            case "BatchNormalization":
                return self._batch_norm(layer)
            case "MaxPool":
                return center_scores.max_pool
            case _:
                return center_scores.relu

    def _batch_norm(self, layer: VggLayer) -> Stage:
        """Draw scale 1 ± 0.25, shift and mean ± 0.25, variance 1 ± 0.5."""
        spreads = ((1.0, 0.25), (0.0, 0.25), (0.0, 0.25), (1.0, 0.5))
        scale, shift, mean, variance = (
            self._tensor(name, (centre + self._source.integers(shape) * (spread / LIMIT)).astype(np.float32))
            for (name, shape), (centre, spread) in zip(layer.parameters, spreads, strict=True)
        )
        return partial(
            center_scores.batch_norm, scale=scale, shift=shift, mean=mean, variance=variance, epsilon=EPSILON
        )

    def _features(self, stages: Sequence[Stage]) -> list[Fixed]:
        """Return the convolutional part's result for each calibration picture, flattened."""
        pictures = structured_images(CALIBRATION_IMAGES, self._net.size, CALIBRATION_SEED)
        rows = []
        for image in normalise(pictures, IMAGENET_MEAN, IMAGENET_STD):
            x: Doubles = image.astype(np.float64)
            for stage in stages:
                x = stage(x)
            x = center_scores.average_pool(x, self._net.average_window)
            rows.append(center_scores.quantise(x.ravel()))
            self._advance(self._net.multiply_adds() // _MULTIPLY_ADDS_PER_WEIGHT)
        return rows

    def _fully_connected(self, layer: VggLayer, rows: Sequence[Fixed]) -> Doubles:
        """Write the weight, some rows at a time; its product with each of `rows`, without the bias."""
        outputs, inputs = layer.shape
        scale = he_scale(inputs)
        self._writer.begin(f"{layer.name}.weight")
        step = max(_WEIGHTS_AT_ONCE // inputs, 1)
        parts = []
        for start in range(0, outputs, step):
            weight = self._source.integers((min(step, outputs - start), inputs))
            self._values(scaled(weight, scale))
            parts.append(center_scores.fully_connected(rows, weight, scale))
        return np.concatenate(parts, axis=1)

    def _bias(self, layer: VggLayer) -> Floats:
        return self._tensor(f"{layer.name}.bias", scaled(self._source.integers(layer.shape[:1]), _BIAS_SCALE))

    def _tensor(self, name: str, array: Floats) -> Floats:
        self._writer.begin(name)
        self._values(array)
        return array

    def _values(self, array: Floats) -> None:
        self._writer.values(array)
        self._advance(array.size)

    def _advance(self, units: int) -> None:
        self._done += units
        if self._progress:
            self._progress(self._done, self._total)
