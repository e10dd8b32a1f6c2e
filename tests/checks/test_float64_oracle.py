"""checks/float64_oracle.py: the values are those of ONNX's own evaluator, and nearer than float32's."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_conv, op_max_pool

from vgg16gpu.checks.float64_oracle import Float64Oracle
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.errors import ModelError
from vgg16gpu.zoo.generate import make_vgg

RNG = np.random.default_rng(3)


def saved(path, nodes, shape, weights, more=()):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, sparse_initializer=list(more))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path)
    return path


def theirs(path, x):
    """Run ONNX's evaluator as it is, on the same numbers as float64."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x.astype(np.float64)})[0]


CONVOLUTIONS = {
    "plain": ((1, 4, 9, 8), (6, 4, 3, 3), {}),
    "padded": ((1, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 0, 2, 1]}),
    "strided": ((1, 4, 11, 8), (6, 4, 3, 2), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    "dilated": ((1, 4, 11, 9), (6, 4, 3, 2), {"dilations": [2, 3]}),
    "groups": ((1, 6, 7, 7), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 6, 7, 7), (6, 1, 3, 3), {"group": 6}),
    "same_upper": ((1, 4, 8, 7), (6, 4, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same_lower": ((1, 4, 8, 7), (6, 4, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "one axis": ((1, 4, 12), (6, 4, 5), {"pads": [2, 2]}),
}


@pytest.fixture
def own(monkeypatch):
    """Refuse the evaluator's own loops until the fixture is called."""
    kept = op_conv.Conv._run, op_max_pool.MaxPool._run

    def refused(*_, **__):
        raise AssertionError("the evaluator's own, which takes minutes")

    monkeypatch.setattr(op_conv.Conv, "_run", refused)
    monkeypatch.setattr(op_max_pool.MaxPool, "_run", refused)

    def give_back():
        op_conv.Conv._run, op_max_pool.MaxPool._run = kept

    return give_back


@pytest.mark.every_case
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_onnx_s(tmp_path, name, own):
    shape, kernel, attributes = CONVOLUTIONS[name]
    weights = {"w": RNG.standard_normal(kernel).astype(np.float32), "b": np.arange(kernel[0], dtype=np.float32)}
    path = saved(tmp_path / "m.onnx", [helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)], shape, weights)
    x = RNG.standard_normal(shape).astype(np.float32)
    (found,) = Float64Oracle(open_onnx(path)).values(x)
    own()
    np.testing.assert_allclose(found, theirs(path, x), rtol=0, atol=1e-12)


POOLS = {
    "plain": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "padded": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]},
    "dilated": {"kernel_shape": [2, 2], "dilations": [2, 3]},
    "up": {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_are_onnx_s(tmp_path, name, own):
    path = saved(tmp_path / "m.onnx", [helper.make_node("MaxPool", ["x"], ["y"], **POOLS[name])], (1, 3, 9, 8), {})
    x = RNG.standard_normal((1, 3, 9, 8)).astype(np.float32) - 5  # a padding of zeros would show
    if "ceil_mode" in POOLS[name]:
        own()
    (found,) = Float64Oracle(open_onnx(path)).values(x)
    own()
    np.testing.assert_array_equal(found, theirs(path, x))


def test_a_net_is_computed_in_float64(tmp_path):
    make_vgg(tmp_path / "m.onnx", variant="vgg11", size=32, width=8, hidden=16, classes=5)
    file = open_onnx(tmp_path / "m.onnx")
    x = RNG.standard_normal((1, 3, 32, 32)).astype(np.float32)
    (found,) = Float64Oracle(file).values(x)
    np.testing.assert_allclose(found, theirs(tmp_path / "m.onnx", x), rtol=1e-11)
    float32 = Oracle(tmp_path / "m.onnx").scores(x)
    assert 0 < np.abs(float32 - found).max() < 1e-4 * np.abs(found).max()


def test_casts_and_constants_lose_no_digits(tmp_path):
    """Compute a Cast to float32, a Constant, a sparse initializer and a batch of four in float64."""
    third = numpy_helper.from_array(np.array([1 / 3], np.float32))
    values = numpy_helper.from_array(np.array([0.1, 0.7], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5], np.int64), "w_at"), [3, 2])
    nodes = [
        helper.make_node("Constant", [], ["third"], value=third),
        helper.make_node("Mul", ["x", "third"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["cast", "w"], ["y"]),
    ]
    path = saved(tmp_path / "m.onnx", nodes, (4, 3), {}, more=[sparse])
    x = np.array([[1.1, 2.2, 3.3]], np.float32)
    (found,) = Float64Oracle(open_onnx(path)).values(x)
    scaled = x.astype(np.float64) * np.float64(np.float32(1 / 3))
    w = np.array([[0, np.float32(0.1)], [0, 0], [0, np.float32(0.7)]], np.float64)
    assert found.shape == (4, 2)
    np.testing.assert_allclose(found[:1], scaled @ w, rtol=1e-15)
    (inner,) = Float64Oracle(open_onnx(path), ["scaled"]).values(x)
    np.testing.assert_array_equal(inner[:1], scaled)


def test_what_the_evaluator_does_not_know_is_an_error_of_the_model(tmp_path):
    path = saved(tmp_path / "m.onnx", [helper.make_node("Frobnicate", ["x"], ["y"])], (1, 3), {})
    with pytest.raises(ModelError, match="in float64 are not known"):
        Float64Oracle(open_onnx(path)).values(np.zeros((1, 3), np.float32))
