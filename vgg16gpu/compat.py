"""Names that were public once. They go on working, with a DeprecationWarning that says the name of today."""

import sys
import warnings
from typing import Any, Final

RENAMED: Final = {"vgg16gpu.program": {"Step": "KernelLaunch"}}  # kernels of `lab new` import it


def renamed(module: str, name: str) -> Any:
    """Return what `module` calls otherwise today, and warn. Raises AttributeError for a name that it never had."""
    today = RENAMED[module].get(name)
    if today is None:
        raise AttributeError(f"module '{module}' has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is called {today} now", DeprecationWarning, stacklevel=3)
    return getattr(sys.modules[module], today)
