"""What a plan is made for, beside the graph and the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.lowering.layout.preprocess import Normalisation
from vgg16gpu.program.types import DType

if TYPE_CHECKING:
    from vgg16gpu.compiler.quantization.scheme import QuantisedOp


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is made for, beside the graph and the device.

    precision: "fp32", "fp16", "bf16" or "int8". kernels: "auto", or the only family that may be used beside "ffma".
    normalisation: adds an entry for bytes (N, H, W, C). keep_values: every op stores its value, and no buffer is used
    twice, so that every value can be read after a run. samples: makes (n, C, H, W) typical inputs, which fix the scales
    of fp32 on tensor cores. quantised: what int8 needs of each op. given: what further inputs are made of that are read
    where a caller has them, row-major, at addresses that are multiples of 16.
    """

    precision: str = "fp32"
    kernels: str = "auto"
    normalisation: Normalisation | None = None
    keep_values: bool = False
    samples: Callable[[], Array] | None = None
    quantised: Mapping[str, QuantisedOp] | None = None
    given: Mapping[str, DType] = field(default_factory=dict)
