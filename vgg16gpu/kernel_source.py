"""Where the kernel sources are, and what they say.

A wheel carries the sources inside the package; a checkout (and `pip install -e .`) has them beside it.
"""

from __future__ import annotations

from pathlib import Path

from vgg16gpu.errors import KernelError

_HEADER_SUFFIXES = (".cuh", ".h")


def kernel_dir() -> Path:
    """The folder of the kernel sources: `vgg16gpu/kernels` if packaged, else the repository's `kernels/`.

    Raises KernelError if neither holds the sources.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "kernels", package.parent / "kernels")
    for folder in candidates:
        if (folder / "common.cuh").is_file():
            return folder
    looked = " or ".join(str(folder) for folder in candidates)
    raise KernelError(f"no kernel sources (common.cuh) in {looked}: the installation is incomplete, install it again")


def source_path(name: str) -> Path:
    """The file of a source: a name in `kernel_dir()`, or an absolute path. Raises KernelError if it is not there."""
    folder = kernel_dir()
    path = folder / name  # an absolute name replaces the folder
    if path.is_file():
        return path
    known = ", ".join(sorted(file.name for file in folder.glob("*.cu"))) or "none"
    raise KernelError(f"kernel source {name!r} not found in {folder}; there are: {known}")


def read_source(name: str) -> str:
    """The text of a source file. Raises KernelError if it cannot be read."""
    path = source_path(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"kernel source {path} cannot be read: {error}") from error


def headers() -> tuple[Path, ...]:
    """Every header that a kernel source may include, sorted: part of the key of a compiled kernel."""
    folder = kernel_dir()
    return tuple(sorted(path for path in folder.rglob("*") if path.suffix in _HEADER_SUFFIXES and path.is_file()))
