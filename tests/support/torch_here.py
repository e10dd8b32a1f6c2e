"""torch where it is installed: its import warns, and warnings are errors in tests."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


def torch_module() -> Any:
    """torch; skips where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


def torch_with_cuda() -> Any:
    """torch; skips also where it was built for CPUs alone: nothing of ours needs the other build."""
    torch = torch_module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking for a card may warn
        has_cuda = torch.cuda.is_available()
    if not has_cuda:
        pytest.skip("torch is here without CUDA")
    return torch
