"""What is assumed of pictures is told wherever nothing else tells it: `--output -`, --json, shards, `classify()`."""

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image

from vgg16gpu import Engine, classify
from vgg16gpu.cli import cli
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.answers import classify as answering

WORDS = "assumed of pictures: stretched to 32x32, bilinear, grey, x/255 from 0 to 1, as the file says nothing"


@pytest.fixture(autouse=True)
def _untold():
    """In a process each model is spoken of once."""
    answering._warn_once.cache_clear()


@pytest.fixture
def silent(tmp_path):
    """The digits without their metadata."""
    model = onnx.load(digits_model())
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "silent.onnx")
    return tmp_path / "silent.onnx"


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(np.full((40, 40), 99, np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def infer(*arguments):
    done = CliRunner().invoke(cli, ["infer", *map(str, arguments), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("options", [("--output", "-"), ("--output", "-", "--format", "jsonl"), ("--json",)])
def test_n1_infer_tells_it_on_stderr(options, picture, silent):
    done = infer(picture, "--model", silent, *options)
    assert WORDS in done.stderr
    assert "--preprocess says how" in done.stderr
    assert done.stderr.count("assumed") == 1


def test_numbers_are_taken_as_they_are_and_pixels_are_not(tmp_path, silent):
    np.save(tmp_path / "numbers.npy", np.zeros((2, 1, 32, 32), np.float32))
    np.save(tmp_path / "pixels.npy", np.zeros((2, 32, 32, 1), np.uint8))
    assert "assumed" not in infer(tmp_path / "numbers.npy", "--model", silent, "--output", "-").stderr
    assert WORDS in infer(tmp_path / "pixels.npy", "--model", silent, "--output", "-").stderr


def test_n1_shards_tell_it(tmp_path, picture, silent):
    pytest.importorskip("pyarrow")
    (tmp_path / "list.txt").write_text(f"{picture}\n")
    options = "--files-from", tmp_path / "list.txt", "--shard", "0/1", "--output", tmp_path / "job"
    assert WORDS in infer("--model", silent, *options).stderr


def test_n1_classify_logs_a_warning_once(picture, silent, caplog):
    for _ in range(2):
        (answer,) = classify(picture, silent, device="cpu")
        assert not answer.error
    (record,) = [each for each in caplog.records if "assumed" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert record.name.startswith("vgg16gpu.")
    assert f"{silent}: {WORDS}" in record.getMessage()
    assert record.getMessage().endswith("preprocess= says how")


BYTES = np.full((2, 32, 32, 1), 99, np.uint8)


@pytest.mark.parametrize(
    ("given", "is_told"), [({"mean": (0.5,), "std": (0.5,)}, False), ({"mean": (0.5,)}, True), ({}, True)]
)
def test_who_gives_an_engine_both_numbers_is_warned_of_nothing(silent, caplog, given, is_told):
    with Engine(silent, device="cpu", **given) as engine:
        engine.run(BYTES[:1])
    assert ("assumed" in caplog.text) == is_told
