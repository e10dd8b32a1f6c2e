"""What tests of answers share: a small model, pictures of many sizes, and the answers that they must get."""

import numpy as np
import pytest
from PIL import Image

from vgg16gpu import Engine
from vgg16gpu.pictures.images import load_image
from vgg16gpu.zoo.generate import make_vgg

SIDE = 32
CLASSES = 20


@pytest.fixture(scope="session")
def narrow_model(tmp_path_factory):
    """A narrow VGG11 of 3x32x32 with random weights."""
    path = tmp_path_factory.mktemp("answers") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=SIDE, width=4, hidden=32, classes=CLASSES)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of 61 files: JPEGs and PNGs of many sizes and shapes, two of them broken."""
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(1)
    for i in range(59):
        height, width = chance.integers(8, 128, 2)
        coarse = chance.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        picture.save(folder / f"{i:02}.{'png' if i % 5 == 0 else 'jpg'}")
    (folder / "11x.jpg").write_bytes((folder / "11.jpg").read_bytes()[:300])
    (folder / "99.png").write_text("no picture")
    return folder


@pytest.fixture(scope="session")
def wanted(narrow_model, pictures):
    """(name, scores or None) of every file: one picture at a time, through `Engine.run`."""
    found = []
    with Engine(narrow_model, device="cpu") as engine:
        for path in sorted(pictures.iterdir()):
            try:
                pixels = load_image(path, 3, SIDE, SIDE)
            except Exception:
                found.append((str(path), None))
            else:
                found.append((str(path), engine.run(pixels[np.newaxis])[0]))
    return found
