"""The conformance suite of ONNX: each test that must pass, and the tool that runs them all."""

import json
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from tests.conformance import suite as conformance
from vgg16gpu.runtime import onnx_backend

MUST = conformance.must_list(conformance.MUST)
KNOWN = ("Shape", "Constant", "ConstantOfShape")  # their outputs follow from shapes and constants: nothing to compute


@pytest.fixture(scope="module")
def suite():
    return conformance.cases()


def array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def test_there_are_180_that_must_pass(suite):
    assert len(MUST) == len(set(MUST)) == 180
    assert set(MUST) <= set(suite)


@pytest.mark.parametrize("name", MUST)
def test_it_passes(suite, device, name):
    case = suite[name]
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


# ---- The tool


OUTCOMES = [
    conformance.Outcome("test_add", "node", "Add", "passed", launches=1),
    conformance.Outcome("test_shape", "node", "Shape", "passed", launches=0),
    conformance.Outcome("test_sin", "node", "Sin", "refused", "Sin is not supported"),
    conformance.Outcome("test_sub", "node", "Sub", "failed", "Traceback\nAssertionError: 1 is not 2"),
]


@pytest.mark.parametrize(
    ("outcomes", "must", "expected"),
    [
        (OUTCOMES[:3], ["test_add"], []),
        (OUTCOMES, ["test_add"], ["test_sub (Sub) failed: AssertionError: 1 is not 2"]),
        (OUTCOMES[:3], ["test_sin"], ["test_sin (Sin) must pass, and is refused: Sin is not supported"]),
        (OUTCOMES[:3], ["test_cos"], [f"test_cos must pass, and is not in the suite of onnx {onnx.__version__}"]),
    ],
)
def test_what_counts_as_broken(outcomes, must, expected):
    assert conformance.broken(outcomes, must) == expected


def test_tests_are_counted_under_the_op_that_they_are_about(suite):
    rows = {name: conformance.operator(suite[name]) for name in suite}
    assert rows["test_clip_example"] == rows["test_clip_example_expanded"] == "Clip"
    assert rows["test_constant"] == "Constant"
    assert rows["test_operator_addconstant"] == "Add"
    assert rows["test_vgg19"] == "(several: real)"


NODE = "this operator is not supported; export the model without it"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (f"the model in memory: Trilu 'y' (opset 14): {NODE}; supported operators: Add, Sum", f"Trilu: {NODE}"),
        (
            "the model in memory: 4 nodes are not supported:\n"
            f"  Less 'a' (opset 17): {NODE}\n"
            "  Cast 'b' (opset 17): it casts to DOUBLE; export the model in float32\n"
            f"  Cos 'it's c' (opset 17): {NODE}\n"
            f"  Less 'd' (opset 17): {NODE}; supported operators: Add, Sum",
            f"Cast: it casts to DOUBLE; export the model in float32 | Cos, Less: {NODE}",
        ),
        ("the model in memory: input 'x' is a sequence", "input is a sequence"),
        ("ai.onnx.ml.Scaler 's' (opset 1): no", "ai.onnx.ml.Scaler: no"),
        ("the model in memory: has opset 6; one of 7 to 25", "has opset 6; one of 7 to 25"),
    ],
)
def test_causes_are_reasons_without_names(reason, expected):
    assert conformance.cause(reason) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_a_record_says_what_became_of_each_test(order):
    more = conformance.Outcome("test_sin_double", "node", "Sin", "refused", "Sin is not supported")
    assert conformance.summary([*OUTCOMES, more][::order], ["test_add", "test_sin", "test_cos"]) == {
        "totals": {"passed": 2, "refused": 2, "failed": 1},
        "must": {"listed": 3, "passed": 1},
        "failed": {"test_sub": "Traceback\nAssertionError: 1 is not 2"},
        "ops": {"Add": {"passed": 1}, "Shape": {"passed": 1}, "Sin": {"refused": 2}, "Sub": {"failed": 1}},
        "launches_of_passed": {"test_add": 1, "test_shape": 0},
        "refused_by_cause": {"Sin is not supported": ["test_sin", "test_sin_double"]},
    }


def test_the_tool_runs_the_tests_of_the_suite_and_writes_what_they_gave(tmp_path, capsys):
    output = tmp_path / "conformance.json"
    pattern = "^test_(add|sin|shape|matmul_1d_1d)$"
    assert conformance.main(["--match", pattern, "--jobs", "0", "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    assert record["passed"]
    assert record["failures"] == []
    assert record["totals"] == {"passed": 3, "refused": 1, "failed": 0}
    assert record["must"]["listed"] == record["must"]["passed"] > 0
    assert record["launches_of_passed"]["test_shape"] == 0 < record["launches_of_passed"]["test_add"]
    ((cause, names),) = record["refused_by_cause"].items()
    assert cause.startswith("Sin: this operator is not supported")
    assert names == ["test_sin"]
    assert (record["onnx"], record["match"]) == (onnx.__version__, pattern)
    assert record["environment"].keys() >= {"device", "versions", "commit"}
    text = capsys.readouterr().out
    assert "passed without a kernel: test_shape\n" in text
    assert "FAIL" not in text


class Wrong(onnx_backend.VggBackendRep):
    """Every float is one bit off, or the run is not possible."""

    def run(self, inputs, **kwargs):
        (y,) = super().run(inputs, **kwargs)
        if y.dtype != np.float32:
            raise RuntimeError("out of order")
        return (y + np.float32(1),)


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


def verdicts(outcomes):
    return [(item.name, item.verdict) for item in outcomes]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow(reason="one process more, of seconds"))])
@pytest.mark.slow(reason="`make conformance` runs them so")
def test_other_processes_give_the_same(jobs):
    names = ["test_shape", "test_sin"]
    assert verdicts(conformance.outcomes(names, "CPU", jobs)) == [("test_shape", "passed"), ("test_sin", "refused")]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_test_whose_process_dies_has_failed(monkeypatch, jobs):
    class Pool:
        """Dies in test_shape; with several processes it is not known where."""

        def __init__(self, workers, _):
            self.workers = workers

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, run, names, devices):
            for name, device in zip(names, devices, strict=True):
                if name == "test_shape" or ("test_shape" in names and self.workers > 1):
                    raise BrokenProcessPool
                yield run(name, device)

    monkeypatch.setattr(conformance, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(conformance, "outcome", lambda name, _: conformance.Outcome(name, "node", "Op", "passed"))
    found = verdicts(conformance.outcomes(["test_add", "test_shape", "test_sin"], "CPU", jobs))
    assert found == [("test_add", "passed"), ("test_shape", "failed"), ("test_sin", "passed")]
