"""Where the kernel sources are, and what they say.

A wheel carries the sources inside the package; a checkout (and `pip install -e .`) has them beside it. A package with
kernels of its own adds their folder (`add_kernel_dir`).
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
_NAMED = ("cpu", "nvrtc", "plain")  # folders that are part of the names of what lies in them

_added: list[Path] = []


def kernel_dir() -> Path:
    """Return the folder of the kernel sources: `vgg16gpu/kernels` if packaged, else the repository's `kernels/`.

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


def add_kernel_dir(folder: Path) -> None:
    """Add `folder` to the places of sources, and of headers by their path below it.

    A source in it is called by its topmost folder and its own name: "lab/direct_hwc.cu".
    """
    if folder not in _added:
        _added.append(folder)
        _named.cache_clear()


def source_path(name: str) -> Path:
    """Return the file of a source: by its name as `source_name` gives it, or an absolute path.

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
    looked = " or ".join(str(place) for place in (folder, *_added))
    raise KernelError(f"kernel source {name!r} not found in {looked}; there are: {known}")


def read_source(name: str) -> str:
    """Return the text of a source file. Raises KernelError if it cannot be read."""
    path = source_path(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"kernel source {path} cannot be read: {error}") from error


def source_name(path: Path) -> str:
    """Return a source's name in steps, tables and records: "conv_mma.cu", "cpu/mma.h", "lab/direct_hwc.cu".

    The topmost folder is part of that for `cpu`, `plain` and what `add_kernel_dir` added; the others sort files.
    """
    own = kernel_dir()
    root = next((folder for folder in _added if path.is_relative_to(folder)), own)
    room = path.relative_to(root).parts[0]
    return f"{room}/{path.name}" if room in _NAMED or root is not own else path.name


def files(*suffixes: str) -> tuple[Path, ...]:
    """Return every source that ends in one of `suffixes`, sorted by name, whatever its folder."""
    return _sorted((kernel_dir(), *_added), suffixes)


def _sorted(folders: tuple[Path, ...], suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    found = (path for folder in folders for path in _below(folder, suffixes))
    return tuple(sorted(found, key=lambda path: source_name(path).split("/")))


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        found = (Path(place, name) for name in names if name.endswith(suffixes))
        yield from (path for path in found if path.is_file())


@cache
def _named(folder: Path) -> dict[str, Path]:
    """Return every source below a folder, and below those that were added, by name: a start asks for twenty."""
    return {source_name(path): path for place in (folder, *_added) for path in _below(place, SUFFIXES)}


def own_sources() -> tuple[Path, ...]:
    """Return the kernels that the engine runs, sorted by name: all but those of plain and of other packages."""
    return tuple(sorted((path for path in files(".cu") if "/" not in source_name(path)), key=lambda path: path.name))


def headers(source: str = "") -> tuple[Path, ...]:
    """Return every header that a source may include, sorted: part of a compiled kernel's key. Without a source: all.

    The engine's kernels include none of other packages, so that their keys are the same where those are loaded.
    """
    return headers_below(header_dirs(source))


def header_dirs(source: str = "") -> tuple[Path, ...]:
    """Return the folders whose headers a source may include; all folders without a source."""
    own = kernel_dir()
    return (own,) if source and source_path(source).is_relative_to(own) else (own, *_added)


def headers_below(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return every header below the folders, sorted. It walks through them, so a start asks once for each."""
    return _sorted(folders, _HEADER_SUFFIXES)


def include_dirs() -> tuple[Path, ...]:
    """Return the folders in which a compiler looks for headers."""
    folder = kernel_dir()
    return folder / _HEADERS, folder / _HEADERS / "hopper", folder, *_added
