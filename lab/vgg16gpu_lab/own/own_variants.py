"""Somebody's own variants: the Python modules of a folder, as `lab new` writes them."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from vgg16gpu.errors import InputError
from vgg16gpu_lab.variant import Variant
from vgg16gpu_lab.variants import variants

_PREFIX = "vgg16gpu_own_"  # of the modules' names, so that none hides another package


def own_variants(folder: Path) -> tuple[Variant, ...]:
    """Load all `VARIANTS` of the modules in `folder`; tests and names with an underscore in front are left out.

    Their code is run. Raises InputError for a folder without any, a module that fails, and a name that is taken.
    """
    if not folder.is_dir():
        raise InputError(f"--dir '{folder}' is no folder; `vgg16gpu lab new NAME` makes one with a kernel in it")
    found = [variant for path in _modules(folder) for variant in _variants_of(path)]
    if not found:
        raise InputError(f"--dir '{folder}' has no module with VARIANTS; `vgg16gpu lab new NAME` writes one")
    taken = {variant.name for variant in variants()}
    for variant in found:
        if variant.name in taken:
            raise InputError(f"--dir '{folder}': a variant '{variant.name}' is there already; give it another name")
        taken.add(variant.name)
    return tuple(found)


def _modules(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if not path.name.startswith(("_", "test_", "conftest"))]


def _variants_of(path: Path) -> Iterator[Variant]:
    try:
        found = getattr(_imported(path), "VARIANTS", ())
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(f"{path}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})") from error
    if not isinstance(found, tuple | list) or not all(isinstance(variant, Variant) for variant in found):
        raise InputError(f"{path}: VARIANTS must be a tuple of Variant")
    yield from found


def _imported(path: Path) -> ModuleType:
    name = f"{_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
