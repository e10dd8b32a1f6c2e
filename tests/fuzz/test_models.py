"""Hostile files: one of each kind by hand, the mutators for ten seconds, and the fuzzer's own eyes."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from tests.fuzz import models as fuzz
from tests.fuzz import worker as fuzz_worker
from tests.fuzz.cases import case
from tests.fuzz.seeds import SECRET, furnish, seeds, send_out
from tests.fuzz.worker import AGREES, CRASH, HANG, OUTSIDE, REFUSED, WRONG, Examiner, Outcome, difference
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a hostile model goes, with all that it may ask for around it."""
    furnish(tmp_path)
    return tmp_path / "model" / "model.onnx"


def message(name: str = "vgg") -> ModelProto:
    return ModelProto.FromString(next(seed.data for seed in seeds() if seed.name == name))


def refusal(place: Path, data: bytes | ModelProto) -> str:
    """What `load` says, at once, in one line."""
    place.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    started = time.process_time()
    with pytest.raises(ModelError) as caught:
        load(place)
    assert time.process_time() - started < 5
    text = str(caught.value)
    assert text.startswith(f"{place}: ")
    return text.removeprefix(f"{place}: ")


# By hand


@pytest.mark.parametrize("length", [1, 100, 1000, 2800])
def test_truncated(place: Path, length: int) -> None:
    text = refusal(place, message().SerializeToString()[:length])
    assert text == f"is truncated or damaged after {length} bytes; copy or download it again"


def test_bit_flipped(place: Path) -> None:
    data = bytearray(message().SerializeToString())
    data[data.index(b"MaxPool")] ^= 0x20
    assert "'/pool1' (opset 17): this operator is not supported" in refusal(place, bytes(data))
    data[data.index(b"maxPool")] ^= 0x80
    assert refusal(place, bytes(data)) == "holds text that is not UTF-8; the file is damaged, export it again"


@pytest.mark.parametrize("dim", [1 << 40, 1 << 62, (1 << 63) - 1])
def test_huge_dimensions(place: Path, dim: int) -> None:
    model = message()
    model.graph.initializer[0].dims[0] = dim
    assert f"tensor 'conv0.weight' of shape ({dim}, 3, 3, 3) needs {dim * 108} bytes" in refusal(place, model)


def test_a_tensor_of_2_to_the_62_elements_without_any(place: Path) -> None:
    model = message()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = [1 << 31, 1 << 31]
    assert "does not hold its (2147483648, 2147483648) values but 0" in refusal(place, model)
    tensor.dims[:] = [1 << 62, 0]
    assert "has the dimensions (4611686018427387904, 0); the file is broken" in refusal(place, model)


def test_negative_dimensions(place: Path) -> None:
    model = message()
    model.graph.initializer[0].dims[0] = -4
    assert refusal(place, model).startswith("tensor 'conv0.weight' has a negative dimension (-4, 3, 3, 3)")
    model = message()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -4
    assert refusal(place, model).startswith("input 'input' has shape (1, 3, -4, 4)")


def test_cycles(place: Path) -> None:
    model = message()
    model.graph.node[0].input[0] = "pool1"
    said = refusal(place, model)
    assert "reads 'pool1' before MaxPool '/pool1' computes it; that needs the result of this node: the nodes" in said


def test_a_node_that_reads_itself(place: Path) -> None:
    model = message()
    model.graph.node[0].input[0] = "conv0"
    assert "reads 'conv0' before Conv '/conv0' computes it" in refusal(place, model)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (f"../{SECRET}", "only files in the model's own folder are read"),
        (f"folder/../../{SECRET}", "only files in the model's own folder are read"),
        (f"..\\{SECRET}", "only files in the model's own folder are read"),
        ("/etc/passwd", "only files in the model's own folder are read"),
        ("//etc/passwd", "only files in the model's own folder are read"),
        ("/dev/zero", "only files in the model's own folder are read"),
        ("C:\\weights.bin", "only files in the model's own folder are read"),
        ("file:///etc/passwd", "only files in the model's own folder are read"),
        ("link.bin", "is a link that leaves the model's folder"),
        ("absolute.bin", "is a link that leaves the model's folder"),
        ("zero.bin", "is a link that leaves the model's folder"),
        (f"away/{SECRET}", "is a link that leaves the model's folder"),
        ("loop.bin", "Too many levels of symbolic links"),
        ("pipe", "is not a regular file"),
        ("folder", "cannot be read"),
        ("absent.bin", "is missing; put that file beside the model"),
        ("empty.bin", "is empty"),
        ("pointer.bin", "git-LFS pointer"),
    ],
)
def test_external_data_elsewhere(place: Path, location: str, reason: str) -> None:
    model = message("external")
    send_out(model.graph.initializer[0], location, 0, 432)
    with fuzz_worker.opened_files() as opened:
        assert reason in refusal(place, model)
    assert {Path(path).resolve().parent for path in opened if not path.endswith((".py", ".pyc"))} <= {place.parent}


