"""`testbench --references`: what FILE.run.json says of pictures is done, and an option that denies it is told."""

import shutil

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from vgg16gpu.cli import cli

COUNT = 3
OTHER = (
    "the references were made of other pictures: stretched to 12x12, bilinear, RGB, x/255 from 0 to 1; by the record"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a net without metadata that takes any size, pictures, and scores of `--preprocess unit --size 12`."""
    folder = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)), "fc": rng.standard_normal((4, 6))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"]),
        helper.make_node("GlobalAveragePool", ["conv"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), folder / "m.onnx")
    (folder / "in").mkdir()
    for i in range(COUNT):
        pixels = rng.integers(0, 255, (20, 24, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "in" / f"{i}.png")
    np.save(folder / "numbers.npy", rng.standard_normal((2, 3, 12, 12)).astype(np.float32))
    infer(folder, folder / "in", folder / "r.csv")
    infer(folder, folder / "numbers.npy", folder / "numbers.csv")
    return folder


def infer(folder, inputs, output):
    options = ["--model", folder / "m.onnx", "--preprocess", "unit", "--size", 12, "--scores", "-q", "--output", output]
    done = CliRunner().invoke(cli, ["infer", str(inputs), "--device", "cpu", *map(str, options)])
    assert done.exit_code == 0, done.output


def bench(folder, references, *options):
    given = [folder / "m.onnx", "--inputs", folder / "in", "--references", references, *options]
    result = CliRunner().invoke(cli, ["testbench", "--device", "cpu", *map(str, given)])
    return result.exit_code, " ".join(result.stdout.split()), result.stderr


def test_n2_the_record_says_what_is_done(place):
    code, shown, told = bench(place, place / "r.csv")
    assert code == 0, shown
    assert f"PASS: {COUNT} of {COUNT} inputs" in shown
    assert "x/255 from 0 to 1; by the record r.csv.run.json" in shown
    assert told == ""


def test_the_schema_of_a_parquet_file_says_it_where_the_record_is_gone(place, tmp_path):
    pytest.importorskip("pyarrow")
    infer(place, place / "in", tmp_path / "r.parquet")
    assert bench(place, tmp_path / "r.parquet")[0] == 0
    (tmp_path / "r.parquet.run.json").unlink()
    code, shown, _ = bench(place, tmp_path / "r.parquet")
    assert code == 0, shown
    assert "by the record r.parquet" in shown


def test_n2_an_option_that_denies_it_is_told(place):
    code, shown, told = bench(place, place / "r.csv", "--preprocess", "raw")
    assert code == 1
    assert f"warning: {OTHER} r.csv.run.json; without --preprocess raw that is done" in told
    assert f"Hint: {OTHER} r.csv.run.json" in shown


def test_a_broken_record_is_a_line(place, tmp_path):
    shutil.copy(place / "r.csv", tmp_path / "r.csv")
    size = '{"run": {"options": {"preprocess": null, "size": %s}}}'
    texts = ("{", "[]", "{}", '{"run": 3}', '{"run": {"options": {"preprocess": 3, "size": [12, 12]}}}')
    sizes = ("[12]", '"many"', "[1e999, 2]")
    for content in (*texts, '{"run": {"options": {"preprocess": null}}}', *(size % each for each in sizes)):
        (tmp_path / "r.csv.run.json").write_text(content)
        code, shown, told = bench(place, tmp_path / "r.csv")
        assert (code, shown) == (2, ""), content
        assert len(told.splitlines()) == 1
        assert "'r.csv.run.json'" in told or str(tmp_path / "r.csv.run.json") in told
