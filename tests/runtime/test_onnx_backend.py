"""The interface of onnx.backend.base on top of sessions."""

import gc
import unittest

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.support.counting_device import Counting
from tests.support.small_models import add, model, node, normal, reshape, unsupported, value
from vgg16gpu.errors import DeviceError, InputError, ModelError
from vgg16gpu.runtime import onnx_backend as backend

NAMES = {"cpu": "CPU", "cuda": "CUDA"}


# ---- The backend


def test_devices_are_called_as_in_onnx():
    assert backend.supports_device("CPU")
    for name in ("cpu", "TPU", "CUDA:x", "CUDA:999", ""):
        assert not backend.supports_device(name)
    with pytest.raises(DeviceError, match="accepted: CPU, CUDA, CUDA:N"):
        backend.prepare(add(), "TPU")


@pytest.mark.parametrize("form", [list, tuple, lambda arrays: dict(zip("ab", arrays, strict=True))])
def test_inputs_may_come_in_any_form(device, form):
    a, b = normal(2, 3), normal(3)
    outputs = backend.run_model(add(), form([a, b]), NAMES[device.facts.kind])
    assert isinstance(outputs, tuple)
    assert_array_equal(outputs[0], a + b)
    assert_array_equal(outputs["y"], a + b)


def test_weights_that_are_declared_as_inputs_are_not_asked_for(device):
    w = normal(3)
    made = model([node("Add", ["w", "x"], ["y"])], [value("w", [3]), value("x", [3])], [value("y", [3])], [("w", w)])
    x = normal(3)
    (y,) = backend.run_model(made, [x], NAMES[device.facts.kind])
    assert_array_equal(y, x + w)
    with pytest.raises(InputError, match="2 inputs are given; this model takes 1"):
        backend.run_model(made, [w, x], NAMES[device.facts.kind])


def test_a_refused_model_is_skipped_by_the_runner_of_onnx():
    assert issubclass(backend.RefusedError, unittest.SkipTest)
    assert issubclass(backend.RefusedError, ModelError)
    with pytest.raises(backend.RefusedError, match=r"Sin 'a_Sin' \(opset 21\)"):
        backend.prepare(unsupported())
    assert not backend.is_compatible(unsupported())
    assert backend.is_compatible(add())


def test_what_only_the_shapes_show_is_refused_by_the_run():
    rep = backend.prepare(reshape())
    with pytest.raises(backend.RefusedError, match="Reshape"):
        rep.run([normal(6), np.array([4, 2])])
    assert rep.run([normal(6), np.array([3, 2])])[0].shape == (3, 2)


def test_what_the_garbage_collector_finds_in_the_midst_of_a_run_is_closed_behind_it(monkeypatch, device):
    """A device takes one call at a time: while it records a graph, memory cannot be freed."""
    freed = []

    class Collecting(Counting):
        def bind(self, steps, bases, **how):
            before = len(self.used)
            gc.collect()
            freed.append(before - len(self.used))
            return super().bind(steps, bases, **how)

    collecting = Collecting(device)
    monkeypatch.setattr(backend, "_opened", lambda _: collecting)
    gc.collect()
    gc.freeze()  # each collection then looks at what this test has made alone
    inputs = [normal(1, 3), normal(3)]
    forgotten, rep = backend.prepare(add()), backend.prepare(add())
    forgotten.run(inputs)
    in_use = len(collecting.used)
    forgotten.itself = forgotten  # so that it goes with the garbage collector alone
    del forgotten
    rep.run(inputs)
    assert len(collecting.used) == in_use
    assert not any(freed)
    del rep
    assert not collecting.used
    gc.unfreeze()


# ---- Single nodes


def test_a_node_runs_by_itself(device):
    name = NAMES[device.facts.kind]
    a, b = normal(2, 3), normal(3, 4)
    (y,) = backend.run_node(node("MatMul", ["a", "b"], ["y"]), [a, b], name)
    assert_allclose(y, a @ b, rtol=1e-5, atol=1e-6)
    (y,) = backend.run_node(node("Softmax", ["x"], ["y"]), a, name)
    assert_allclose(y.sum(axis=1), 1, rtol=1e-6)
    (y,) = backend.run_node(node("Clip", ["x", "", "high"], ["y"]), [a, np.float32(0.25)], name)
    assert_array_equal(y, np.minimum(a, np.float32(0.25)))


def test_the_caller_may_say_what_a_node_gives(device):
    x = normal(2)
    run = backend.run_node(node("Relu", ["x"], ["y"]), [x], NAMES[device.facts.kind], [(np.float32, (2,))])
    assert_array_equal(run[0], np.maximum(x, 0))


def test_the_inputs_of_a_node_are_counted():
    with pytest.raises(InputError, match="1 inputs are given; Add 'a_Add' takes 2"):
        backend.run_node(node("Add", ["a", "b"], ["y"]), [normal(2)])
    with pytest.raises(backend.RefusedError, match="Sin"):
        backend.run_node(node("Sin", ["x"], ["y"]), [normal(2)])