@pytest.mark.parametrize(
    ("offset", "length", "reason"),
    [
        (1 << 20, 432, "needs bytes 1048576 to 1049008 in 'weights.bin', which has"),
        (1 << 62, 432, "the file is truncated"),
        (-1, 432, "needs bytes -1 to 431"),
        (0, -1, "needs 432 bytes, the file gives it -1"),
        (0, 1 << 62, "needs 432 bytes, the file gives it 4611686018427387904"),
        ("", 432, "offset or length is not a number"),
        ("0x10", 432, "offset or length is not a number"),
    ],
)
def test_offsets_and_lengths_of_external_data(place: Path, offset: object, length: object, reason: str) -> None:
    model = message("external")
    send_out(model.graph.initializer[0], "weights.bin", offset, length)
    assert reason in refusal(place, model)


def deep_functions(depth: int, calls: int, last: str = "") -> ModelProto:
    """Functions F0, F1, ..., each of which calls the one before so many times; F0 calls `last`."""
    model = message()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("deep", 1)]
    for level in range(depth):
        below = f"F{level - 1}" if level else last
        names = ["x", *(f"m{index}" for index in range(calls - 1)), "y"]
        nodes = [
            helper.make_node(below or "Relu", [x], [y], domain="deep" if below else "")
            for x, y in itertools.pairwise(names)
        ]
        model.functions.append(helper.make_function("deep", f"F{level}", ["x"], ["y"], nodes, opsets))
    model.opset_import.append(opsets[1])
    model.graph.node[0].input[0] = "called"
    model.graph.node.insert(0, helper.make_node(f"F{depth - 1}", ["input"], ["called"], domain="deep"))
    return model


@pytest.mark.parametrize("model", [deep_functions(400, 1), deep_functions(3, 1, "F2"), deep_functions(1, 2, "F0")])
def test_deeply_nested_functions(place: Path, model: ModelProto) -> None:
    assert re.match(r"its function 'F\d+' calls itself or is nested more than 32 deep", refusal(place, model))


def test_functions_that_double_each_time(place: Path) -> None:
    assert re.match(
        r"has \d+ nodes of \d+ bytes once its functions are written out, at most", refusal(place, deep_functions(30, 2))
    )


def test_deeply_nested_graphs(place: Path) -> None:
    graph = onnx.GraphProto(name="innermost")
    for _ in range(30):
        outer = onnx.GraphProto(name="outer")
        outer.node.append(helper.make_node("If", ["input"], ["y"], then_branch=graph))
        graph = outer
    model = message()
    model.graph.node.insert(0, graph.node[0])
    assert refusal(place, model).startswith("has more than 60 messages inside each other")


def test_duplicate_names(place: Path) -> None:
    model = message()
    model.graph.node[1].output[0] = "conv0"
    assert refusal(place, model).startswith("the name 'conv0' is given to two values")
    model = message()
    model.graph.initializer.append(model.graph.initializer[0])
    assert refusal(place, model).startswith("the name 'conv0.weight' is given to two values")


def test_weights_in_two_places(place: Path) -> None:
    model = message()
    model.graph.initializer[1].float_data.extend([1.0] * 4)
    assert "tensor 'conv0.bias' has values in raw_data and float_data" in refusal(place, model)


def test_a_weight_of_text(place: Path) -> None:
    model = message()
    model.graph.initializer[1].CopyFrom(
        TensorProto(name="conv0.bias", data_type=TensorProto.STRING, dims=[4], string_data=[b"1"] * 4)
    )
    assert "has element type STRING" in refusal(place, model)


def test_a_name_that_would_break_a_line(place: Path) -> None:
    model = message()
    model.graph.node[0].name = "two\nlines"
    assert refusal(place, model) == "holds the name 'two\\nlines' with control characters; rename it"


# By the thousand


def test_cases_are_what_their_numbers_say() -> None:
    for number in (0, 17, 500, 1234):
        assert case(number, 3).data == case(number, 3).data
        assert case(number, 3).changes == case(number, 3).changes
    assert case(500, 3).data != case(500, 4).data
    kinds = {change for number in range(3000) for change in case(number).changes}
    assert len(kinds) >= 35


@pytest.mark.parametrize("number", range(len(seeds())), ids=[seed.name for seed in seeds()])
def test_seeds_are_valid(tmp_path: Path, number: int) -> None:
    with Examiner(tmp_path / "place", 0, [0.0] * 4) as examiner:
        assert examiner.examine(number) == Outcome(number, AGREES)


@pytest.mark.parametrize(
    ("first", "cases"), [(0, 300), pytest.param(300, 1200, marks=pytest.mark.slow(reason="more of the same"))]
)
def test_no_hostile_file_does_harm(tmp_path: Path, first: int, cases: int) -> None:
    record = tmp_path / "fuzz.json"
    arguments = ["--first", str(first), "--cases", str(cases), "--seed", "4"]
    code = fuzz.main([*arguments, "--keep", str(tmp_path / "kept"), "--output", str(record)])
    found = json.loads(record.read_text())
    assert found["failures"] == []
    assert code == 0
    assert found["cases"] == cases
    assert found["verdicts"][REFUSED] > cases // 2
    assert found["verdicts"][AGREES] > cases // 20
    assert len(found["reasons"]) > 50


