"""`vgg16gpu model make` and `vgg16gpu model fetch`."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tests.support.zoo_server import CONTENT, EXPECTED, serve
from vgg16gpu.cli import cli
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.model import command as model_module
from vgg16gpu.zoo import generate
from vgg16gpu.zoo.fetch import fetch_vgg16
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture
def server(monkeypatch):
    with serve(monkeypatch) as running:
        yield running


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in an empty folder; nets are narrow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_module, "make_vgg", functools.partial(make_vgg, width=2, hidden=16, classes=10))
    monkeypatch.setattr(model_module, "fetch_vgg16", functools.partial(fetch_vgg16, **EXPECTED))
    return lambda *arguments: CliRunner().invoke(cli, ["model", *arguments])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--size", "244x244"), "random-vgg16-244.onnx"),
        (("--variant", "vgg11", "--batch-norm", "--size", "64"), "random-vgg11_bn-64.onnx"),
    ],
)
def test_make_names_the_file_and_prints_its_checksum(options, name, run, tmp_path):
    done = run("make", *options)
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in done.stdout
    assert "random weights" in done.stdout
    onnx.checker.check_model(tmp_path / name)


def test_make_as_json_with_a_sample(run, tmp_path):
    done = run("make", "--size", "40", "--seed", "3", "--sample", "image.txt", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["path"] == "random-vgg16-40.onnx"
    assert report["sha256"] == hashlib.sha256((tmp_path / "random-vgg16-40.onnx").read_bytes()).hexdigest()
    assert report["bytes"] == (tmp_path / "random-vgg16-40.onnx").stat().st_size
    assert report["net"] == {"variant": "vgg16", "size": 40, "batch_norm": False, "seed": 3}
    assert np.fromstring((tmp_path / "image.txt").read_text(), sep=" ").size == 3 * 40 * 40


def test_make_replaces_what_it_wrote_but_no_other_model(run, tmp_path):
    assert run("make", "--size", "32", "--output", "a.onnx").exit_code == 0
    first = (tmp_path / "a.onnx").read_bytes()
    assert run("make", "--size", "32", "--output", "a.onnx", "--seed", "1").exit_code == 0
    assert (tmp_path / "a.onnx").read_bytes() != first
    (tmp_path / "trained.onnx").write_bytes(CONTENT)
    done = run("make", "--size", "32", "--output", "trained.onnx")
    assert done.exit_code == 2
    assert "exists and is not a model that `model make` wrote" in done.stderr
    assert (tmp_path / "trained.onnx").read_bytes() == CONTENT


def test_make_says_where_weights_are_that_no_onnx_file_can_hold(run, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "LARGEST_FILE", 1000)
    done = run("make", "--size", "32", "--output", "a.onnx")
    assert done.exit_code == 0, done.output
    assert "a.onnx.data has the weights" in done.stdout
    assert "of the model and its weights" in done.stdout
    report = json.loads(run("make", "--size", "32", "--output", "a.onnx", "--json").stdout)
    assert report["weights"] == "a.onnx.data"
    assert report["bytes"] == sum((tmp_path / name).stat().st_size for name in ("a.onnx", "a.onnx.data"))
    (tmp_path / "a.onnx").unlink()
    alone = (tmp_path / "a.onnx.data").read_bytes()
    done = run("make", "--size", "32", "--seed", "1", "--output", "a.onnx")
    assert done.exit_code == 2
    assert "a.onnx.data: exists and is not the weights of a model" in done.stderr
    assert (tmp_path / "a.onnx.data").read_bytes() == alone


def test_make_spares_what_is_no_weights_of_its_own_and_tells_of_those_that_are_left(run, tmp_path, monkeypatch):
    assert run("make", "--size", "32", "--output", "a.onnx").exit_code == 0
    (tmp_path / "a.onnx.data").write_text("mine")
    with monkeypatch.context() as patched:
        patched.setattr(generate, "LARGEST_FILE", 1000)
        done = run("make", "--size", "32", "--output", "a.onnx")
        assert done.exit_code == 2
        assert "a.onnx.data: exists and is not the weights" in done.stderr
        assert (tmp_path / "a.onnx.data").read_text() == "mine"
        assert run("make", "--size", "32", "--output", "b.onnx").exit_code == 0
    done = run("make", "--size", "32", "--output", "b.onnx")
    assert "b.onnx.data has the weights of the model that was there before: delete it" in done.stdout


def test_make_refuses_in_one_line(run, tmp_path):
    for words, message in {
        "--variant vgg17": "'vgg17' is not one of",
        "--size 31": "input size 31 is not possible; take 32 to 1024 pixels",
        "--size 224x320": "'224x320' is not square",
        "--seed -1": "-1 is not in the range",
        "--output missing/a.onnx --size 32": "cannot be written",
        "--output .": "is a directory",
        "--sample missing/s.txt --size 32": "--sample 'missing/s.txt' cannot be written",
        "--output a.onnx --sample ./a.onnx --size 32": "--sample and --output name the same file",
    }.items():
        done = run("make", *words.split())
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not list(tmp_path.iterdir())


def test_fetch(run, tmp_path, server):
    done = run("fetch", "--url", server.url("/none"), "--url", server.url("/good"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "vgg16-imagenet.onnx").read_bytes() == CONTENT
    assert server.url("/good") in done.stdout
    again = run("fetch", "--url", server.url("/good"), "--json")
    assert json.loads(again.stdout)["url"] is None


def test_fetch_spares_what_is_there(run, tmp_path, server):
    (tmp_path / "mine.onnx").write_bytes(b"trained for weeks")
    done = run("fetch", "--output", "mine.onnx", "--url", server.url("/good"))
    assert done.exit_code == 2
    assert "mine.onnx: exists and is another file" in done.stderr
    assert (tmp_path / "mine.onnx").read_bytes() == b"trained for weeks"
    assert server.requests == []


def test_models_go_to_models_and_the_trained_one_is_taken_first(run, tmp_path, server):
    assert run("make").exit_code == 0
    assert find_model(None) == Path("random-vgg16.onnx")
    (tmp_path / "models").mkdir()
    assert run("make").exit_code == 0
    assert find_model(None) == Path("models/random-vgg16.onnx")
    assert run("make", "--size", "32", "--output", "vgg16.onnx").exit_code == 0
    assert find_model(None) == Path("vgg16.onnx")  # what is called so goes before what make writes by itself
    assert run("fetch", "--output", "vgg16-imagenet.onnx", "--url", server.url("/good")).exit_code == 0
    assert find_model(None) == Path("vgg16-imagenet.onnx")
    assert run("fetch", "--url", server.url("/good")).exit_code == 0
    assert find_model(None) == Path("models/vgg16-imagenet.onnx")


def test_sample_alone(run, tmp_path):
    done = run("sample", "--size", "40")
    assert done.exit_code == 0, done.output
    assert "3x40x40" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["image.txt"]
    assert np.fromstring((tmp_path / "image.txt").read_text(), sep=" ").size == 3 * 40 * 40
    assert "input size 31 is not possible" in run("sample", "--size", "31", "--output", "small.txt").stderr
    assert not (tmp_path / "small.txt").exists()
    refused = run("sample", "--output", "missing/image.txt")
    assert refused.exit_code == 2
    assert "create it first" in refused.stderr
