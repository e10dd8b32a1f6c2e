"""models/train_vgg16.py with a tiny net and a few steps: what it writes is a model, and images as it saw them."""

import json
from pathlib import Path

import numpy as np
import pytest

from vgg16gpu.checks.testbench import labelled_images
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.pictures.images import load_image
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.digits import enlarge, heldout

SIZE = 56
TINY = ("--size", str(SIZE), "--width", "4", "--hidden", "16", "--steps", "2", "--batch", "8", "--device", "cpu")


@pytest.fixture
def trainer(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "models"))
    import train_vgg16

    return train_vgg16


def test_a_short_training_writes_everything(trainer, tmp_path, capsys):
    assert trainer.main([*TINY, "--output", str(tmp_path)]) == 1  # two steps teach nothing
    record = json.loads((tmp_path / "training.json").read_text())
    assert f"held out: {record['heldout_right_bf16']} of 450" in capsys.readouterr().out
    assert (record["steps"], record["tries"]) == (2, 1)
    assert len(list((tmp_path / "calibration").iterdir())) == 200
    files = labelled_images(tmp_path / "heldout", [str(i) for i in range(10)])
    assert sorted(label for _, label in files) == sorted(heldout()[2])
    with Engine(tmp_path / "vgg16-digits.onnx", device="cpu") as engine:
        assert engine.program.input.shape == (1, 3, SIZE, SIZE)


def test_the_file_computes_what_torch_computes(trainer, tmp_path):
    import torch

    net = Vgg(size=SIZE, width=4, hidden=16)
    torch.manual_seed(3)
    model = trainer.build(net)
    trainer.export(net, model, tmp_path / "net.onnx", "a note")
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(normalise(pixels, IMAGENET_MEAN, IMAGENET_STD))).numpy()
    with Engine(tmp_path / "net.onnx", device="cpu") as engine:
        assert np.abs(engine.run(pixels) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_images_are_seen_as_they_were_trained_on(trainer, tmp_path):
    digits = trainer.load_split()
    assert np.array_equal(enlarge(digits.unseen, 32), heldout()[0])
    trainer.write_images(digits, tmp_path, 224)
    first = tmp_path / "heldout" / str(digits.unseen_labels[0]) / "000.png"
    expected = np.repeat(enlarge(digits.unseen[:1], 224)[0], 3, axis=2)
    assert np.array_equal(load_image(first, 3, 224, 224), expected)


def test_a_loss_that_does_not_fall_ends_in_another_try_and_then_in_words(trainer, monkeypatch, capsys):
    monkeypatch.setattr(trainer, "PATIENCE", 2)
    monkeypatch.setattr(trainer, "REPORT_EVERY", 2)
    settings = trainer.Settings("cpu", 8, 100, 60.0)
    with pytest.raises(SystemExit, match="did not fall in 3 tries"):
        trainer.train(Vgg(size=SIZE, width=4, hidden=16), trainer.load_split(), settings)
    assert "try 2: the loss is still" in capsys.readouterr().out
