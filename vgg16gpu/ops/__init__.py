"""The Python side of each kernel, one module named like its .cu file: constraints, tiles, launch geometry, packing.

A module that lowers graph ops defines LOWERING, or LOWERINGS. They are found, not listed: to add a kernel, add files.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from vgg16gpu.errors import ModelError
from vgg16gpu.graph import Op
from vgg16gpu.ops.base import Lowering


@cache
def _lowerings() -> dict[type[Op], Lowering]:
    found: dict[type[Op], Lowering] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        one: tuple[Lowering, ...] = (module.LOWERING,) if hasattr(module, "LOWERING") else ()
        found |= {lowering.op_type: lowering for lowering in (*one, *getattr(module, "LOWERINGS", ()))}
    return found


def lowering(op: Op) -> Lowering:
    """How ops of this type become steps. Raises ModelError for a type that no module lowers."""
    found = _lowerings().get(type(op))
    if found is None:
        raise ModelError(f"{type(op).__name__} '{op.y}': there is no kernel for this operator")
    return found
