"""Torch hub's files of torchvision's VGGs: "torchvision/vgg16" as the name of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vgg16gpu.compiler.vgg.forms import PREFIX, loaded_torch
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import printable

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
