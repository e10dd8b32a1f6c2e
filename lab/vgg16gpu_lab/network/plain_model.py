"""A model that every version of S5 can run, made for the run or a user's own, and what it is run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import ModelError
from vgg16gpu_lab.ladder.given import given_inputs
from vgg16gpu_lab.ladder.layers import sites


@dataclass(frozen=True, eq=False)
class PlainModel:
    """A chain of convolutions, max-pools and fully connected layers, and its inputs."""

    model: Model
    graph: Graph  # simplified
    shape: Shape  # of the input: (1, C, H, W)
    x: Array  # (N, C, H, W)


def plain_model(path: Path, inputs: Path | None = None, size: int | None = None) -> PlainModel:
    """Return the model at an image size, or at its own, with the inputs of a file or folder, or the testbench's ten.

    Raises ModelError for a model that a version of S5 cannot run, and InputError for inputs that do not fit it.
    """
    model = Model(path)
    graph = model.graph()
    shape = resolve_input_shape(graph, 1, None if size is None else (size, size))
    if len(shape) != 4:
        raise ModelError(f"{model.name}: input '{graph.input.name}' has shape {shape}; S5 takes images, (N, C, H, W)")
    try:
        sites(graph, shape)
    except ModelError as error:
        raise ModelError(f"{model.name}: S5 takes plain VGGs: {error}") from error
    x = given_inputs(inputs, model, graph, shape) if inputs else np.ascontiguousarray(sample_inputs(shape[1:]))
    return PlainModel(model, graph, shape, x)
