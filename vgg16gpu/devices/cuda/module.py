"""Kernels as PyCUDA source modules whose compiled form is at hand. Importing this module needs PyCUDA."""

from __future__ import annotations

from pycuda.compiler import SourceModule
from pycuda.driver import module_from_buffer


class CachedModule(SourceModule):  # type: ignore[misc]  # PyCUDA has no annotations
    """A SourceModule loaded from its cubin.

    SourceModule compiles and loads in one constructor, and starts nvcc's preprocessor even where its own cache has the
    answer. Compiling is done before, in parallel and with a cache of ours; what is left of the constructor is this.
    Everything that PyCUDA offers for a SourceModule works on it.
    """

    def __init__(self, cubin: bytes) -> None:
        self.module = module_from_buffer(cubin)
        self._bind_module()
