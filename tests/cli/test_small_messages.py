"""N4: small messages, each of which sent somebody the wrong way, or nowhere."""

import logging
import re
import time

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.onnx_single import single
from vgg16gpu import Engine
from vgg16gpu.cli import cli
from vgg16gpu.cli.common.progress import Counter
from vgg16gpu.cli.common.show import per_second
from vgg16gpu.devices import stages
from vgg16gpu.devices.cpu import compiler
from vgg16gpu.errors import InputError


def invoke(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.mark.parametrize("group", [("lab",), ("model",), ("lab", "exercise")])
def test_n4_a_group_alone_shows_its_help(group):
    done = invoke(*group)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"Usage: vgg16gpu {' '.join(group)} ")
    assert "Commands:" in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(("inefr",), "infer"), (("sreve",), "serve"), (("lab", "runn"), "run"), (("lab", "exercise", "lits"), "list")],
)
def test_n4_a_mistyped_command_has_a_suggestion(typed, meant):
    done = invoke(*typed)
    assert done.exit_code == 2
    assert done.stderr.count(f"Did you mean '{meant}'?") == 1
    assert f"(see vgg16gpu{''.join(f' {each}' for each in typed[:-1])} --help)" in done.stderr


def test_n4_a_mistyped_model_has_a_suggestion(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-vgg16.onnx").touch()
    assert "digit: no such file; did you mean 'digits'" in invoke("info", "--model", "digit").stderr
    assert "no such file; did you mean 'my-vgg16.onnx'" in invoke("info", "my-vgg61.onnx").stderr
    near = tmp_path / "my-vgg16"
    assert f"no such file; did you mean '{tmp_path}/my-vgg16.onnx'" in invoke("info", near).stderr
    assert "`python -m vgg16gpu model make` writes a model" in invoke("info", "nothing-like-it.onnx").stderr
    assert "`python -m vgg16gpu model make` writes a model" in invoke("info", "no/folder/digit").stderr


def test_n4_resume_of_another_model_shows_no_digests(tmp_path):
    import shutil

    from vgg16gpu.io.shipped import digits_model

    Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "a.png")
    other = tmp_path / "other.onnx"
    shutil.copy(digits_model(), other)
    with other.open("ab") as stream:  # a file of two models joined has the fields of both
        stream.write(b"\x12\x05other")
    options = "infer", tmp_path / "a.png", "--device", "cpu", "--output", tmp_path / "rows.csv"
    assert invoke(*options, "--model", "digits").exit_code == 0
    done = invoke(*options, "--model", other, "--resume")
    assert done.exit_code == 2
    assert "is of another run: the model file is another one; give the same again" in done.stderr
    assert not re.search("[0-9a-f]{32}", done.stderr)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "a.jpg",
            r"the input is 'a.jpg', and an engine takes arrays; vgg16gpu.classify\(files, model\) reads pictures",
        ),
        (b"\xff\xd8", "the input is 2 bytes, and an engine takes arrays"),
        (["a.jpg", "b.jpg"], r"the input is text \('a.jpg'\), which vgg16gpu.classify\(files, model\) reads as files"),
        ([None], "an array of object for numpy; give an array of float32, or uint8 pixels"),
        (np.array(["2026-01-01"], "M8[D]"), "give an array of float32"),
    ],
)
def test_n4_a_name_of_a_file_is_no_array(given, words):
    with Engine("digits", device="cpu") as engine, pytest.raises(InputError, match=words) as caught:
        engine.run(given)
    assert "astype" not in str(caught.value)


def test_n4_slow_rates_are_not_zero(capsys, monkeypatch):
    assert [per_second(value) for value in (0, 0.0431, 0.5, 9.94, 10, 12.6, 1234.5)] == [
        "0", "0.043", "0.5", "9.9", "10", "13", "1,234",
    ]  # fmt: skip
    monkeypatch.setattr("vgg16gpu.cli.common.progress.EVERY", 0.0)
    with Counter("inputs", 10) as counter:
        counter._start -= 20.0
        counter.add(1)
    assert "0.05/s" in capsys.readouterr().err


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A cache that is empty, and nobody's patience."""
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stages, "_has_told", False)
    monkeypatch.setattr(stages, "PATIENCE", 0.0)
    compile_one = compiler._compile

    def slowly(*arguments):
        time.sleep(0.05)
        compile_one(*arguments)

    monkeypatch.setattr(compiler, "_compile", slowly)


@pytest.fixture
def flat(tmp_path):
    """A command that compiles two kernels."""
    np.save(tmp_path / "x.npy", np.ones((1, 3, 4, 4), np.float32))
    model = single(tmp_path, "Flatten", ("N", 3, 4, 4), [])
    return ("infer", tmp_path / "x.npy", "--model", model, "--device", "cpu")


@pytest.mark.usefixtures("slow")
def test_n4_a_first_run_says_that_it_compiles(flat):
    done = invoke(*flat, "--json")
    assert re.search(r"^vgg16gpu: compiling \d+ kernels; where the kernel cache", done.stderr, re.MULTILINE)
    again = invoke(*flat, "--json")
    assert "compiling" not in again.stderr
    assert logging.getLogger("vgg16gpu.waiting").level == logging.NOTSET  # nothing is left behind
