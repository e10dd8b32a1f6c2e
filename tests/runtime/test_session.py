"""Sessions: arrays as they are, plans for their shapes, and what is given back."""

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper

from tests.support.counting_device import Counting
from tests.support.small_models import FLOAT, HALF, INT64, add, model, node, normal, value
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Arithmetic, Concat, Slice
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.session import CAPACITY, Session, without_empty


@pytest.mark.parametrize("form", ["path", "str", "bytes", "message"])
def test_a_model_may_be_a_file_or_bytes_or_a_message(tmp_path, device, form):
    path = tmp_path / "add.onnx"
    onnx.save(add(), path)
    source = {"path": path, "str": str(path), "bytes": path.read_bytes(), "message": add()}[form]
    a, b = normal(2, 3), normal(3)
    with Session(source, device) as session:
        (y,) = session.run({"a": a, "b": b})
    assert_array_equal(y, a + b)
    assert y.dtype == np.float32


def test_a_closed_session_says_so(device):
    session = Session(add(), device)
    session.close()
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run({"a": normal(1, 3), "b": normal(3)})


def conv_softmax():
    """Two kernels for an image, and weights that are packed by a third."""
    weights = [("w", normal(4, 3, 3, 3)), ("b", normal(4))]
    nodes = [node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), node("Softmax", ["c"], ["y"], axis=1)]
    return model(nodes, [value("x", ["n", 3, 4, 4])], [value("y", None)], weights)


def test_plans_that_are_not_kept_and_closed_sessions_give_back_what_they_had(device):
    counting = Counting(device)
    with Session(conv_softmax(), counting) as session:
        in_use = []
        for rows in range(1, CAPACITY + 4):
            session.run({"x": normal(rows, 3, 4, 4)})
            in_use.append((len(counting.used), len(counting.bound)))
        memory, launches = in_use[0]
        assert memory > 0
        assert launches == 2  # the program and its round trip; what packed the weights is gone
        every = 1 + CAPACITY * (memory - 1)  # the weights lie there once
        assert in_use[CAPACITY - 1 :] == [(every, CAPACITY * launches)] * 4
    assert not counting.used
    assert not counting.bound


