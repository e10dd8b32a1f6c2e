"""Every layer of a whole VGG16 at 224 pixels, on what it read: int8 by its bits, 16-bit precisions against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.planner.test_conv_wgmma_plan import vgg16
from tests.support.kernel_harness import normal, seeded
from tests.support.wgmma_harness import Trial, check
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Op, Shape
from vgg16gpu.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

PERIOD = 1_000_003  # of the random weights: 138 million would take seconds


def filled(graph: Graph) -> Graph:
    """The graph with weights that keep the size of what they read, and small biases."""
    random = seeded("vgg16")

    def array(shape: Shape, deviation: float) -> Array:
        return np.resize(normal(random, PERIOD, scale=deviation), shape)

    def with_weights(op: Op) -> Op:
        if not isinstance(op, Conv | Gemm):
            return op
        weight = array(op.weight.shape, (2 / op.weight[0].size) ** 0.5)
        return replace(op, weight=weight, bias=array(op.weight.shape[:1], 0.1))

    return replace(graph, ops=tuple(map(with_weights, graph.ops)))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("precision", ["int8", "fp16", "bf16"])
def test_every_layer(hopper: CudaDevice, precision: str, batch: int) -> None:
    check(hopper, Trial(filled(vgg16(224)), normal(seeded("x"), batch, 3, 224, 224), precision))
