"""A graph as a torch module: the usual layers with our weights, batch normalisation folded and ReLU in place.

The ops are those of the simplified graph, so torch has no work that we have not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, BatchNorm, Clip, Conv, Flatten, Gemm, Identity, Op, Pool, Relu, Softmax
from vgg16gpu.compiler.graph.window import Window

Tensor: TypeAlias = Any
Module: TypeAlias = Any
MakeTensor: TypeAlias = Callable[[Array], Tensor]


def module(graph: Graph, make: MakeTensor) -> Module:
    """Build the module from the graph's input to its first output. `make` brings an array to its device and type.

    Raises PeerError for an op without an equivalent.
    """
    layers = [layer for op in _path(graph) for layer in _layers(op, make)]
    return nn.Sequential(*layers).eval()


def outputs(graph: Graph, make: MakeTensor) -> Callable[[Tensor], list[Tensor]]:
    """Return a function from the graph's input to all of its outputs; `make` and errors as for `module`."""
    steps = [(op, nn.Sequential(*_layers(op, make)).eval()) for op in graph.ops]

    def run(x: Tensor) -> list[Tensor]:
        values = {graph.input.name: x}
        for op, layers in steps:
            values[op.y] = layers(values[op.x])
        return [values[name] for name in graph.outputs]

    return run


def tensor(array: Array) -> Tensor:
    """Return the array as a tensor on the CPU, without a copy where it is contiguous."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nobody writes
        return torch.from_numpy(np.ascontiguousarray(array))


def _path(graph: Graph) -> list[Op]:
    """Return the ops that lead to the first output. Every op has one input: a chain."""
    producers = {op.y: op for op in graph.ops}
    path: list[Op] = []
    name = graph.outputs[0]
    while name in producers:
        path.insert(0, producers[name])
        name = path[0].x
    return path


def _layers(op: Op, make: MakeTensor) -> Iterator[Module]:
    match op:
        case Conv():
            yield from _conv(op, make)
        case Pool():
            yield from _pool(op)
        case Gemm():
            if op.flattens:
                yield nn.Flatten()  # gives ONNX order in both memory formats
            yield _linear(op, make)
            if op.relu:
                yield nn.ReLU(inplace=True)
        case BatchNorm():
            yield _batch_norm(op, make)
        case Relu():
            yield nn.ReLU()
        case Clip() if not op.others:
            yield nn.Hardtanh(*op.range)
        case Flatten():
            yield nn.Flatten()
        case Softmax():
            yield nn.Softmax(dim=-1)
        case Identity():
            return
        case _:
            raise PeerError(f"torch: no equivalent of {type(op).__name__} '{op.y}' is known: not compared")


def _conv(op: Conv, make: MakeTensor) -> Iterator[Module]:
    outputs, channels = op.weight.shape[:2]
    yield from _unequal_padding(op.window, 0.0)
    layer = nn.Conv2d(
        channels,
        outputs,
        op.window.kernel,
        op.window.strides,
        _padding(op.window),
        bias=op.bias is not None,
        device="meta",
    )
    yield _with_weights(layer, op.weight, op.bias, make)
    if op.relu:
        yield nn.ReLU(inplace=True)
    if op.pool:
        yield nn.MaxPool2d(2)


def _linear(op: Gemm, make: MakeTensor) -> Module:
    outputs, inputs = op.weight.shape
    layer = nn.Linear(inputs, outputs, bias=op.bias is not None, device="meta")
    return _with_weights(layer, op.weight, op.bias, make)


def _pool(op: Pool) -> Iterator[Module]:
    window = op.window
    if op.kind == "max":
        yield from _unequal_padding(window, -torch.inf)
        yield nn.MaxPool2d(window.kernel, window.strides, _padding(window))
    elif window.pads[:2] != window.pads[2:]:
        raise PeerError(f"torch: average pool '{op.y}' has unequal padding {tuple(window.pads)}: not compared")
    else:
        counted = op.count_include_pad
        yield nn.AvgPool2d(window.kernel, window.strides, _padding(window), count_include_pad=counted)


def _batch_norm(op: BatchNorm, make: MakeTensor) -> Module:
    layer = nn.BatchNorm2d(op.scale.size, eps=op.epsilon, device="meta")
    layer.running_mean, layer.running_var, layer.num_batches_tracked = make(op.mean), make(op.variance), None
    return _with_weights(layer, op.scale, op.shift, make)


def _with_weights(layer: Module, weight: Array, bias: Array | None, make: MakeTensor) -> Module:
    layer.weight = nn.Parameter(make(weight), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(make(bias), requires_grad=False)
    return layer


def _padding(window: Window) -> tuple[int, int]:
    """Return the padding for the layer itself: all of it where it is the same on both sides."""
    equal = window.pads[:2] == window.pads[2:]
    return (window.pads.top, window.pads.left) if equal else (0, 0)


def _unequal_padding(window: Window, value: float) -> Iterator[Module]:
    pads = window.pads
    if pads[:2] != pads[2:]:
        yield nn.ConstantPad2d((pads.left, pads.right, pads.top, pads.bottom), value)
