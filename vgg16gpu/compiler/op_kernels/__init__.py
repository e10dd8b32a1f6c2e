"""The Python side of each kernel, one module named like its .cu file: constraints, tiles, launch geometry, packing.

A module with kernels of graph ops defines OP_KERNEL, or OP_KERNELS, and has a row in `MODULES`: it is imported where a
graph has such an op, and the planner asks for such a family. Tests hold the rows against the modules.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vgg16gpu.errors import ModelError

if TYPE_CHECKING:
    from vgg16gpu.compiler.graph.ops import Op
    from vgg16gpu.compiler.op_kernels.base import AnyOpKernel


class RegistryRow(NamedTuple):
    """A module below this one, the families of its kernels, and the ops that they compute.

    ops: names of classes, each with its subclasses.
    """

    module: str
    families: tuple[str, ...]
    ops: tuple[str, ...]


_FFMA: Final = ("ffma",)
MODULES: Final = (
    RegistryRow("conv.conv_direct", _FFMA, ("Conv",)),
    RegistryRow("conv.conv_few", ("mma",), ("Conv",)),
    RegistryRow("conv.conv_first", ("wgmma",), ("Conv",)),
    RegistryRow("conv.conv_first_two", ("wgmma",), ("FusedConvPair",)),
    RegistryRow("conv.conv_general", _FFMA, ("GeneralConv",)),
    RegistryRow("conv.conv_igemm", _FFMA, ("Conv",)),
    RegistryRow("conv.conv_mma", ("mma",), ("Conv",)),
    RegistryRow("conv.conv_mma_first", ("mma",), ("Conv",)),
    RegistryRow("conv.conv_mma_first_pairs", ("mma",), ("Conv",)),
    RegistryRow("conv.conv_mma_pairs", ("mma",), ("Conv",)),
    RegistryRow("conv.conv_wgmma", ("wgmma",), ("Conv",)),
    RegistryRow("gemm.fc_wgmma", ("wgmma",), ("Gemm",)),
    RegistryRow("gemm.gemm_direct", _FFMA, ("Gemm",)),
    RegistryRow("gemm.gemm_mma", ("mma",), ("Gemm",)),
    RegistryRow("gemm.gemm_mma_pairs", ("mma",), ("Gemm",)),
    RegistryRow("gemm.gemm_splitk", _FFMA, ("Gemm",)),
    RegistryRow("general.elementwise", _FFMA, ("BatchNorm", "Elementwise", "GeneralBatchNorm", "Relu")),
    RegistryRow("general.feature_loss", ("wgmma", "mma", "ffma"), ("FeatureLoss",)),
    RegistryRow("general.gram", _FFMA, ("Gram", "GramGradient")),
    RegistryRow("general.lrn", _FFMA, ("LocalResponseNorm",)),
    RegistryRow("general.masked_gradient", ("wgmma", "mma", "ffma"), ("MaskedGradient",)),
    RegistryRow("general.matmul", _FFMA, ("MatMul",)),
    RegistryRow("general.pool", _FFMA, ("GlobalPool", "Pool")),
    RegistryRow("general.pool_gradient", _FFMA, ("PoolGradient",)),
    RegistryRow("general.pool_stored", ("wgmma", "mma"), ("Pool",)),
    RegistryRow("general.power_of_two", _FFMA, ("PowerOfTwo",)),
    RegistryRow("general.rearrange", _FFMA, ("Concat", "Gather", "Pad", "Reshape", "Slice", "Transpose")),
    RegistryRow("general.row_sum", _FFMA, ("RowSum",)),
    RegistryRow("general.softmax", _FFMA, ("AxisSoftmax", "Softmax")),
    RegistryRow("layout.layout", _FFMA, ("Flatten", "Identity")),
)


def kernels_for(op: Op, family: str | None = None) -> tuple[AnyOpKernel, ...]:
    """Return the kernels for ops of this type, of one family or of all, higher priorities first.

    Raises ModelError where no family has a kernel.
    """
    kind: type = type(op)
    if not _rows(kind):
        raise ModelError(f"{kind.__name__} '{op.y}': there is no kernel for this operator")
    return _kernels_for(kind, family)


@cache
def _rows(kind: type) -> tuple[RegistryRow, ...]:
    names = {each.__name__ for each in kind.__mro__}
    return tuple(row for row in MODULES if not names.isdisjoint(row.ops))


@cache
def _kernels_for(kind: type, family: str | None) -> tuple[AnyOpKernel, ...]:
    rows = (row for row in _rows(kind) if family in (None, *row.families))
    every = (op_kernel for row in rows for op_kernel in kernels_in(f"{__name__}.{row.module}"))
    found = (
        op_kernel for op_kernel in every if issubclass(kind, op_kernel.op_type) and family in (None, op_kernel.family)
    )
    return tuple(sorted(found, key=lambda op_kernel: -op_kernel.priority))


def kernels_in(name: str) -> tuple[AnyOpKernel, ...]:
    """Import a module and return the kernels that it defines."""
    module = importlib.import_module(name)
    one: tuple[AnyOpKernel, ...] = (module.OP_KERNEL,) if hasattr(module, "OP_KERNEL") else ()
    return (*one, *getattr(module, "OP_KERNELS", ()))


def modules() -> list[str]:
    """Return the names of all modules below this package."""
    return sorted(info.name for info in pkgutil.walk_packages(__path__, f"{__name__}.") if not info.ispkg)