@pytest.mark.gpu
def test_the_driver_has_as_many_graphs_as_belong_to_plans_that_are_kept(gpu, monkeypatch):
    """Counted by the driver's own calls; and what other plans launch is as it was."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    live = set()
    instantiate, destroy = bindings.cuGraphInstantiate, bindings.cuGraphExecDestroy

    def instantiated(*arguments):
        error, executable = instantiate(*arguments)
        live.add(int(executable))
        return error, executable

    def destroyed(executable):
        live.remove(int(executable))
        return destroy(executable)

    monkeypatch.setattr(bindings, "cuGraphInstantiate", instantiated)
    monkeypatch.setattr(bindings, "cuGraphExecDestroy", destroyed)
    sequences = len(gpu._held.sequences)
    kept = {}
    with Session(conv_softmax(), gpu) as other, Session(conv_softmax(), gpu) as session:
        x = normal(1, 3, 4, 4)
        (expected,) = other.run({"x": x})
        of_a_plan = len(live)
        assert of_a_plan > 0
        for rows in range(1, 51):
            session.run({"x": normal(rows, 3, 4, 4)})
            kept[rows] = len(live) - of_a_plan, len(gpu._held.sequences) - sequences
        assert kept[1][0] == of_a_plan
        graphs, launches = kept[CAPACITY]
        assert graphs == CAPACITY * of_a_plan
        assert all(kept[rows] == (graphs, launches) for rows in range(CAPACITY, 51))
        assert_array_equal(other.run({"x": x})[0], expected)
        for rows in (50, 1):  # kept, and planned again
            inputs = normal(rows, 3, 4, 4)
            inputs[0] = x
            assert_allclose(session.run({"x": inputs})[0][:1].sum(axis=1), 1, rtol=1e-6)
    assert not live
    assert len(gpu._held.sequences) == sequences


def test_float16_models_take_and_give_float16(device):
    nodes = [node("Mul", ["x", "w"], ["y"])]
    w, x = np.array([2, 3, 60000], np.float16), np.array([[1, -2, 4]], np.float16)
    made = model(nodes, [value("x", [1, 3], HALF)], [value("y", [1, 3], HALF)], [("w", w)])
    with Session(made, device) as session:
        (y,) = session.run({"x": x})
        assert y.dtype == np.float16
        assert_array_equal(y, np.array([[2, -6, np.inf]], np.float16))
        with pytest.raises(InputError, match=r"input 'x' is float32 \(1, 3\); this model takes float16 \(1, 3\)"):
            session.run({"x": x.astype(np.float32)})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": normal(1, 3)}, "inputs 'a' are given; this model takes 'a', 'b', one array for each"),
        ({"a": normal(1, 3), "b": normal(3), "c": 1}, "'c'"),
        ({"a": normal(3), "b": normal(3)}, r"input 'a' is float32 \(3,\); this model takes float32 \(any, 3\)"),
        ({"a": normal(1, 4), "b": normal(3)}, r"\(1, 4\)"),
        ({"a": np.ones((1, 3)), "b": normal(3)}, "input 'a' is float64"),
        ({"a": np.ones((1, 3), ">f4"), "b": normal(3)}, "input 'a' is >f4"),
    ],
)
def test_inputs_that_the_model_does_not_take_are_named(device, inputs, message):
    with Session(add(), device) as session, pytest.raises(InputError, match=message):
        session.run(inputs)


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.STRING, TensorProto.BFLOAT16])
@pytest.mark.parametrize("role", ["input", "output"])
def test_element_types_that_are_not_supported_are_refused(device, role, kind):
    kinds = (kind, FLOAT) if role == "input" else (FLOAT, kind)
    made = model([node("Relu", ["x"], ["y"])], [value("x", [3], kinds[0])], [value("y", [3], kinds[1])])
    with pytest.raises(ModelError, match=f"{role} '.' has element type {TensorProto.DataType.Name(kind)}; float32,"):
        Session(made, device)


def test_inputs_that_are_no_tensors_are_refused(device):
    made = add()
    made.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("a", FLOAT, None))
    with pytest.raises(ModelError, match="input 'a' is a sequence; only tensors are supported"):
        Session(made, device)


def test_a_float_result_that_is_declared_as_whole_is_refused(device):
    made = model([node("Relu", ["x"], ["y"])], [value("x", [3])], [value("y", [3], INT64)])
    with Session(made, device) as session, pytest.raises(ModelError, match="output 'y'"):
        session.run({"x": normal(3)})


# ---- Values without elements


def graph(*ops, inputs, outputs):
    return Graph(GraphInput(inputs[0], (None,)), ops, outputs, tuple(GraphInput(name, (None,)) for name in inputs[1:]))


def test_outputs_without_elements_need_no_kernel(device):
    inputs = [value("x", [4, 3]), *(value(name, [1], INT64) for name in ("starts", "ends"))]
    made = model([node("Slice", ["x", "starts", "ends"], ["y"])], inputs, [value("y", None)])
    with Session(made, device) as session:
        (y,) = session.run({"x": normal(4, 3), "starts": np.array([2]), "ends": np.array([2])})
        assert y.shape == (0, 3)
        assert y.dtype == np.float32
        (y,) = session.run({"x": (x := normal(4, 3)), "starts": np.array([2]), "ends": np.array([9])})
        assert_array_equal(y, x[2:])


def test_what_only_an_empty_output_needs_is_left_out():
    nothing = Slice("a", "y", ("y",), (0,), (1,), (0,))
    twice = Arithmetic("b", "z", ("z",), ("b",))
    whole = graph(nothing, twice, inputs=("a", "b"), outputs=("y", "z"))
    left = without_empty(whole, infer_shapes(whole, {"a": (3,), "b": (2,)}))
    assert left.ops == (twice,)
    assert left.outputs == ("z",)
    assert [item.name for item in left.inputs] == ["b"]
    alone = graph(nothing, inputs=("a",), outputs=("y",))
    assert without_empty(alone, infer_shapes(alone, {"a": (3,)})) is None


def test_computing_with_a_value_without_elements_is_refused():
    nothing = Slice("a", "n", ("n",), (0,), (1,), (0,))
    both = graph(nothing, Concat("a", "y", ("y",), ("n",)), inputs=("a",), outputs=("y",))
    with pytest.raises(ModelError, match=r"value 'n' has shape \(0,\), without elements"):
        without_empty(both, infer_shapes(both, {"a": (3,)}))
