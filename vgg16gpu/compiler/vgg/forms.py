"""Which sources of a model are weights of torch. A start with an ONNX file imports no more of this folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "torchvision/"
FORMS: Final = "a module of torch, a state dict, the path of a .pth, .pt or .safetensors file, or 'torchvision/vgg16'"

PICKLED: Final = (".pth", ".pt")
SAFE: Final = ".safetensors"


def is_of_torch(source: Any) -> bool:
    """Return whether a source of a model is one of `FORMS`: a path by its ending."""
    if isinstance(source, str | Path):
        return is_hub_name(source) or Path(source).suffix.lower() in (*PICKLED, SAFE)
    return isinstance(source, Mapping) or is_module(source)


def is_hub_name(source: Any) -> bool:
    """Return whether a model's name begins with "torchvision/", and no file of that name is in the way."""
    return isinstance(source, str | Path) and str(source).startswith(PREFIX) and not Path(source).exists()


def is_module(source: Any) -> bool:
    """Return whether it is a module of torch."""
    torch = loaded_torch()
    return torch is not None and isinstance(source, torch.nn.Module)


def loaded_torch() -> Any:
    """Return torch if this process has imported it, else None: then no tensor and no module of torch exists here.

    While another thread is importing torch it has no `nn` yet.
    """
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") and hasattr(torch, "Tensor") else None
