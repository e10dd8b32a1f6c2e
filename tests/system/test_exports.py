"""Every way in which the installed torch exports VGG11 to VGG19, against onnxruntime."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.exported_files import answers, in_float32
from tests.support.onnx_models import random_input
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, score_error

with warnings.catch_warnings():  # of its own age, of what else is not installed
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", exc_type=ImportError)
    from tests.support.export_forms import DYNAMO_FORMS, LEGACY_FORMS, NETWORKS, Form, network

pytestmark = pytest.mark.export

HALF_DRIFT = 5e-3  # of scores that onnxruntime rounds to float16 after every layer


@pytest.fixture(scope="module")
def dynamo_exporter() -> None:
    """Skip what needs the dynamo exporter where it cannot be used."""
    for name in ("onnxscript", "onnx_ir"):
        pytest.importorskip(name, reason=f"torch's dynamo exporter needs {name}", exc_type=ImportError)


def judged(path: Path, form: Form, x: Any) -> Any:
    """onnxruntime's scores of the file; in float32 where the file is in float16, and those of the file not far off."""
    (scores,) = answers(path, x)
    if not form.half:
        return scores
    (exact,) = answers(in_float32(onnx.load(path)), x)
    assert (score_error(scores, exact) <= HALF_DRIFT).all()
    return exact


def check(path: Path, form: Form) -> None:
    """The engine's scores are onnxruntime's, at batch 1, and at 2 where the file leaves it open."""
    onnx.checker.check_model(str(path), full_check=True)
    for batch in (1, 2) if form.open_batch else (1,):
        x = random_input((batch, 3, form.size, form.size), batch).astype(np.float16).astype(np.float32)
        with Engine(path, device="cpu", batch=batch) as engine:
            scores = engine.run(x)
        assert isinstance(scores, np.ndarray)
        assert (score_error(scores, judged(path, form, x)) <= SCORE_TOLERANCE).all()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", LEGACY_FORMS)
def test_the_legacy_exporter(tmp_path: Path, form: str, name: str) -> None:
    check(LEGACY_FORMS[form].export(network(name), tmp_path / "vgg.onnx"), LEGACY_FORMS[form])


@pytest.mark.usefixtures("dynamo_exporter")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", DYNAMO_FORMS)
def test_the_dynamo_exporter(tmp_path: Path, form: str, name: str) -> None:
    check(DYNAMO_FORMS[form].export(network(name), tmp_path / "vgg.onnx"), DYNAMO_FORMS[form])
