"""zoo/weight_files.py and `model weights`: every weight, bit for bit, under names that a file may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import Model, torch_vgg
from vgg16gpu.cli import cli


def run(model: object, output: Path, *options: object) -> Result:
    arguments = ["model", "weights", model, "--output", output, *options]
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def written(model: Model, tmp_path: Path, *options: object) -> dict[str, dict[str, Any]]:
    """The rows of weights.json by name."""
    path, folder = model.save(tmp_path / "m.onnx"), tmp_path / "out"
    result = run(path, folder, "--json", *options)
    assert result.exit_code == 0, result.output
    content = json.loads((folder / "weights.json").read_text())
    assert json.loads(result.stdout) == {**content, "folder": str(folder)}
    files = {name for row in content["weights"] for name in row["files"]}
    assert {path.name for path in folder.iterdir()} == {*files, "weights.json"}
    return {row["name"]: row for row in content["weights"]}


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_both_forms_hold_the_very_numbers_in_the_order_of_the_graph(tmp_path: Path) -> None:
    model = torch_vgg()
    rows = written(model, tmp_path, "--format", "both")
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.weights}
    assert list(rows) == list(expected)
    for name, array in expected.items():
        row = rows[name]
        assert row["files"] == [f"{name}.npy", f"{name}.txt"]
        assert (row["shape"], row["type"], row["numbers"]) == (list(array.shape), "float32", array.size)
        saved = np.load(tmp_path / "out" / f"{name}.npy", allow_pickle=False)
        assert saved.dtype == np.float32
        np.testing.assert_array_equal(saved, array)
        lines = (tmp_path / "out" / f"{name}.txt").read_text().splitlines()
        assert len(lines) == array.size
        np.testing.assert_array_equal(np.array(lines, np.float32), array.reshape(-1))
    first = next(iter(rows.values()))
    assert first["readers"] == [{"node": "/conv0", "op": "Conv", "role": "W"}]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_text_gives_back_the_same_bits(dtype: Any, tmp_path: Path) -> None:
    model = Model()
    info = np.finfo(dtype)
    special = [np.nan, np.inf, -np.inf, -0.0, info.max, info.tiny, info.smallest_subnormal, 1 / 3, -1e-3]
    random = np.random.default_rng(0).standard_normal(20_000)
    values = np.concatenate([np.array(special), random]).astype(dtype)
    model.node("Add", ["input", model.constant("c", values)], "y")
    rows = written(model, tmp_path, "--format", "txt")
    assert rows["c"]["type"] == np.dtype(dtype).name
    (name,) = rows["c"]["files"]
    found = np.array((tmp_path / "out" / name).read_text().split(), np.float64).astype(dtype)
    bits = f"u{np.dtype(dtype).itemsize}"
    assert np.isnan(found[0])
    np.testing.assert_array_equal(found[1:].view(bits), values[1:].view(bits))


def test_readers_are_those_that_compute(tmp_path: Path) -> None:
    """A Transpose of a weight passes it on; a weight read twice has two; one that nobody reads is not written."""
    model = Model(("n", 6))
    turned = model.node("Transpose", [model.weight("w", 4, 6)], "turned", perm=[1, 0])
    bias = model.weight("b", 4)
    model.constant("unread", np.ones(3, np.float32))
    model.node("Constant", [], "c", value=numpy_helper.from_array(np.ones(4, np.float32), "inner"))
    product = model.node("MatMul", ["input", turned], "product")
    model.node("Mul", [model.node("Add", [product, bias], "sum"), bias], "scaled")
    model.node("Reshape", [model.node("Add", ["scaled", "c"], "z"), model.constant("shape", np.array([-1, 4]))], "y")
    rows = written(model, tmp_path)
    readers = {name: [(each["op"], each["role"]) for each in row["readers"]] for name, row in rows.items()}
    assert readers == {"w": [("MatMul", "B")], "b": [("Add", "B"), ("Mul", "B")], "c": [("Add", "B")]}
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "w.npy"), numpy_helper.to_array(model.weights[0]))


def test_integers_of_a_quantised_model(tmp_path: Path) -> None:
    model = Model(("n", 6))
    whole = np.arange(-12, 12, dtype=np.int8).reshape(6, 4)
    scale, zero = model.constant("scale", np.float32(0.5)), model.constant("zero", np.int8(0))
    real = model.node("DequantizeLinear", [model.constant("w", whole), scale, zero], "real")
    model.node("MatMul", ["input", real], "y")
    rows = written(model, tmp_path, "--format", "both")
    assert list(rows) == ["w", "scale", "zero"]
    assert rows["w"]["readers"] == [{"node": "/y", "op": "MatMul", "role": "B"}]
    assert rows["scale"]["readers"][0]["op"] == "DequantizeLinear"
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "w.npy"), whole)
    assert (tmp_path / "out" / "w.txt").read_text().split() == [str(value) for value in whole.ravel()]
    assert rows["scale"]["shape"] == []


NAMES = ["a/b", "A_B", "a:b", "../../up", ".hidden", "-rf", "重み", "重さ", "x" * 4000, "x" * 3999 + "y", "a b'\"$(c)"]


def test_names_of_files(tmp_path: Path) -> None:
    model = Model()
    x = "input"
    for index, name in enumerate(NAMES):
        x = model.node("Add", [x, model.constant(name, np.float32(index))], f"v{index}")
    rows = written(model, tmp_path)
    assert list(rows) == NAMES
    files = [row["files"][0] for row in rows.values()]
    assert len({name.lower() for name in files}) == len(NAMES)
    for index, (name, file) in enumerate(zip(NAMES, files, strict=True)):
        assert float(np.load(tmp_path / "out" / file)) == index, name
        assert set(file) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
        assert len(file) < 140
        assert not file.startswith((".", "-"))
    assert files[:3] == ["a_b.npy", "A_B-2.npy", "a_b-3.npy"]


def test_a_model_that_does_not_run_here_and_one_without_weights(tmp_path: Path) -> None:
    model = Model()
    model.node("Einsum", ["input", model.weight("w", 3)], "y", equation="nchw,c->nchw")
    assert list(written(model, tmp_path)) == ["w"]
    nothing = Model()
    nothing.node("Reshape", ["input", nothing.constant("shape", np.array([1, -1]))], "y")
    refused(run(nothing.save(tmp_path / "n.onnx"), tmp_path / "none"), "n.onnx: has no weights")
    assert not (tmp_path / "none").exists()


def test_a_tensor_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    model = Model()
    x = model.node("Add", ["input", model.weight("good", 8)], "x")
    model.weights.append(helper.make_tensor("bad", TensorProto.BFLOAT16, [8], [0.0] * 8))
    model.node("Add", [x, "bad"], "y")
    refused(run(model.save(tmp_path / "m.onnx"), tmp_path / "out"), "'bad'", "BFLOAT16")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_q9_sparse_weights_are_written_as_the_dense_ones_that_they_mean(tmp_path: Path) -> None:
    model = Model()
    model.node("Add", ["input", "s"], "x")
    model.node("Add", ["x", "c"], "y")
    proto = model.proto()
    values = numpy_helper.from_array(np.float32([7]), "s")
    indices = numpy_helper.from_array(np.int64([2]), "i")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    constant = helper.make_node("Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(values, indices, [8]))
    proto.graph.node.insert(0, constant)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    done = run(tmp_path / "m.onnx", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for name in ("s.npy", "c.npy"):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / name), np.float32([0, 0, 7, 0, 0, 0, 0, 0]))


def test_q9_sparse_weights_that_cannot_be_leave_nothing(tmp_path: Path) -> None:
    model = Model()
    model.node("Add", ["input", "s"], "y")
    proto = model.proto()
    values = numpy_helper.from_array(np.float32([7]), "s")
    indices = numpy_helper.from_array(np.int64([9]), "i")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    refused(run(tmp_path / "m.onnx", tmp_path / "out"), "indices outside of its dimensions (8,)")
    assert not (tmp_path / "out").exists()


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    assert run("digits", folder).exit_code == 0  # into an empty one
    other, bias = folder / "mine.txt", folder / "features.0.bias.npy"
    other.write_text("mine")
    bias.write_bytes(b"old")
    refused(run("digits", folder), "is there and not empty", "--force")
    assert bias.read_bytes() == b"old"
    assert run("digits", folder, "--force").exit_code == 0
    assert np.load(bias).shape == (16,)
    assert other.read_text() == "mine"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("name", "words"),
    [("file", "is a file; name a folder"), ("file/out", "does not exist"), ("no/out", "folder '"), ("", "not empty")],
)
def test_where_nothing_can_be_written(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run("digits", tmp_path / name), words)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
