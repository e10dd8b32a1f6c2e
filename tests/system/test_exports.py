"""Every way in which the installed torch exports VGG11 to VGG19, against onnxruntime."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from tests.support.onnx_models import random_input
from tests.support.replicas import Array, answers, dynamo, equal_biases, in_float32, retyped, torch_legacy
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, score_error
from vgg16gpu.errors import ModelError

with warnings.catch_warnings():  # of its own age, of what else is not installed
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", exc_type=ImportError)
    from tests.support.export_forms import DYNAMO_FORMS, LEGACY_FORMS, NETWORKS, TRAINING_FORMS, VGG, Form, network

pytestmark = pytest.mark.export

HALF_DRIFT = 5e-3  # of scores that onnxruntime rounds to float16 after every layer


@pytest.fixture(scope="module")
def dynamo_exporter() -> None:
    """Skip what needs the dynamo exporter where it cannot be used."""
    for name in ("onnxscript", "onnx_ir"):
        pytest.importorskip(name, reason=f"torch's dynamo exporter needs {name}", exc_type=ImportError)


def judged(path: Path, form: Form, x: Array) -> Array:
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


@pytest.mark.usefixtures("dynamo_exporter")
@pytest.mark.parametrize("form", [name for name in DYNAMO_FORMS if "half" not in name])
def test_a_global_average_of_the_dynamo_exporter(tmp_path: Path, form: str) -> None:
    """AdaptiveAvgPool2d(1), which it writes as a mean over two axes."""
    path = DYNAMO_FORMS[form].export(network("vgg11", side=1), tmp_path / "vgg.onnx")
    assert "ReduceMean" in {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    check(path, DYNAMO_FORMS[form])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", TRAINING_FORMS)
def test_training_mode_is_refused(tmp_path: Path, form: str, name: str, request: pytest.FixtureRequest) -> None:
    """Every Dropout and BatchNormalization in training mode is named."""
    if TRAINING_FORMS[form].dynamo:
        request.getfixturevalue("dynamo_exporter")
    path = TRAINING_FORMS[form].export(network(name), tmp_path / "vgg.onnx")
    proto = onnx.load(path)
    with pytest.raises(ModelError) as caught:
        Engine(path, device="cpu")
    message = str(caught.value)
    offenders = [node for node in proto.graph.node if node.op_type == "Dropout" or is_training(node)]
    assert len(offenders) >= 2
    for node in offenders:
        pattern = f"{node.op_type} '{re.escape(node.name)}' \\(opset {proto.opset_import[0].version}\\): .*eval\\(\\)"
        assert re.search(pattern, message), f"{node.name} in:\n{message}"


def is_training(node: onnx.NodeProto) -> bool:
    """Whether a node is a normalisation by the batch."""
    modes = [attribute.i for attribute in node.attribute if attribute.name == "training_mode"]
    return node.op_type == "BatchNormalization" and modes == [1]


@pytest.mark.slow(reason="smaller nets are exported in every way")
def test_the_true_vgg16(tmp_path: Path) -> None:
    """138 million weights, 224x224 images."""
    form = Form(17, size=224)
    path = form.export(network("vgg16", width=64, side=7, hidden=4096, classes=1000), tmp_path / "vgg16.onnx")
    assert path.stat().st_size > 553_000_000
    check(path, form)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_are_torchvisions(name: str) -> None:
    """Names and shapes of all weights, and how modules are put together, where torchvision is installed."""
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    with torch.device("meta"):
        theirs = getattr(models, name)(weights=None, init_weights=False)
        ours = VGG(name, width=64, side=7, hidden=4096, classes=1000)
    shapes = [{key: value.shape for key, value in net.state_dict().items()} for net in (ours, theirs)]
    assert shapes[0] == shapes[1]
    for part in ("features", "avgpool", "classifier"):
        assert str(getattr(ours, part)) == str(getattr(theirs, part))


# ---- The replicas are what torch writes


def without_biases(net: Any) -> Any:
    """All of them zero, so that the exporter writes each length once."""
    for module in net.modules():
        if getattr(module, "bias", None) is not None:
            torch.nn.init.zeros_(module.bias)
    return net


def sketch(proto: ModelProto) -> list[tuple[Any, ...]]:
    """Operators, node names, attributes; initializers by name and shape."""
    nodes = [
        (node.op_type, node.name, {a.name: plain(helper.get_attribute_value(a)) for a in node.attribute})
        for node in proto.graph.node
        if node.op_type not in ("Constant", "Concat", "Identity")
    ]
    return [(proto.ir_version, proto.opset_import[0].version), *nodes]


def plain(value: Any) -> Any:
    """An attribute's value, floats as short as they were written."""
    return round(value, 6) if isinstance(value, float) else value


REPLICAS: dict[str, tuple[Callable[[], ModelProto], Form]] = {
    "legacy": (torch_legacy, Form(17, open_batch=True)),
    "legacy-opset9": (lambda: torch_legacy(9, 4), Form(9, open_batch=True)),
    "legacy-twice-the-size": (lambda: torch_legacy(size=128), Form(17, size=128, open_batch=True)),
    "legacy-half": (lambda: retyped(torch_legacy(batch=1), 1, 10), Form(17, half=True)),
    "dynamo": (dynamo, Form(18, dynamo=True)),
    "dynamo-half": (lambda: dynamo(half=True), Form(18, dynamo=True, half=True)),
    "dynamo-unoptimised": (lambda: dynamo(folded=False), Form(18, True, {"optimize": False})),
}


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_are_what_torch_writes(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    make, form = REPLICAS[name]
    if form.dynamo:
        request.getfixturevalue("dynamo_exporter")
    path = form.export(network("vgg16"), tmp_path / "vgg.onnx")
    replica = make()
    exported = onnx.load(path, load_external_data=False)
    assert sketch(replica) == sketch(exported)
    ours, theirs = (
        {t.name: tuple(t.dims) for t in proto.graph.initializer if "." in t.name} for proto in (replica, exported)
    )
    assert ours == theirs


def test_equal_biases_are_written_as_identities(tmp_path: Path) -> None:
    path = Form(17, open_batch=True).export(without_biases(network("vgg16")), tmp_path / "vgg.onnx")
    exported, replica = onnx.load(path), equal_biases()
    operators = [node.op_type for node in exported.graph.node]
    assert operators == [node.op_type for node in replica.graph.node]
    assert operators.count("Identity") == 11
    assert len(exported.graph.initializer) == len(replica.graph.initializer)
    check(path, Form(17, open_batch=True))
