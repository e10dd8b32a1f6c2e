"""Whose weights a model has, by metadata, by the digest of a .pth file, by the published numbers of conv1_1."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.weight_files import safetensors, state_of
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.file import hold_arrays
from vgg16gpu.compiler.vgg import provenance as module
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.compiler.vgg.provenance import Provenance, provenance
from vgg16gpu.compiler.vgg.source import FILES
from vgg16gpu.errors import ModelError
from vgg16gpu.zoo.generate import make_vgg

Arrays = dict[str, Any]

PUBLISHED = Provenance("torchvision", "its conv1_1 has the numbers that are published of torchvision's vgg16", "vgg16")


@pytest.fixture
def known() -> Arrays:
    """Make the first layers of vgg16 with torchvision's numbers where they are published, others elsewhere."""
    rng = np.random.default_rng(0)
    state = {
        name: rng.standard_normal(shape).astype(np.float32)
        for layer in Vgg("vgg16", depth=4).layers
        for name, shape in layer.parameters
    }
    state["features.0.weight"][0] = module._FILTER
    state["features.0.bias"][:] = module._BIASES
    return state


def held(state: Arrays, path: Path | None = None) -> Model:
    """Return a model of the first layers of vgg16; path: the file that its weights would be from, without torch."""
    model = Model.__new__(Model)
    model._open(hold_arrays(Vgg("vgg16", depth=4).graph(), state, {}, path), path)
    return model


def test_a_made_model_says_so_itself_and_its_weights_alone_do_not(tmp_path: Path) -> None:
    path = tmp_path / "vgg16.onnx"
    make_vgg(path, width=2, hidden=8, classes=5)
    found = provenance(Model(path))
    assert found == Provenance("random", "its metadata says 'random weights: the names mean nothing'")
    assert provenance(Model(path.read_bytes())) == found
    assert provenance(Model(state_of(path))).kind == "unknown"
    assert provenance(Model("digits")).kind == "unknown"


def test_published_numbers_are_known_in_memory_and_in_a_file(known: Arrays, tmp_path: Path) -> None:
    assert provenance(held(known)) == PUBLISHED
    near = known | {"features.0.bias": known["features.0.bias"] + np.float32(0.00004)}
    assert provenance(held(near)) == PUBLISHED  # as it prints
    path = tmp_path / "backbone.onnx"
    path.write_bytes(bytes(held(known).file.content))
    assert provenance(Model(path)) == PUBLISHED


@pytest.mark.parametrize(
    ("name", "index", "step"), [("weight", (0, 2, 2, 2), 1e-3), ("bias", 63, 1e-4), ("weight", (0, 0, 0, 0), np.nan)]
)
def test_another_number_makes_a_net_unknown(known: Arrays, name: str, index: Any, step: float) -> None:
    known[f"features.0.{name}"][index] += step
    assert provenance(held(known)).kind == "unknown"


def test_filters_for_bgr_are_not_torchvisions(known: Arrays) -> None:
    known["features.0.weight"] = np.ascontiguousarray(known["features.0.weight"][:, ::-1])
    assert provenance(held(known)).kind == "unknown"


def test_a_pth_file_is_known_by_its_bytes_whatever_its_name(
    known: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module._sha256.cache_clear()
    hashed: list[Path] = []
    digest = hashlib.file_digest

    def counted(stream: Any, name: str) -> Any:
        hashed.append(Path(stream.name))
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    path = tmp_path / FILES["vgg16"]  # the right name alone does not help
    other = known | {"features.0.bias": -known["features.0.bias"]}
    path.write_bytes(safetensors(other))
    assert provenance(held(other, path)).kind == "unknown"
    assert provenance(held(other, path)).kind == "unknown"
    assert hashed == [path]
    renamed = path.rename(tmp_path / "mine.PTH")
    digits = hashlib.sha256(renamed.read_bytes()).hexdigest()[:8]
    monkeypatch.setitem(module._DIGITS, digits, "vgg11_bn-6002323d.pth")
    assert provenance(held(other, renamed)) == Provenance(
        "torchvision", "its SHA-256 is that of torchvision's vgg11_bn-6002323d.pth", "vgg11_bn"
    )
    renamed.write_bytes(safetensors(known))
    assert provenance(held(known, renamed)) == PUBLISHED  # other bytes under the same name are read anew
    assert hashed == [path, renamed, renamed]
    renamed.unlink()
    with pytest.raises(ModelError, match=r"mine\.PTH: cannot be read \(No such file"):
        provenance(held(known, renamed))


def test_the_digits_are_those_of_torch_hubs_names() -> None:
    assert len(module._DIGITS) == len(FILES) == 8
    assert module._DIGITS["397923af"] == "vgg16-397923af.pth"
    assert all(f"-{digits}.pth" in name and len(digits) == 8 for digits, name in module._DIGITS.items())
