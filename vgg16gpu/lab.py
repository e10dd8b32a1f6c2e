"""Old names of vgg16gpu_lab: `vgg16gpu.lab.problem`, `.trial` and `.variant`, which kernels of `lab new` import.

The package vgg16gpu_lab names itself by an entry point. Raises ImportError where that package is not installed.
"""

import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points

_NAMES = ("problem", "trial", "variant")

_found = next(iter(entry_points(group="vgg16gpu.aliases", name="lab")), None)
if _found is None:
    raise ImportError("vgg16gpu.lab is the package vgg16gpu_lab now: in a checkout, pip install ./lab")
for _name in _NAMES:
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = import_module(f"{_found.module}.{_name}")
warnings.warn("vgg16gpu.lab is called vgg16gpu_lab now", DeprecationWarning, stacklevel=2)
