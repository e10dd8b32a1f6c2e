"""The Python side of each kernel, one module named like its .cu file: constraints, tiles, launch geometry, packing.

A module that lowers graph ops defines LOWERING, or LOWERINGS. They are found, not listed: to add a kernel, add files.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.lowering.base import AnyLowering
from vgg16gpu.errors import ModelError


@cache
def _lowerings() -> dict[type[Op], tuple[AnyLowering, ...]]:
    found: dict[type[Op], tuple[AnyLowering, ...]] = {}
    for name in modules():
        module = importlib.import_module(name)
        one: tuple[AnyLowering, ...] = (module.LOWERING,) if hasattr(module, "LOWERING") else ()
        for lowering in (*one, *getattr(module, "LOWERINGS", ())):
            found[lowering.op_type] = (*found.get(lowering.op_type, ()), lowering)
    return {op: tuple(sorted(several, key=lambda one: -one.priority)) for op, several in found.items()}


def modules() -> list[str]:
    """The names of all modules below."""
    return sorted(info.name for info in pkgutil.walk_packages(__path__, f"{__name__}.") if not info.ispkg)


def lowerings(op: Op) -> tuple[AnyLowering, ...]:
    """How ops of this type become steps, higher priorities first. Raises ModelError where no kernel does."""
    found = _lowerings().get(type(op), ())
    if not found:
        raise ModelError(f"{type(op).__name__} '{op.y}': there is no kernel for this operator")
    return found
