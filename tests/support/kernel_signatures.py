"""The parameters of a kernel as its source names them: what a step's arguments are held against without a compiler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from vgg16gpu.devices.kernel_source import read_source
from vgg16gpu.program.launch import Argument, KernelLaunch, Scalar, StridedIndexer, TmaDescriptor
from vgg16gpu.program.types import Pointer


@cache
def parameters(source: str, kernel: str, variant: frozenset[str] = frozenset()) -> tuple[tuple[str, str], ...]:
    """(name, kind) of each: "map", "walk", "pointer", "i" or "f". `variant`: the macros that add parameters."""
    text = re.sub(r"//.*| GUARD_PARAMETERS| TIMELINE_PARAMETER", "", read_source(source))
    text = text.replace(" KEPT_PARAMETER", " const CUtensorMap kept," if "KEEP" in variant else "")
    text = text.replace(" PASSED_PARAMETERS", ", float low, float high" if "CLIPS" in variant else "")
    text = text.replace(" INPUT_PARAMETERS", ", float input_low, float input_high" if "CLIPS_INPUT" in variant else "")
    limits = r"float \1_low, float \1_high" if "CLIPS" in variant else r"int \1"
    text = re.sub(r"ACTIVATION_PARAMETER\((\w+)\)", limits, text)
    found = re.search(rf'extern "C" __global__ [^;{{]*?\b{kernel}\((.*?)\)\s*{{', text, re.DOTALL)
    assert found, f"{source} has no kernel {kernel}"
    return tuple(_parameter(declared) for declared in found[1].split(","))


def _parameter(declared: str) -> tuple[str, str]:
    *kind, name = re.findall(r"\w+|\*", declared)
    if "CUtensorMap" in kind:
        return name, "map"
    if "Walk" in kind:
        return name, "walk"
    if "*" in kind:
        return name, "pointer"
    return name, "f" if "float" in kind else "i"


def arguments(step: KernelLaunch) -> Mapping[str, Any]:
    """The step's arguments by the kernel's names: tensor maps, pointers, numbers. They must fit, or AssertionError."""
    variant = frozenset(name for name, value in step.kernel.defines if value)
    declared = parameters(step.kernel.source, step.kernel.name, variant)
    assert [kind for _, kind in declared] == [_kind(given) for given in step.arguments], step.kernel.label
    values = (given.value if isinstance(given, Scalar) else given for given in step.arguments)
    return dict(zip((name for name, _ in declared), values, strict=True))


def _kind(argument: Argument) -> str:
    if isinstance(argument, TmaDescriptor):
        return "map"
    if isinstance(argument, StridedIndexer):
        return "walk"
    return "pointer" if isinstance(argument, Pointer) else argument.kind
