"""Who decodes pictures, as a user may choose. No imports that take time: a command line offers it first."""

from __future__ import annotations

from typing import Final

CPU: Final = "cpu"
GPU: Final = "gpu"
DECODE: Final = ("auto", CPU, GPU)
AUTO: Final = CPU  # what auto means; docs/pictures.md says why


def chosen(wanted: str) -> str:
    """Return CPU or GPU for one of DECODE."""
    return AUTO if wanted == "auto" else wanted
