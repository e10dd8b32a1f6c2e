"""Recorded bits: SHA-256 of generated weights and of the scores that they give, the same on every device and machine.

`python -m tests.system.test_bits` records them anew in testbench/bits.json, which is right only when an order of
summation, or what a model is made of, has been changed on purpose. They are the bits of float32 arithmetic: where
tensor cores would compute fp32, the kernels are asked for by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest

from vgg16gpu import Engine
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.base import Device
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.synthetic import TESTBENCH_SEED, structured_images
from vgg16gpu.zoo.generate import make_vgg

RECORDS = Path(__file__).resolve().parents[2] / "testbench" / "bits.json"


class Net(NamedTuple):
    """Arguments of make_vgg, and how many images are asked about."""

    options: dict[str, Any]
    images: int


NETS = {
    "vgg16-small": Net({"size": 48, "width": 8, "hidden": 64, "classes": 10}, 5),
    "vgg11_bn-odd": Net(
        {"variant": "vgg11", "size": 61, "batch_norm": True, "width": 6, "hidden": 50, "classes": 7}, 3
    ),
    "vgg16-medium": Net({"size": 96, "width": 32, "hidden": 512, "classes": 100}, 2),
    "vgg16-224": Net({}, 2),
}


@pytest.fixture(autouse=True)
def _as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the kernels as users do, whatever other tests do."""
    monkeypatch.delenv("VGG16GPU_OPTIMIZE", raising=False)


def digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, "<f4").tobytes()).hexdigest()


def sample_images(net: Net) -> Array:
    pixels = structured_images(net.images, net.options.get("size", 224), TESTBENCH_SEED)
    return normalise(pixels, IMAGENET_MEAN, IMAGENET_STD)


def scores(model: Path, net: Net, device: str, batch: int) -> Array:
    with Engine(model, device=device, batch=batch, kernels="ffma") as engine:
        result = engine.run(sample_images(net))
    assert isinstance(result, np.ndarray)
    return result


class Models(dict[str, tuple[Path, str]]):
    """(file, SHA-256) of a net, made when it is first asked for: both devices ask for the same ones."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> tuple[Path, str]:
        path = self.folder / f"{name}.onnx"
        self[name] = path, make_vgg(path, **NETS[name].options)
        return self[name]


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    with TemporaryDirectory() as folder:  # pytest would keep half a gigabyte
        yield Models(Path(folder))


LARGER = pytest.mark.slow(reason="smaller images go through the same kernels")


@pytest.mark.parametrize(
    "name",
    ["vgg16-small", "vgg11_bn-odd", *(pytest.param(f"vgg16-{name}", marks=LARGER) for name in ("medium", "224"))],
)
def test_recorded_bits(device: Device, models: Models, name: str) -> None:
    model, model_digest = models[name]
    recorded = json.loads(RECORDS.read_text())[name]
    assert model_digest == recorded["model"]
    net = NETS[name]
    images = sample_images(net)
    assert digest(images) == recorded["images"]
    for batch in (1, net.images):
        found = scores(model, net, device.facts.kind, batch)
        assert len(np.unique(found, axis=0)) == net.images
        assert digest(found) == recorded["scores"], f"{name}, batch {batch}: {found[0, :3]}"


def record() -> None:
    """Write testbench/bits.json with what the cpu device computes."""
    records = {}
    with TemporaryDirectory() as folder:
        for name, net in NETS.items():
            path = Path(folder) / "model.onnx"
            records[name] = {
                "model": make_vgg(path, **net.options),
                "images": digest(sample_images(net)),
                "scores": digest(scores(path, net, "cpu", 1)),
            }
    RECORDS.write_text(json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    record()
