"""A model that is opened once: what it is made of, and that a command opens and simplifies its file once."""

from __future__ import annotations

import shutil
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from vgg16gpu.cli import cli
from vgg16gpu.compiler import model as model_module
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx import file as onnx_file
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.session import Session
from vgg16gpu.zoo.digits import heldout

X = heldout()[1][:3]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often model files are mapped, by their names, and graphs simplified."""
    done: Counter[str] = Counter()
    map_file, simplify = onnx_file.map_file, model_module.simplify

    def mapped(path: Path) -> memoryview:
        done[path.name] += 1
        return map_file(path)

    def simplified(*arguments: Any, **options: Any) -> Graph:
        done["simplified"] += 1
        return simplify(*arguments, **options)

    monkeypatch.setattr(onnx_file, "map_file", mapped)
    monkeypatch.setattr(model_module, "simplify", simplified)
    return done


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """The digits net, with scales beside it, and inputs."""
    path = Path(shutil.copy(digits_model(), tmp_path / "net.onnx"))
    shutil.copy(f"{digits_model()}.int8.json", f"{path}.int8.json")
    np.save(tmp_path / "x.npy", heldout()[1][:40])
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["info", "NET"],
        ["info", "NET", "--attributes"],
        ["infer", "x.npy", "--model", "NET"],
        ["calibrate", "NET", "--images", "x.npy"],
    ],
    ids=" ".join,
)
def test_one_command_opens_and_simplifies_once(
    command: list[str], net: Path, work: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(net.parent)
    device = [] if command[0] == "info" else ["--device", "cpu"]
    result = CliRunner().invoke(cli, [str(net) if word == "NET" else word for word in command] + device)
    assert result.exit_code == 0, result.output
    assert work["net.onnx"] == 1
    assert work["simplified"] == ("--attributes" not in command)


def test_whatever_is_a_model_gives_the_same(net: Path) -> None:
    with Engine("digits", device="cpu") as engine:
        expected = engine.run(X)
    for source in (str(net), net, net.read_bytes(), onnx.load(net), Model(net)):
        with Engine(source, device="cpu") as engine:
            np.testing.assert_array_equal(engine.run(X), expected)


def test_engines_and_sessions_share_a_model(net: Path, work: Counter[str]) -> None:
    model = Model(net)
    with Engine(model, device="cpu") as a, Engine(model, device="cpu", batch=3) as b, Session(model, "cpu"):
        np.testing.assert_array_equal(a.run(X), b.run(X))
        assert a.graph is b.graph
    assert Model.of(model) is model
    assert (work["net.onnx"], work["simplified"]) == (1, 1)


def test_a_model_in_memory_has_no_file_and_so_no_scales_beside_it() -> None:
    model = Model(digits_model().read_bytes())
    assert (repr(model), model.is_on_disk) == ("Model(the model in memory)", False)
    with pytest.raises(InputError, match="the model in memory has no file; save it, and give the path"):
        _ = model.path
    with pytest.raises(InputError, match="int8 needs scales, and no file of them lies beside it; give scales"):
        Engine(model, device="cpu", precision="int8")
    assert repr(Model("digits")).endswith("digits.onnx)")


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(InputError, match="model is 5; give the path of an ONNX file, 'digits', the bytes of a file"):
        Model.of(cast(Any, 5))
    with pytest.raises(ModelError, match=r"no-such\.onnx: no such file"):
        Model("no-such.onnx")


def sized(shape: Sequence[int], nodes: Sequence[tuple[str, list[str], str, dict[str, Any]]]) -> onnx.ModelProto:
    """A file of a few bytes whose input claims a shape."""
    made = [helper.make_node(op, operands, [result], **options) for op, operands, result, options in nodes]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    constants = [onnx.numpy_helper.from_array(np.float32([3]), "c")]
    graph = helper.make_graph(made, "graph", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


POOLED: list[tuple[str, list[str], str, dict[str, Any]]] = [
    ("Sub", ["t", "c"], "s", {}),
    ("GlobalAveragePool", ["s"], "p", {}),
    ("Flatten", ["p"], "y", {}),
]
FIRST: list[tuple[str, list[str], str, dict[str, Any]]] = [("Identity", ["x"], "t", {}), *POOLED]
LAST: list[tuple[str, list[str], str, dict[str, Any]]] = [("Transpose", ["x"], "t", {"perm": [0, 3, 1, 2]}), *POOLED]


@pytest.mark.parametrize(
    ("shape", "nodes", "message"),
    [
        ([1, 2**31, 4, 4], FIRST, "too many values: an image has fewer than"),
        ([1, 2**62, 2**62, 4], FIRST, "too many values"),
        ([1, 3, 2**31, 2**31], FIRST, "too many values"),
        ([2**40, 3, 4, 4], FIRST, "too many values"),
        ([1, 2**31], [("Relu", ["x"], "y", {})], "too many values"),
        ([1, 2**30, 1, 1], FIRST, "1,073,741,824 channels; an engine takes at most 65,536"),
        ([1, 1, 1, 2**30], LAST, "1,073,741,824 channels; an engine takes at most 65,536"),
        ([65536, 3, 4, 4], FIRST, "65,536 images; an engine takes at most 65,535"),
    ],
)
@pytest.mark.every_case
def test_a13_sizes_of_the_input_are_checked_before_anything_is_made_of_them(
    shape: list[int], nodes: list[tuple[str, list[str], str, dict[str, Any]]], message: str
) -> None:
    model = Model(sized(shape, nodes))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=message):
            model.preprocess(model.graph(), (1, *shape[1:]))
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
