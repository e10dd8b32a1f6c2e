"""compiler/graph/costs.py: parameters and FLOP of ops, whoever computes them."""

import numpy as np

from vgg16gpu.compiler.graph.costs import op_costs
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Arithmetic, Conv, Gemm, GeneralConv, MatMul, Reshape
from vgg16gpu.compiler.graph.window import Pads, Window


def test_cost_and_parameters_of_general_ops():
    ops = (
        GeneralConv("x", "y", ("y",), ("w", "b"), Window((3, 3)), group=2),
        Reshape("y", "z", ("z",), (0, 4, 36)),
        MatMul("z", "p", ("p",), ("m",)),
        MatMul("p", "q", ("q",), ("z",), transpose_a=True),
        Arithmetic("q", "r", ("r",), ("q",), "mul"),
    )
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "m": (36, 5)}
    constants = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    graph = Graph(GraphInput("x", (2, 6, 8, 8)), ops, ("r",), constants=constants)
    found = op_costs(graph, (2, 6, 8, 8))
    assert [row.shape for row in found] == [(2, 4, 6, 6), (2, 4, 36), (2, 4, 5), (2, 5, 36), (2, 5, 36)]
    assert [row.parameters for row in found] == [112, 0, 180, 0, 0]
    assert [row.flop for row in found] == [2 * 288 * 27, 0, 2 * 40 * 36, 2 * 360 * 4, 0]


def test_a_convolution_counts_what_it_pools_away():
    weight = np.ones((4, 3, 3, 3), np.float32)
    for pool in (False, True):
        op = Conv("x", "y", ("y",), weight, None, Window((3, 3), pads=Pads(1, 1, 1, 1)), relu=True, pool=pool)
        assert op.flop((2, 3, 7, 9)) == 2 * 2 * 7 * 9 * 4 * 27


def test_a_fully_connected_layer_counts_the_same_where_it_flattens_a_map():
    weight = np.ones((5, 24), np.float32)
    assert Gemm("x", "y", ("y",), weight, None).flop((3, 24)) == 2 * 3 * 5 * 24
    assert Gemm("x", "y", ("y",), weight, None, flattens=True).flop((3, 6, 2, 2)) == 2 * 3 * 5 * 24
