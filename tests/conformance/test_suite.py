"""The conformance suite of ONNX: each test that must pass, and the tool that runs them all."""

import importlib
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.runner import Runner

from tests.conformance import suite as conformance
from vgg16gpu.runtime import onnx_backend

MUST = conformance.must_list(conformance.MUST)
KNOWN = ("Shape", "Constant", "ConstantOfShape")  # their outputs follow from shapes and constants: nothing to compute
IN_MAKE_TEST = (  # by modules of onnx that take no second
    *("test_conv_with_strides_padding", "test_gemm_all_attributes", "test_softmax_axis_1", "test_lrn"),
    *("test_add_bcast", "test_gather_negative_indices", "test_clip_splitbounds", "test_shape"),
)


def array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def case_of(name):
    """Return a test, made by its own module of onnx: all modules take 15 seconds."""
    if name not in IN_MAKE_TEST:
        return conformance.cases()[name]
    (path,) = (path for path in Path(node.__file__).parent.glob("*.py") if f'"{name}"' in path.read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{node.__name__}.{path.stem}")
    return next(case for case in node._NodeTestCases if case.name == name)


def _parameter(name):
    slow = pytest.mark.slow(reason="needs the whole suite, which takes 15 s to make; tests of eight ops stand for it")
    return pytest.param(name, marks=() if name in IN_MAKE_TEST else slow)


@pytest.mark.parametrize("name", [_parameter(name) for name in MUST])
@pytest.mark.every_case
def test_it_passes(device, name):
    case = case_of(name)
    rep = onnx_backend.prepare(case.model, {"cpu": "CPU", "cuda": "CUDA"}[device.facts.kind])
    for inputs, outputs in case.data_sets:
        found = rep.run([array(value) for value in inputs])
        expected = [array(value) for value in outputs]
        Runner.assert_similar_outputs(expected, found, rtol=case.rtol, atol=case.atol)
        counters = rep.session.device.counters
        before = counters.launches
        rep.run([array(value) for value in inputs])
        computes = any(y.dtype.kind == "f" and y.size for y in expected)
        assert (counters.launches > before) == (computes and case.model.graph.node[0].op_type not in KNOWN)


@pytest.mark.slow(reason="needs the whole suite; `make conformance` names what must pass and is not there")
def test_there_are_180_that_must_pass():
    assert len(MUST) == len(set(MUST)) == 180
    assert set(MUST) <= set(conformance.cases())


# ---- The tool


class Wrong(onnx_backend.VggBackendRep):
    """Every float is one bit off, or the run is not possible."""

    def run(self, inputs, **kwargs):
        (y,) = super().run(inputs, **kwargs)
        if y.dtype != np.float32:
            raise RuntimeError("out of order")
        return (y + np.float32(1),)


@pytest.mark.slow(reason="needs the whole suite; about the tool, not the engine")
def test_wrong_answers_and_exceptions_are_failures(tmp_path, capsys, monkeypatch):
    must = tmp_path / "must.txt"
    must.write_text("test_sin")
    monkeypatch.setattr(onnx_backend, "VggBackendRep", Wrong)
    pattern = "^test_(add|sin|shape)$"
    assert conformance.main(["--match", pattern, "--jobs", "0", "--must", str(must)]) == 1
    failures = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL: ")]
    assert len(failures) == 3
    assert any("test_add (Add) failed" in line for line in failures)
    assert any("test_shape (Shape) failed: RuntimeError: out of order" in line for line in failures)
    assert any("test_sin (Sin) must pass, and is refused" in line for line in failures)