# What the fuzzer sees


def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[..., object]) -> Outcome:
    """What becomes of a valid file when loading does harm."""
    with Examiner(tmp_path / "place", 0, [0.0] * 4) as examiner:
        monkeypatch.setattr(fuzz_worker, "load", harm)
        return examiner.examine(0)


def test_other_errors_are_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = examined(tmp_path, monkeypatch, lambda _: {}["key"])
    assert outcome.verdict == CRASH
    assert outcome.reason.startswith("KeyError at test_models.py:")
    assert "Traceback" in outcome.report


def test_much_memory_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = examined(tmp_path, monkeypatch, lambda _: np.ones(2 * fuzz_worker.LOAD_NBYTES, np.uint8))
    assert outcome.verdict == CRASH
    assert "MemoryError" in outcome.reason


@pytest.mark.parametrize("path", [SECRET, "model/absolute.bin", "/etc/passwd"])
def test_other_files_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def harm(_: Path) -> None:
        os.close(os.open(tmp_path / "place" / path, os.O_RDONLY))
        raise ModelError("as if nothing had happened")

    outcome = examined(tmp_path, monkeypatch, harm)
    assert outcome.verdict == OUTSIDE
    assert Path(path).name in outcome.report


def test_wrong_answers_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fuzz_worker.Session.run

    def a_little_off(*arguments: object) -> tuple[object, ...]:
        return tuple(array + np.float32(1e-3) for array in run(*arguments))  # type: ignore[arg-type]

    with Examiner(tmp_path / "place", 0, [0.0] * 4) as examiner:
        monkeypatch.setattr(fuzz_worker.Session, "run", a_little_off)
        outcome = examiner.examine(0)
    assert outcome.verdict == WRONG
    assert "values differ" in outcome.report


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0001], True),
        ([1.0, 2.0], [1.0, 2.001], False),
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [np.nan, 1.0], False),
        ([np.inf, 1.0], [np.inf, 1.0], True),
        ([-np.inf, 1.0], [np.inf, 1.0], False),
        ([1e30, 1.0], [np.inf, 1.0], False),
        ([[1.0]], [1.0], False),
    ],
)
def test_differences(found: list[float], expected: list[float], same: bool) -> None:
    assert (difference(np.array(found), np.array(expected), 1e-4) == "") is same


def hang_and_die(pipe: object, state: list[float], folder: Path, seed: int, numbers: range) -> None:
    """A worker that hangs at its first file, dies at the second, and is well then."""
    del folder, seed
    for number in numbers:
        state[0:4] = number, fuzz_worker.LOADING, time.monotonic(), time.process_time()
        while number == 0:
            pass
        if number == 1:
            os.abort()
        pipe.send((Outcome(number, REFUSED, "why"), 1 << 20))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("stage", "waited", "used", "late"),
    [
        (fuzz_worker.LOADING, 6, 6, True),
        (fuzz_worker.LOADING, 60, 1, False),  # others use the processor
        (fuzz_worker.RUNNING, 130, 0, True),  # nobody does: it waits for something
        (fuzz_worker.LOADING, 2, 6, False),  # on several cores
        (fuzz_worker.COMPILING, 60, 60, False),
        (fuzz_worker.COMPILING, 130, 130, True),
    ],
)
def test_late_is_who_has_had_the_time(
    monkeypatch: pytest.MonkeyPatch, stage: int, waited: float, used: float, late: bool
) -> None:
    monkeypatch.setattr(fuzz, "cpu_seconds", lambda _: 100.0 + used)
    worker = fuzz.Worker(mock.Mock(pid=1), None, [7, stage, time.monotonic() - waited, 100.0], range(9))
    assert worker.is_late == late


def test_the_time_of_a_process() -> None:
    before, started = fuzz.cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < started + 0.3:
        pass
    assert 0.2 < fuzz.cpu_seconds(os.getpid()) - before < 5
    assert fuzz.cpu_seconds(2**30) == 0


def test_hanging_and_dying_workers_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "work", hang_and_die)
    monkeypatch.setattr(fuzz, "CASE_SECONDS", 0.5)
    record, kept = tmp_path / "fuzz.json", tmp_path / "kept"
    arguments = ["--cases", "5", "--jobs", "1", "--keep", str(kept), "--output", str(record)]
    assert fuzz.main(arguments) == 1
    found = json.loads(record.read_text())
    assert [(item["number"], item["verdict"]) for item in found["failures"]] == [(0, HANG), (1, CRASH)]
    assert found["verdicts"][REFUSED] == 3
    assert not found["passed"]
    assert (kept / "hang-0-0" / "model.onnx").read_bytes() == case(0).data
    assert "exit code -6 loading" in (kept / "crash-0-1" / "report.txt").read_text()
    printed = capsys.readouterr().out
    assert "FAIL: hang: case 0 of seed 0" in printed
    assert "FAIL: 2 in all" in printed
