"""The kernels of the lab, a module for each file in kernels/lab. A module's `VARIANTS` is all that is known of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from vgg16gpu_lab.variant import Variant


def variants() -> tuple[Variant, ...]:
    """Return all variants of the package, in reading order."""
    return tuple(sorted(_found(), key=lambda variant: (variant.order, variant.name)))


def _found() -> Iterator[Variant]:
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        yield from getattr(importlib.import_module(module.name), "VARIANTS", ())
