"""What the planner may compile: which module drives which kernel, and the macro settings of each.

They are those that a module lists (VARIANTS), and those that VGG16 is planned with on a card of compute capability 9.0,
in every precision, with its values kept and not, for its features, or with limits in place of ReLUs, as quantised files
have them; all of these with a guard, too, where a kernel knows it; of the lab's kernels those of each parameter.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Clip, Conv, Gemm, Op, Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.op_kernels import modules
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import KEEPING, PlanOptions
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale, quantised_inputs, stored_scales
from vgg16gpu.devices import copy_kernel
from vgg16gpu.devices.cuda.compiler import architecture
from vgg16gpu.devices.kernel_source import headers, kernel_dir, source_name
from vgg16gpu.devices.tuned import TABLES, table
from vgg16gpu.program.launch import GUARDED, Kernel
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu_lab import variants as lab
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import places

Defines: TypeAlias = tuple[tuple[str, int], ...]

# Kernels that a module of another name drives; every other one has a module of its own name.
DRIVERS: Final[Mapping[str, str]] = {
    "conv_wgmma_small": "conv_wgmma",
    "gemm_wgmma": "fc_wgmma",
    "gemv": "fc_wgmma",
    "pack_blocks": "wgmma",
}
OF_DEVICES: Final = frozenset({"transfer"})  # launched by devices themselves, which know no ops
HOPPER: Final = architecture((9, 0))
PRECISIONS: Final = ("fp32", "fp16", "bf16", "int8")
BATCHES: Final = (1, 8, 32, 128)
LAB_PROBLEMS: Final = (Problem(1, 3, 64, 64, 8, kernel=3, padding=1), Problem(1, 6, 64, 64, 16, kernel=5, stride=2))
CARD: Final = "NVIDIA H200"

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_SHARED_NBYTES = 227 << 10


def driver(kernel: str) -> str:
    """The module that launches the kernels of this file (its name without the suffix); "" if there is none."""
    if kernel in OF_DEVICES:
        return copy_kernel.__name__
    wanted = DRIVERS.get(kernel, kernel)
    return next((name for name in modules() if name.rpartition(".")[2] == wanted), "")


def variants(source: Path) -> tuple[Defines, ...]:
    """The macro settings that the package compiles a source with; the defaults for a file that it does not know."""
    if source.is_relative_to(kernel_dir()) and source_name(source).startswith("lab/"):
        return lab_variants(source_name(source))
    name = driver(source.stem)
    if not name:
        return ((),)
    listed: tuple[Defines, ...] = getattr(importlib.import_module(name), "VARIANTS", ())
    planned = {kernel.defines for kernel in planned_kernels() if kernel.source == source.name}
    found = tuple(dict.fromkeys((*listed, *sorted(planned)))) or ((),)
    if " GUARD_PARAMETERS)" in source.read_text(encoding="utf-8"):
        found += tuple((*defines, GUARDED) for defines in found)
    return found


def lab_variants(name: str) -> tuple[Defines, ...]:
    """The macro settings of a kernel of the lab for 3x3 and 5x5 filters, with every value of each parameter."""
    found: set[Defines] = set()
    for variant, problem in product(lab.variants(), LAB_PROBLEMS):
        for values in product(*variant.parameters.values()):
            parameters = dict(zip(variant.parameters, values, strict=True))
            if not variant.refuses(problem, parameters):
                found_at, _ = places(problem, variant.workspace_nbytes(problem, parameters))
                launches = variant.launches(problem, parameters, found_at)
                steps = (*launches.convert, *launches.compute)
                found |= {step.kernel.defines for step in steps if step.kernel.source == name}
    return tuple(sorted(found)) or ((),)


def is_hopper_only(source: Path) -> bool:
    """Whether a source includes, in the end, what only compute capability 9.0 has."""
    return "hopper.cuh" in included(source)


def included(source: Path) -> set[str]:
    """The names of all headers of kernels/ that a source includes, directly or not."""
    known = {source_name(path): path for path in headers()}
    found: set[str] = set()
    waiting = [source]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop().read_text(encoding="utf-8")):
            if name not in found and name in known:
                found.add(name)
                waiting.append(known[name])
    return found


@cache
def planned_kernels() -> frozenset[Kernel]:
    """The kernels of VGG16 on an H200: all precisions and BATCHES, with the shipped table of tiles and without it.

    And those of its features, where a map is stored beside what the pool makes of it, and of a quantised file of it.
    """
    measured = table(CARD, Path(), TABLES)
    kernels: set[Kernel] = set()
    for tuned in ({}, measured) if measured else ({},):
        facts = DeviceFacts("cuda", CARD, 132, (9, 0), _SHARED_NBYTES, 1 << 37, 1 << 37, tensor_maps=True, tuned=tuned)
        for precision, keep_values in product(PRECISIONS, (False, True)):
            wish = replace(_wish(precision), keep_values=keep_values)
            plan = make_plan(vgg16(), facts, [(batch, 3, 224, 224) for batch in BATCHES], wish)
            kernels |= plan.kernels
        for precision in KEEPING:
            plan = make_plan(features(), facts, [(batch, 3, 224, 224) for batch in (1, 16)], PlanOptions(precision))
            kernels |= plan.kernels
        for precision in ("fp32", *KEEPING):
            plan = make_plan(quantised(), facts, [(batch, 3, 224, 224) for batch in (1, 32)], _wish(precision))
            kernels |= plan.kernels
    return frozenset(kernels)


@cache
def vgg16() -> Graph:
    """VGG16 with weights of zero, which take no memory."""
    ops = (*_convolutions(), *_fully_connected())
    return Graph(GraphInput("x", (None, 3, 224, 224)), ops, (ops[-1].y,))


@cache
def features() -> Graph:
    """Its convolutions and pools; the maps before the pools are outputs, too."""
    ops: list[Op] = []
    for op in _convolutions():
        if isinstance(op, Conv) and op.pool:
            kept = f"{op.y} before its pool"
            ops += [replace(op, y=kept, pool=False), Pool(kept, op.y, (op.y,), "max", MAX_POOL_2X2)]
        else:
            ops.append(op)
    outputs = tuple(op.x for op in ops if isinstance(op, Pool))
    return Graph(GraphInput("x", (None, 3, 224, 224)), tuple(ops), outputs)


@cache
def quantised() -> Graph:
    """Clips where a file that quantises VGG16 has QuantizeLinear; scores are clipped, too."""
    ops: list[Op] = [Clip("x", "clipped x", ("clipped x",), low=-2.0, high=2.0)]
    for op in vgg16().ops:
        y = f"{op.y} before its clip"
        x = ops[-1].y
        ops += [replace(op, x=x, y=y, names=(y,)), Clip(y, op.y, (op.y,), low=0.0, high=6.0)]
    return replace(vgg16(), ops=tuple(ops))


def _convolutions() -> Iterator[Op]:
    x, channels = "x", 3
    for block, (count, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), start=1):
        for number in range(1, count + 1):
            y = f"conv{block}_{number}"
            weight, bias = _zeros(filters, channels, 3, 3), _zeros(filters)
            window = Window((3, 3), pads=Pads(1, 1, 1, 1))
            yield Conv(x, y, (y,), weight, bias, window, relu=True, pool=number == count)
            x, channels = y, filters


def _fully_connected() -> Iterator[Op]:
    x, length = "conv5_3", 512 * 7 * 7
    for number, outputs in ((6, 4096), (7, 4096), (8, 1000)):
        y = f"fc{number}"
        flattens, last = number == 6, number == 8
        yield Gemm(x, y, (y,), _zeros(outputs, length), _zeros(outputs), relu=not last, flattens=flattens)
        x, length = y, outputs


def _wish(precision: str) -> PlanOptions:
    graph = vgg16()
    scales = {name: Scale(1.0, signed) for name, signed in quantised_inputs(graph).items()}
    stored = stored_scales(graph, scales)
    quantised = {
        op.y: QuantisedOp(_zeros(*op.weight.shape, dtype=np.int8), _zeros(len(op.weight)), scales[op.x], stored[op.y])
        for op in graph.ops
        if isinstance(op, Conv | Gemm)
    }
    return PlanOptions(
        precision,
        normalisation=Normalisation((0.5,) * 3, (0.25,) * 3),
        samples=lambda: _zeros(1, 3, 224, 224),
        quantised=quantised if precision == "int8" else None,
    )


def _zeros(*shape: int, dtype: type[np.generic] = np.float32) -> Any:
    return np.broadcast_to(dtype(0), shape)
