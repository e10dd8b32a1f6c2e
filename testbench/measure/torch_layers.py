"""A graph, or one op of it, in torch: the judge in float64, and the library in strict float32, without TF32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from vgg16gpu.bench.peers.torch_net import module, tensor
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Op

Tensor: TypeAlias = Any
Scores: TypeAlias = npt.NDArray[np.float64]


def apply(op: Op, x: Tensor, dtype: Any) -> Tensor:
    """op.y for one input, computed in `dtype` on the device of `x`. Raises PeerError for an op that torch has not."""
    graph = Graph(GraphInput(op.x, tuple(x.shape)), (op,), (op.y,))
    with torch.no_grad():
        return _module(graph, x.device, dtype)(x.to(dtype))


def network(graph: Graph, device: str, dtype: Any) -> Callable[[Array], Scores]:
    """From (N, ...) inputs to the first output, both on the host; the weights lie on `device` as long as it lives.

    Raises PeerError for an op that torch has not.
    """
    net = _module(graph, torch.device(device), dtype)

    def run(x: Array) -> Scores:
        with torch.no_grad():
            return np.asarray(net(tensor(x).to(device).to(dtype)).double().cpu().numpy())

    return run


def _module(graph: Graph, device: Any, dtype: Any) -> Any:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return module(graph, lambda array: tensor(array).to(device).to(dtype))  # converted there: the host is slow at it
