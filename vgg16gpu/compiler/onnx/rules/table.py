"""What each ONNX operator means here: one small function per operator, from a node to canonical ops.

A rule accepts every spelling of opsets 7 to 25 that means the canonical op and raises `UnsupportedNodeError` for all
else. Operator definitions: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vgg16gpu.compiler.onnx.node import Rule
from vgg16gpu.compiler.onnx.rules import integers, moves, products, values, windows

RULES: Final[Mapping[str, Rule]] = {
    name: rule for module in (integers, moves, products, values, windows) for name, rule in module.RULES.items()
}
