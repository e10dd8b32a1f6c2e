"""What of a model can be explained: the layers that have feature maps, and the classes that have scores."""

from __future__ import annotations

from vgg16gpu.compiler.class_scores import class_count, gives_probabilities
from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.names import names_of_layers
from vgg16gpu.errors import ModelError
from vgg16gpu_serving.served import Explainable, Tensor


def explainable(model: Model, sample: Shape) -> Explainable:
    """Return what can be explained of a model for images of one size. sample: an input's row, as the file has it."""
    loaded = model.loaded()
    try:
        shapes = infer_shapes(loaded, (1, *sample))
    except ModelError:  # of an op that the passes make simpler first
        return Explainable((), 0, are_probabilities=False)
    names = names_of_layers(model.file.model.graph)
    layers = tuple(
        Tensor(names.get(op.y, op.y), shapes[op.y][1:])
        for op in loaded.ops
        if len(shapes[op.y]) == 4 and shapes[op.y][2] * shapes[op.y][3] > 1
    )
    return Explainable(layers, class_count(shapes[loaded.outputs[0]]), gives_probabilities(loaded))
