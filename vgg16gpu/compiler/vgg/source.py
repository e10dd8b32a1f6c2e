"""Open what a model is given as, torch hub's cached files included."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vgg16gpu.compiler.onnx.file import OnnxFile, hold_arrays, map_weights
from vgg16gpu.compiler.onnx.metadata import PREPROCESS_KEY
from vgg16gpu.compiler.vgg.forms import FORMS, PREFIX, SAFE, is_hub_name, is_module, is_of_torch, loaded_torch
from vgg16gpu.compiler.vgg.modules import describe
from vgg16gpu.compiler.vgg.state_dict import Weights, check_arch, read_safetensors, read_weights
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.shown import printable, shown

# As `torchvision.models.VGG16_Weights.IMAGENET1K_V1.url` and its like have them.
FILES: Final[Mapping[str, str]] = {
    "vgg11": "vgg11-8a719046.pth",
    "vgg11_bn": "vgg11_bn-6002323d.pth",
    "vgg13": "vgg13-19584684.pth",
    "vgg13_bn": "vgg13_bn-abd245e5.pth",
    "vgg16": "vgg16-397923af.pth",
    "vgg16_bn": "vgg16_bn-6c64b313.pth",
    "vgg19": "vgg19-dcbb9e9d.pth",
    "vgg19_bn": "vgg19_bn-c79401a0.pth",
}


def is_hub_file(path: Path) -> bool:
    """Return whether a file is called as one of torchvision's."""
    return path.name in FILES.values()


def hub_file(name: str) -> Path:
    """Return the file of "torchvision/vgg16" and its like. Raises ModelError, which says how to get it."""
    arch = name.removeprefix(PREFIX)
    if arch not in FILES:
        names = ", ".join(f"{PREFIX}{each}" for each in FILES)
        raise ModelError(f"{printable(name)}: there is no such model; choose one of {names}")
    path = checkpoints() / FILES[arch]
    if not path.is_file():
        get = f"python -c \"import torchvision; torchvision.models.{arch}(weights='IMAGENET1K_V1')\""
        raise ModelError(f"{name}: {printable(str(path))} does not exist; get it: {get}")
    return path


def checkpoints() -> Path:
    """Return the folder where torch hub keeps files of weights, by torch's own rules."""
    torch = loaded_torch()
    if torch is not None and hasattr(torch, "hub"):
        return Path(torch.hub.get_dir()) / "checkpoints"
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("TORCH_HOME", os.path.join(cache, "torch"))  # noqa: PTH118 - a home folder may be missing
    return Path(os.path.expanduser(home)) / "hub" / "checkpoints"  # noqa: PTH111


_INSTALL: Final = "a .pth file is read by torch, which is not installed: pip install torch, or use a .safetensors file"
_WRITE: Final = "write it with torch.save(net.state_dict(), path)"


def open_weights(source: Any, arch: str | None = None) -> OnnxFile:
    """Open one of `FORMS` as a model.

    arch: vgg11, vgg11_bn, ... vgg19_bn; None: as the names of the tensors have it. Weights of float32 in memory, and in
    a .safetensors file, are not copied. Raises ModelError, in one line, and InputError for what is none of `FORMS`.
    """
    check_arch(arch)
    if not is_of_torch(source):
        raise InputError(f"the weights are {shown(source)}; give {FORMS}")
    path = None
    if isinstance(source, str | Path):
        path = hub_file(str(source)) if is_hub_name(source) else Path(source)
    try:
        weights = _read(source if path is None else path, arch)
    except ModelError as error:
        where = printable(str(path))
        if path is None or str(error).startswith(where):
            raise
        raise ModelError(f"{where}: {error}") from error
    return hold_arrays(weights.net.graph(), weights.arrays, _metadata(path), path)


def _read(source: Any, arch: str | None) -> Weights:
    if is_module(source):
        described = describe(source, arch)
        return read_weights(described.state, described.arch, described.depth)
    if isinstance(source, Path):
        source = read_safetensors(source) if source.suffix.lower() == SAFE else _unpickled(source)
    return read_weights(source, arch)


def _unpickled(path: Path) -> Mapping[Any, Any]:
    """Return the state dict of a .pth file, read by torch without running what is in it; mapped where that can be."""
    map_weights(path)  # says what is wrong with the file itself
    try:
        import torch  # noqa: PLC0415 - only this needs it
    except ImportError as error:
        raise ModelError(_INSTALL) from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged file raises whatever its pickle leads to
        reason = printable((str(error).splitlines() or [type(error).__name__])[0])[:200]
        raise ModelError(f"torch cannot read it as weights alone ({reason}); {_WRITE}") from error
    if not isinstance(found, Mapping):
        raise ModelError(f"it holds {shown(found)}; {_WRITE}")
    return found


def _metadata(path: Path | None) -> Mapping[str, str]:
    """Return what is known of torchvision's own weights: what is done to pictures."""
    if path is None or not is_hub_file(path):
        return {}
    return {PREPROCESS_KEY: Preprocess.named("torchvision").to_json()}
