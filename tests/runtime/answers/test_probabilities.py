"""Probabilities of answers are the numbers that a file gives where a softmax stands near its end: onnxruntime's."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.softmax_tails import ORDER, TAILS, digits_with
from vgg16gpu import classify, labels
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.cli import cli
from vgg16gpu.compiler.class_scores import ScoreIndex, before_softmax, class_count, gives_probabilities
from vgg16gpu.compiler.graph.graph import infer_shapes
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import normalise
from vgg16gpu.zoo.digits import heldout


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "digit.png"
    Image.fromarray(heldout()[0][5, :, :, 0]).save(path)
    return path


def exact(path, picture):
    """What onnxruntime answers for the pixels that the engine is given."""
    preprocess = Model(path).preprocess(Model(path).graph(), (1, 1, 32, 32))
    pixels = np.asarray(Image.open(picture))[None, :, :, None]
    session = open_session(path.read_bytes())
    (found,) = session.run(None, {session.get_inputs()[0].name: normalise(pixels, preprocess.mean, preprocess.std)})
    return found.reshape(-1)


@pytest.mark.parametrize("tail", TAILS)
def test_q2_a_probability_is_the_score_itself(tail, picture, tmp_path):
    path = digits_with(TAILS[tail], tmp_path / "m.onnx")
    wanted = exact(path, picture)
    (answer,) = classify(picture, path, device="cpu", top=3)
    order = np.argsort(-wanted, kind="stable")[:3]
    assert [rank.index for rank in answer.top] == order.tolist()
    assert [rank.score for rank in answer.top] == pytest.approx(wanted[order], abs=2e-6)
    assert [rank.probability for rank in answer.top] == [rank.score for rank in answer.top]


@pytest.mark.parametrize("tail", ["1x1 map", "Clip(1e-7, 1)", "Gather that reorders"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "screen"])
def test_q2_so_it_is_in_files_and_on_the_screen(tail, form, picture, tmp_path):
    path = digits_with(TAILS[tail], tmp_path / "m.onnx")
    wanted = exact(path, picture).max()
    output = tmp_path / f"rows.{form}"
    rest = ["--json"] if form == "json" else [] if form == "screen" else ["--output", str(output)]
    done = CliRunner().invoke(cli, ["infer", str(picture), "--model", str(path), "--device", "cpu", *rest])
    assert done.exit_code == 0, done.output
    if form == "screen":
        assert f"{wanted:.2%}" in done.stdout
        assert "probability: from the model" in " ".join(done.stdout.split())
        return
    if form == "json":
        found = json.loads(done.stdout)["inputs"][0]["top"][0]["probability"]
    elif form == "csv":
        (row,) = csv.DictReader(output.read_text().splitlines())
        found = float(row["probability_1"])
    else:
        found = json.loads(output.read_text())["probability_1"]
    assert found == pytest.approx(wanted, abs=2e-6)


SOURCES = {  # the class that a softmax reads for each score; digits that no single one is made of have None
    "Gather that reorders": ORDER,
    "Slice of five": [*range(5)],
    "Concat of two softmaxes": [*range(10)] * 2,
    "Concat of halves": [*range(5, 10), *range(5)],
    "Pad by a class": [None, *range(10)],
    "mean of two": [None] * 10,
}


def test_q2_what_the_softmax_reads_for_each_score(tmp_path):
    for tail, nodes in TAILS.items():
        graph = Model(digits_with(nodes, tmp_path / "m.onnx")).graph()
        assert gives_probabilities(graph), tail
        shapes = infer_shapes(graph, (1, 1, 32, 32))
        (output,) = graph.outputs
        places = [before_softmax(graph, shapes, ScoreIndex(output, place)) for place in np.ndindex(shapes[output])]
        assert [place and sum(place.place) for place in places] == SOURCES.get(tail, [*range(10)]), tail


OTHERS = [
    [("Identity", ["scores"], "output", {})],
    [("LogSoftmax", ["scores"], "output", {})],
    [("Softmax", ["scores"], "a", {}), ("Mul", ["a", "scores"], "output", {})],
    [("Softmax", ["scores"], "a", {}), ("Concat", ["a", "scores"], "output", {"axis": 1})],
    [("Softmax", ["scores"], "a", {}), ("Sub", ["a", "one"], "output", {})],
    [("Softmax", ["scores"], "a", {}), ("Div", ["a", "hundredth"], "output", {})],
    [("Softmax", ["scores"], "a", {}), ("Add", ["a", "a"], "output", {})],
    [("Softmax", ["scores"], "a", {}), ("Div", ["one", "a"], "output", {})],
]


def test_other_scores_are_no_probabilities(tmp_path):
    for nodes in OTHERS:
        assert not gives_probabilities(Model(digits_with(nodes, tmp_path / "m.onnx")).graph()), nodes


@pytest.mark.parametrize(
    ("shape", "classes"),
    [
        ((1, 10), 10),
        ((4, 10, 1, 1), 10),
        ((4, 1, 1, 10), 10),
        ((2, 1), 1),
        ((1, 1, 1, 1), 1),
        ((1, 10, 2, 1), 0),
        ((5,), 0),
        ((1, 1 << 21), 0),
    ],
)
def test_outputs_that_have_classes(shape, classes):
    assert class_count(shape) == classes


def test_q10_an_output_of_one_element_for_each_class_is_ranked(picture, tmp_path):
    path = digits_with(TAILS["1x1 map"], tmp_path / "m.onnx")
    wanted = exact(path, picture)
    command = ["infer", str(picture), "--model", str(path), "--device", "cpu", "--top", "2", "--scores", "--output"]
    for name in ("rows.csv", "rows.jsonl", "rows.parquet", "scores.npy", "scores.npz", "scores.txt", "scores.json"):
        done = CliRunner().invoke(cli, [*command, str(tmp_path / name)])
        assert done.exit_code == 0, done.output
    (row,) = csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    columns = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "rows.parquet").to_pylist()[0]
    order = np.argsort(-wanted, kind="stable")[:2]
    for found in (row, json.loads(line), columns):
        assert [int(found[f"class_{rank}"]) for rank in (1, 2)] == order.tolist()
        assert [float(found[f"score_{rank}"]) for rank in (1, 2)] == pytest.approx(wanted[order], abs=2e-6)
    assert [float(row[f"scores_{k}"]) for k in range(10)] == pytest.approx(wanted, abs=2e-6)
    assert np.load(tmp_path / "scores.npy").shape == (1, 10, 1, 1)  # arrays stay as the model gives them
    assert labels(path) == tuple(map(str, range(10)))
    with pytest.raises(InputError, match="class_names has 3, the model has 10 scores"):
        next(classify(picture, path, device="cpu", class_names=["a", "b", "c"]))
