"""Hostile files: one of each kind by hand, the mutators for ten seconds, and the fuzzer's own eyes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from tests.fuzz import models as fuzz
from tests.fuzz import worker as fuzz_worker
from tests.fuzz.cases import case
from tests.fuzz.seeds import SECRET, furnish, seeds, send_out
from tests.fuzz.worker import AGREES, CRASH, FAILURES, OUTSIDE, REFUSED, WRONG, Examiner, Outcome
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


def test_what_is_wrong_or_lacks(place: Path) -> None:
    negative, shapeless, without_versions, without_outputs = (message() for _ in range(4))
    negative.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -4
    shapeless.graph.input[0].type.tensor_type.ClearField("shape")
    del without_versions.opset_import[:]
    del without_outputs.graph.output[:]
    assert refusal(place, negative).startswith("input 'input' has shape (1, 3, -4, 4)")
    assert refusal(place, shapeless).startswith("input 'input' is declared without a shape")
    assert refusal(place, without_versions).startswith("names no version of the ONNX operators")
    assert refusal(place, without_outputs).startswith("declares no output")


def test_external_data_elsewhere(place: Path) -> None:
    """No file of another folder is opened, whatever links there are; tests/compiler/onnx/test_file.py has the rest."""
    for location, reason in (
        (f"folder/../../{SECRET}", "only files in the model's own folder are read"),
        ("file:///etc/passwd", "only files in the model's own folder are read"),
        ("link.bin", "is a link that leaves the model's folder"),
        ("absolute.bin", "is a link that leaves the model's folder"),
        (f"away/{SECRET}", "is a link that leaves the model's folder"),
    ):
        model = message("external")
        send_out(model.graph.initializer[0], location, 0, 432)
        with fuzz_worker.opened_files() as opened:
            assert reason in refusal(place, model)
        folders = {Path(path).resolve().parent for path in opened if not path.endswith((".py", ".pyc"))}
        assert folders <= {place.parent}


# By the thousand


def test_no_hostile_file_does_harm(tmp_path: Path) -> None:
    """The first files are the seeds themselves, and these are run."""
    verdicts, changes = [], set()
    with Examiner(tmp_path / "place", 4, [0.0] * 4) as examiner:
        for number in range(80):
            assert case(number, 4).data == case(number, 4).data
            changes |= {*case(number, 4).changes}
            outcome = examiner.examine(number)
            assert outcome.verdict not in FAILURES, outcome
            verdicts.append(outcome.verdict)
    assert verdicts[: len(seeds())] == [AGREES] * len(seeds())
    assert verdicts.count(REFUSED) > 40
    assert len(changes) > 20


@pytest.mark.slow(reason="more of the same, in processes of their own")
def test_no_hostile_file_of_many_does_harm(tmp_path: Path) -> None:
    record = tmp_path / "fuzz.json"
    arguments = ["--first", "80", "--cases", "1420", "--seed", "4"]
    code = fuzz.main([*arguments, "--keep", str(tmp_path / "kept"), "--output", str(record)])
    found = json.loads(record.read_text())
    assert (code, found["failures"], found["cases"]) == (0, [], 1420)
    assert found["verdicts"][REFUSED] > 710
    assert found["verdicts"][AGREES] > 71
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


def test_other_files_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(_: Path) -> None:
        os.close(os.open(tmp_path / "place" / "model" / "absolute.bin", os.O_RDONLY))
        raise ModelError("as if nothing had happened")

    outcome = examined(tmp_path, monkeypatch, harm)
    assert outcome.verdict == OUTSIDE
    assert "absolute.bin" in outcome.report


def test_wrong_answers_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fuzz_worker.Session.run

    def a_little_off(*arguments: object) -> tuple[object, ...]:
        return tuple(array + np.float32(1e-3) for array in run(*arguments))  # type: ignore[arg-type]

    with Examiner(tmp_path / "place", 0, [0.0] * 4) as examiner:
        monkeypatch.setattr(fuzz_worker.Session, "run", a_little_off)
        outcome = examiner.examine(0)
    assert outcome.verdict == WRONG
    assert "values differ" in outcome.report
