"""measure/accuracy.py on the net that ships: its figures are those of the parts that it is made of."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.measure import accuracy
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import heldout

IMAGES = 30


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The first held-out digits, in a folder a label."""
    folder = tmp_path_factory.mktemp("images")
    pixels, _, labels = heldout()
    for index in range(IMAGES):
        (folder / str(labels[index])).mkdir(exist_ok=True)
        Image.fromarray(pixels[index, :, :, 0]).save(folder / str(labels[index]) / f"{index:02}.png")
    return folder


def measure(images, tmp_path, *arguments):
    output = tmp_path / "accuracy.json"
    code = accuracy.main(
        [str(digits_model()), "--images", str(images), "--device", "cpu", "--output", str(output), *arguments]
    )
    return json.loads(output.read_text()), code


def test_every_precision_stands_beside_onnxruntime(images, tmp_path, capsys):
    (tmp_path / "training.json").write_text('{"steps": 7}')
    options = ("--precisions", "fp32", "fp16", "--training", str(tmp_path / "training.json"))
    content, code = measure(images, tmp_path, *options)
    assert code == 0
    assert content["images"] == IMAGES
    assert content["training"] == {"steps": 7}
    assert content["environment"]["versions"]["onnxruntime"]
    theirs, fp32, fp16 = content["results"]
    assert (theirs["library"], theirs["worst_error"], theirs["agreement"]) == ("onnxruntime, CPU", 0, 1)
    assert 0 < fp32["mean_error"] <= fp32["worst_error"] <= 1e-5
    assert fp16["worst_error"] <= 1e-2
    assert {record["accuracy"] for record in content["results"]} == {1.0}
    assert capsys.readouterr().out.count("PASS") == 2


def test_fewer_images_are_spread_over_the_labels(images, tmp_path):
    content, _ = measure(images, tmp_path, "--precisions", "fp32", "--limit", "10")
    assert content["images"] == 10


def test_a_net_that_is_wrong_fails(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(accuracy, "first_output", lambda scores: scores * np.float32(1.001))
    content, code = measure(images, tmp_path, "--precisions", "fp32")
    assert code == 1
    assert content["results"][1]["failures"]
    assert "FAIL: fp32: 30 of 30 inputs fail" in capsys.readouterr().out


def test_the_wrong_label_counts(images, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(images, moved)
    labels = heldout()[2]
    wrong = moved / str((labels[0] + 1) % 10)
    wrong.mkdir(exist_ok=True)
    (moved / str(labels[0]) / "00.png").rename(wrong / "00.png")
    content, code = measure(moved, tmp_path, "--precisions", "fp32")
    assert code == 0
    assert content["results"][1]["accuracy"] == pytest.approx((IMAGES - 1) / IMAGES)


def test_onnxruntimes_own_errors():
    _, x, labels = heldout()
    exact = Oracle(digits_model()).scores(x[:4])
    bench = type("Bench", (), {"labels": labels[:4].tolist()})
    scores = exact + np.float32(0.01)
    record = accuracy.onnxruntime_record(bench, scores, exact, "int8")
    assert record["worst_error"] == pytest.approx(score_error(scores, exact).max())
    assert record["accuracy"] == (exact.argmax(1) == labels[:4]).mean()
