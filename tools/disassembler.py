"""NVIDIA's disassembler: where it may be, and what a compiled kernel looks like through it.

The loops of one cubin are the same through nvdisasm of CUDA 13.2 and 13.5, so its release is not part of the table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vgg16gpu.devices.cuda.probe import Toolkit

NAME: Final = "nvdisasm"
INSTALL: Final = f"`pip install nvidia-cuda-{NAME}`, or the whole CUDA toolkit"


def find(toolkit: Toolkit, path: str | None = None, folders: Sequence[str] | None = None) -> Path | None:
    """The first disassembler beside nvcc, on PATH, or among the Python packages; None if there is none."""
    candidates = _candidates(toolkit, path, sys.path if folders is None else folders)
    return next((found for found in candidates if os.access(found, os.X_OK)), None)


def _candidates(toolkit: Toolkit, path: str | None, folders: Sequence[str]) -> Iterator[Path]:
    yield from (toolkit.nvcc.with_name(NAME), toolkit.root / "bin" / NAME)
    if on_path := shutil.which(NAME, path=path):
        yield Path(on_path)
    for folder in folders:
        yield from sorted(Path(folder).glob(f"nvidia/*/bin/{NAME}"), reverse=True)


def disassemble(program: Path, cubin: Path) -> str:
    """The instructions of a cubin, with labels where branches lead to; raises RuntimeError if it cannot be read."""
    result = subprocess.run([str(program), "-c", str(cubin)], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{program} fails with {result.returncode}: {result.stderr.strip() or result.stdout[:200]}")
    return result.stdout
