"""`make demo`: which model it takes, what it runs and what it says."""

import os
from pathlib import Path

import pytest

from testbench import demo, make_references
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.zoo.digits import digit_sample
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A narrow model that stands for the VGG16, and its references."""
    folder = tmp_path_factory.mktemp("known")
    make_vgg(folder / "known.onnx", variant="vgg11", size=32, width=2, hidden=8, classes=10)
    pictures = structured_images(1, 32, 2)
    stored = make_references.ask_onnxruntime(
        folder / "known.onnx", "known", pictures, "one", (IMAGENET_MEAN, IMAGENET_STD)
    )
    stored.write(folder / "known.npz")
    return folder


@pytest.fixture
def models(known, tmp_path, monkeypatch):
    """The two places of models, both free."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "REFERENCES", known / "known.npz")
    (tmp_path / "models").mkdir()
    return demo.MODELS


@pytest.fixture
def commands(monkeypatch):
    """What the demo runs, written down in place of being run; `codes`: their exit codes."""
    ran, codes = [], {}

    def run(_, command):
        ran.append(command)
        return codes.get(command[0], 0)

    monkeypatch.setattr(demo, "run", run)
    return ran, codes


def test_the_model_is_made_once(models, known, commands, capsys):
    ran, _ = commands
    assert demo.main() == 0
    digit = ["infer", "--model", "digits", os.path.relpath(digit_sample())]
    testbench = ["testbench", "models/random-vgg16.onnx", "--batch", "10"]
    assert ran == [digit, ["model", "make", "--output", "models/random-vgg16.onnx"], testbench]
    assert len(capsys.readouterr().out.strip().splitlines()) == 4  # a heading, and three things to try
    ran.clear()
    models[1].write_bytes((known / "known.onnx").read_bytes())
    (models[0].parent / "vgg16-imagenet.onnx").write_text("trained: not what the demo takes")
    assert demo.main() == 0
    assert ran == [digit, testbench]


def test_another_model_is_left_alone(models, known, commands):
    ran, _ = commands
    content = bytearray((known / "known.onnx").read_bytes())
    content[-2000] ^= 1
    for others in (b"trained", bytes(content)):
        models[0].write_bytes(others)
        assert demo.choose_model(models) == (models[1], False)
        assert demo.main() == 0
        assert ran[1:] == [
            ["model", "make", "--output", "models/random-vgg16.onnx"],
            ["testbench", "models/random-vgg16.onnx", "--batch", "10"],
        ]
        ran.clear()
        assert models[0].read_bytes() == others
    models[1].write_bytes((known / "known.onnx").read_bytes())
    assert demo.choose_model(models) == (models[1], True)


@pytest.mark.usefixtures("models")
def test_it_ends_with_the_first_command_that_fails(commands, capsys):
    ran, codes = commands
    for name in ("infer", "model", "testbench"):
        codes[name] = 1
        assert demo.main() == 1
        assert ran[-1][0] == name
        assert capsys.readouterr().out == ""
        codes[name] = 0


def test_damaged_references_are_one_line(models, monkeypatch):
    models[0].write_text("a model")
    monkeypatch.setattr(demo, "REFERENCES", Path("none.npz"))
    message = demo.main_or_message()
    assert message.startswith("demo: stored references 'none.npz' cannot be read: ")
    assert "\n" not in message
