"""Feature maps of any layer, and the gradient of a class' score to the image, by engines that are built when asked for.

The maps are those of an engine that ends at the layer, in the precision that is served. The gradient is in fp32; where
the score comes from a softmax it is that of what the softmax reads for it: where a network is sure, the gradient of a
probability is zero.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from vgg16gpu.compiler.class_scores import ScoreIndex, before_softmax, class_count
from vgg16gpu.compiler.compile import EngineOptions, sampler
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import Pixels, default_mean, default_std, normalise
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.engine import Engine
from vgg16gpu_serving.served import Description, EngineChoice

if TYPE_CHECKING:
    from vgg16gpu.runtime.plans.gradients import Gradients

_KEPT: Final = 2  # engines that end at a layer; the one used longest ago goes first


class Explainer:
    """Explains images of one model, one at a time. `close` frees all; what is asked for later is built anew."""

    def __init__(self, choice: EngineChoice, description: Description) -> None:
        """Raises ModelError for what is no ONNX model."""
        self._choice, self._description = choice, description
        self._model = Model(choice.model)
        self._layers: OrderedDict[str, Engine] = OrderedDict()  # the one used last comes last
        self._gradients: tuple[Device, Gradients, str] | None = None  # those of this value

    def maps(self, image: Images, layer: str, most: int) -> tuple[Array, list[int]]:
        """Return the `most` feature maps with the largest mean magnitude, (1, K, H, W) float32, and their channels.

        image: (1, C, H, W) float32 or (1, H, W, C) uint8, as the kernels read it. Raises what Engine raises.
        """
        engine = self._engine(layer)
        found = engine.run(_pixels(image) if image.dtype == np.uint8 else engine.graph.input.to_file(_numbers(image)))
        if not isinstance(found, np.ndarray) or found.ndim != 4:
            raise InputError(f"layer '{layer}' has no feature maps; ask for one of the list")
        order = np.argsort(-np.abs(found[0]).mean(axis=(1, 2)), kind="stable")[:most]
        return np.ascontiguousarray(found[:, order]), order.tolist()

    def gradient(self, image: Images, class_index: int) -> Array:
        """Return a score's gradient to the normalised image, in the file's shape. Raises ModelError, InputError."""
        graph = self._model.graph()
        x = self._normalised(_pixels(image)) if image.dtype == np.uint8 else _numbers(image)
        shapes = infer_shapes(graph, x.shape)
        shape = shapes[graph.outputs[0]]
        classes = class_count(shape)
        if not classes:
            raise InputError(f"the model's first output has shape {list(shape)} and no classes: ask for a layer alone")
        if class_index >= classes:
            raise InputError(f"class {class_index}: the model has 0 to {classes - 1}")
        score = ScoreIndex(graph.outputs[0], tuple(each.item() for each in np.unravel_index(class_index, shape)))
        score = before_softmax(graph, shapes, score) or score
        weights = np.zeros(shapes[score.value], np.float32)
        weights[score.place] = 1
        gradients = self._opened_gradients(graph, score.value)
        return np.ascontiguousarray(graph.input.to_file(gradients.vjp(x, weights, [(0, 1)])))

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        while self._layers:
            self._layers.popitem()[1].close()
        self._close_gradients()

    def _engine(self, layer: str) -> Engine:
        if layer in self._layers:
            self._layers.move_to_end(layer)
            return self._layers[layer]
        while len(self._layers) >= _KEPT:
            self._layers.popitem(last=False)[1].close()
        choice, sides = self._choice, self._description.sample[1:]
        self._layers[layer] = Engine(
            self._model,
            device=choice.device,
            precision=choice.precision,
            size=(sides[0], sides[1]) if len(sides) == 2 else None,
            outputs=[layer],
            mean=choice.mean,
            std=choice.std,
        )
        return self._layers[layer]

    def _opened_gradients(self, graph: Graph, value: str) -> Gradients:
        """Return the gradients of a value, kept until another is asked for: most models have one for all classes."""
        from vgg16gpu.runtime.plans.gradients import Gradients  # noqa: PLC0415 - who asks for maps alone does without

        if self._gradients and self._gradients[2] == value:
            return self._gradients[1]
        self._close_gradients()
        device, _ = open_device(self._choice.device)
        wanted = replace(graph, outputs=(value,))
        options = EngineOptions(mean=self._choice.mean, std=self._choice.std)
        samples = sampler(self._model, options, wanted)
        gradients = Gradients(wanted, device, "fp32", "auto", samples)
        self._gradients = device, gradients, value
        return gradients

    def _close_gradients(self) -> None:
        if self._gradients:
            device, gradients, _ = self._gradients
            self._gradients = None
            gradients.close()
            device.close()

    def _normalised(self, pixels: Pixels) -> Array:
        channels = pixels.shape[-1]
        mean, std = self._choice.mean or default_mean(channels), self._choice.std or default_std(channels)
        return normalise(pixels, mean, std)


def _pixels(image: Images) -> Pixels:
    return np.asarray(image, np.uint8)


def _numbers(image: Images) -> Array:
    return np.asarray(image, np.float32)
