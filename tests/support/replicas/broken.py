"""Files that are no models, or lack a part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx

from tests.support.replicas.base import EXPORT, Broken, write, write_external
from tests.support.replicas.storage import short_vgg


def raw(data: bytes) -> Callable[[Path], Path]:
    """A file with these bytes."""

    def made(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(data)
        return path

    return made


def cut(fraction: float) -> Callable[[Path], Path]:
    """The first part of a model."""

    def made(folder: Path) -> Path:
        data = short_vgg().SerializeToString()
        return raw(data[: int(len(data) * fraction)])(folder)

    return made


def external(edit: Callable[[Path], object], location: str = "model.onnx.data") -> Callable[[Path], Path]:
    """A model with its weights beside it, after `edit` has been at them."""

    def made(folder: Path) -> Path:
        home = folder / "home"
        home.mkdir()
        path = write_external(short_vgg(), home)
        proto = onnx.load(path, load_external_data=False)
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location.format(folder=folder)
        write(proto, home)
        edit(home / "model.onnx.data")
        return path

    return made


def move_outside(data: Path) -> None:
    """One folder up."""
    data.rename(data.parent.parent / "outside.data")


def link_outside(data: Path) -> None:
    """One folder up, a symbolic link in its place."""
    move_outside(data)
    data.symlink_to(data.parent.parent / "outside.data")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"


OWN_FOLDER = "own folder|leaves the model's folder"


BROKEN: dict[str, Broken] = {
    "empty": Broken(raw(b""), ("is empty", "copy or download")),
    "git-lfs-pointer": Broken(raw(LFS), ("git-LFS pointer", "git lfs pull")),
    "text": Broken(raw(b"not a model\n" * 50), ("not an ONNX model", EXPORT)),
    "picture": Broken(raw(b"\x89PNG\r\n\x1a\n" + bytes(500)), ("not an ONNX model", EXPORT)),
    "torch-checkpoint": Broken(raw(b"PK\x03\x04" + bytes(range(256))), ("not an ONNX model", EXPORT)),
    "json": Broken(raw(b'{"graph": {"node": []}}'), ("not an ONNX model", EXPORT)),
    **{
        f"truncated-at-{percent}-percent": Broken(cut(percent / 100), ("truncated", "copy or download"))
        for percent in (10, 50, 90)
    },
    "external-missing": Broken(external(Path.unlink), ("'model.onnx.data'", "missing", "beside the model")),
    "external-short": Broken(
        external(lambda data: data.write_bytes(data.read_bytes()[:-1])),
        ("'model.onnx.data'", "truncated", "copy or download"),
    ),
    "external-empty": Broken(
        external(lambda data: data.write_bytes(b"")), ("model.onnx.data", "is empty", "copy or download")
    ),
    "external-lfs-pointer": Broken(external(lambda data: data.write_bytes(LFS)), ("model.onnx.data", "git lfs pull")),
    "external-above": Broken(external(move_outside, "../outside.data"), (r"'\.\./outside\.data'", OWN_FOLDER)),
    "external-absolute": Broken(external(move_outside, "{folder}/outside.data"), ("outside.data", OWN_FOLDER)),
    "external-link": Broken(external(link_outside), ("'model.onnx.data'", OWN_FOLDER)),
}
