"""ONNX models of a node or two, for tests of sessions and of the backend."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(4)


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, weights=(), opset=21):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, name) for name, w in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"a_{op}", **attributes)


def add():
    return model([node("Add", ["a", "b"], ["y"])], [value("a", ["n", 3]), value("b", [3])], [value("y", ["n", 3])])


def reshape():
    return model([node("Reshape", ["x", "s"], ["y"])], [value("x", None), value("s", ["r"], INT64)], [value("y", None)])


def unsupported():
    return model([node("Sin", ["x"], ["y"])], [value("x", [3])], [value("y", [3])])


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)
