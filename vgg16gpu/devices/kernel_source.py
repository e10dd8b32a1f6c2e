"""Where the kernel sources are, and what they say.

A wheel carries the sources inside the package; a checkout (and `pip install -e .`) has them beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vgg16gpu.errors import KernelError

SUFFIXES = (".cu", ".cuh", ".h")

_HEADER_SUFFIXES = (".cuh", ".h")
_HEADERS = "include"  # the folder of most headers
_NAMED = ("cpu", "lab", "ladder", "plain")  # folders that are part of the names of what lies in them


def kernel_dir() -> Path:
    """The folder of the kernel sources: `vgg16gpu/kernels` if packaged, else the repository's `kernels/`.

    Raises KernelError if neither holds the sources.
    """
    return _kernel_dir(__file__)


@cache
def _kernel_dir(module: str) -> Path:
    package = Path(module).resolve().parents[1]
    candidates = (package / "kernels", package.parent / "kernels")
    for folder in candidates:
        if (folder / _HEADERS / "common.cuh").is_file():
            return folder
    looked = " or ".join(str(folder) for folder in candidates)
    raise KernelError(f"no kernel sources (common.cuh) in {looked}: the installation is incomplete, install it again")


def source_path(name: str) -> Path:
    """The file of a source: by its name as `source_name` gives it, or an absolute path.

    Raises KernelError if it is not there.
    """
    folder = kernel_dir()
    path = folder / name  # an absolute name replaces the folder
    if path.is_file():
        return path
    if not (other := _named(folder).get(name, path)).is_file():
        _named.cache_clear()  # it may be new
        other = _named(folder).get(name, path)
    if other.is_file():
        return other
    known = ", ".join(sorted(source_name(file) for file in own_sources())) or "none"
    raise KernelError(f"kernel source {name!r} not found in {folder}; there are: {known}")


def read_source(name: str) -> str:
    """The text of a source file. Raises KernelError if it cannot be read."""
    path = source_path(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"kernel source {path} cannot be read: {error}") from error


def source_name(path: Path) -> str:
    """What a file of `kernel_dir()` is called, by steps, tables and records: "conv_mma.cu", "lab/direct_hwc.cu".

    Its folder is part of that for `cpu`, `lab`, `ladder` and `plain` alone; the others sort files for readers.
    """
    room = path.relative_to(kernel_dir()).parts[0]
    return f"{room}/{path.name}" if room in _NAMED else path.name


def files(*suffixes: str) -> tuple[Path, ...]:
    """Every file of `kernel_dir()` that ends in one of `suffixes`, sorted by name, whatever its folder."""
    found = _below(kernel_dir(), suffixes)
    return tuple(sorted(found, key=lambda path: source_name(path).split("/")))


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        found = (Path(place, name) for name in names if name.endswith(suffixes))
        yield from (path for path in found if path.is_file())


@cache
def _named(folder: Path) -> dict[str, Path]:
    """Every source below a folder by its name: a start asks for twenty."""
    return {source_name(path): path for path in _below(folder, SUFFIXES)}


def own_sources() -> tuple[Path, ...]:
    """The kernels that the engine runs, sorted by name: all but those of lab, ladder and plain."""
    return tuple(sorted((path for path in files(".cu") if "/" not in source_name(path)), key=lambda path: path.name))


def headers() -> tuple[Path, ...]:
    """Every header that a kernel source may include, sorted: part of the key of a compiled kernel."""
    return files(*_HEADER_SUFFIXES)


def include_dirs() -> tuple[Path, ...]:
    """Where a compiler looks for headers."""
    folder = kernel_dir()
    return folder / _HEADERS, folder / _HEADERS / "hopper", folder
