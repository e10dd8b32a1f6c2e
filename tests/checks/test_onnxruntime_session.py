"""onnxruntime_session.py: exact integers on every processor, errors of ours, and nobody opens onnxruntime elsewhere."""

import ast
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from vgg16gpu.checks.onnxruntime_session import EXACT_INTEGERS, open_session

ROOT = Path(__file__).resolve().parents[2]
THE_PLACE = Path("vgg16gpu/checks/onnxruntime_session.py")
OPENERS = {"InferenceSession", "SessionOptions"}


def products() -> bytes:
    """x (n, 64) unsigned bytes times w (64, 64) signed ones, in int32."""
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 64])
    weight = helper.make_tensor("w", TensorProto.INT8, [64, 64], np.full(64 * 64, 127, np.int8).tobytes(), raw=True)
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


def test_pairs_of_products_do_not_saturate():
    """255 * 127 * 2 is beyond 16 bits, in which some processors add two products unless told otherwise."""
    session = open_session(products())
    assert session.get_session_options().get_session_config_entry(EXACT_INTEGERS) == "1"
    (y,) = session.run(None, {"x": np.full((3, 64), 255, np.uint8)})
    np.testing.assert_array_equal(y, np.full((3, 64), 64 * 255 * 127, np.int32))


def test_options_are_what_was_asked_for(monkeypatch):
    monkeypatch.delenv("VGG16GPU_THREADS", raising=False)
    options = open_session(products(), threads=3, optimise=False, arena=False, quiet=True).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 3)
    assert options.graph_optimization_level.name == "ORT_DISABLE_ALL"
    assert (options.enable_cpu_mem_arena, options.log_severity_level) == (False, 4)
    usual = open_session(products()).get_session_options()
    assert (usual.intra_op_num_threads, usual.enable_cpu_mem_arena, usual.log_severity_level) == (0, True, 3)
    assert usual.graph_optimization_level.name == "ORT_ENABLE_ALL"
    monkeypatch.setenv("VGG16GPU_THREADS", "2")
    assert open_session(products()).get_session_options().intra_op_num_threads == 2
    assert open_session(products(), threads=1).get_session_options().intra_op_num_threads == 1


def test_a_file_of_any_name(tmp_path):
    path = tmp_path / "m\udcfe.onnx"
    path.write_bytes(products())
    (y,) = open_session(path).run(None, {"x": np.ones((1, 64), np.uint8)})
    np.testing.assert_array_equal(y, np.full((1, 64), 64 * 127, np.int32))


def openings(root: Path) -> list[str]:
    """Where sources under `root` name what opens a session: as an attribute, a name, or something imported."""
    found = []
    for folder in ("vgg16gpu", "serving", "lab", "testbench", "tools", "tests", "models", "examples"):
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root)
            text = path.read_text(encoding="utf-8")
            if place != THE_PLACE and any(word in text for word in ("onnxruntime.backend", *OPENERS)):
                tree = ast.parse(text)
                found += [f"{place}:{line}" for line in sorted(set(lines_that_open(tree)))]
    return found


def lines_that_open(tree: ast.AST) -> list[int]:
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in OPENERS:
                lines.append(node.lineno)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                whole = {alias.name for alias in aliases} | {getattr(node, "module", None) or ""}
                if whole & OPENERS or any(name.startswith("onnxruntime.backend") for name in whole):
                    lines.append(node.lineno)
    return lines


def test_every_session_is_opened_in_one_place():
    assert (ROOT / THE_PLACE).is_file()
    assert not openings(ROOT), "call vgg16gpu.checks.onnxruntime_session.open_session there"


@pytest.mark.parametrize(
    "violation",
    [
        "import onnxruntime\nonnxruntime.InferenceSession('m.onnx')\n",
        "import onnxruntime as o\ndef f():\n    return o.SessionOptions()\n",
        "from onnxruntime import InferenceSession as Session\n",
        "import onnxruntime.backend\n",
        "from onnxruntime.backend import prepare\n",
    ],
)
def test_another_place_is_found(tmp_path, violation):
    for name in ("tools/deep/er.py", "vgg16gpu/checks/onnxruntime_session.py", "vgg16gpu/clean.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(violation if "clean" not in name else "import onnxruntime\n")
    assert [place.partition(":")[0] for place in openings(tmp_path)] == ["tools/deep/er.py"]
