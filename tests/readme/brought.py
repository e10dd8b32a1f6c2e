"""Make what the reader of README brings: a folder of pictures, and a model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image

from vgg16gpu.io.synthetic import structured_images
from vgg16gpu.zoo.digits import heldout
from vgg16gpu.zoo.generate import make_vgg

SIDE: Final = 224  # pixels a side of the model's pictures
CLASSES: Final = 5

_SEED: Final = 3  # its model gives testbench's inputs five different answers; with fewer testbench calls itself blind
_EACH: Final = 3  # pictures of a kind


def make_photos(folder: Path) -> None:
    """Write digits (.png), structured pictures of another size (.jpg), and a picture that ends after half its bytes."""
    folder.mkdir()
    digits, _, _ = heldout()
    for number, pixels in enumerate(digits[:_EACH]):
        Image.fromarray(pixels[..., 0]).save(folder / f"digit-{number}.png")
    for number, pixels in enumerate(structured_images(_EACH, 300, seed=1)):
        Image.fromarray(pixels).save(folder / f"pattern-{number}.jpg")
    content = (folder / "pattern-0.jpg").read_bytes()
    (folder / "broken.jpg").write_bytes(content[: len(content) // 2])


def make_model(path: Path) -> None:
    """Write a narrow VGG16 with random weights: pictures of SIDE x SIDE pixels, CLASSES classes."""
    make_vgg(path, variant="vgg16", size=SIDE, width=8, hidden=32, classes=CLASSES, seed=_SEED)
