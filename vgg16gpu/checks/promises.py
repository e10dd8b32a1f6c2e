"""What each precision promises of its scores: the bounds from which on a time means nothing."""

from __future__ import annotations

from collections.abc import Mapping

from vgg16gpu.checks.accuracy import SCORE_TOLERANCE

# Largest `score_error` of ours against onnxruntime's float32. torch's own comes to 5.3e-3 in fp16 and 3.6e-2 in bf16 on
# VGG16 with random weights, whose scores are small sums of large terms, and to 1.2e-2 and 7.7e-2 on one of an eighth of
# its width. A kernel that reads the wrong numbers comes to 1. How good int8 is depends on its calibration and
# on the weights (random ones: up to 0.2): what it promises, the sums bit for bit, is a matter of tests.
ADMITTED_ERRORS: Mapping[str, float] = {"fp32": SCORE_TOLERANCE, "fp16": 2e-2, "bf16": 0.15, "int8": 0.5}

# Largest `score_error` of a peer against ours: it must compute the same, not as precisely. In fp32 Winograd
# convolutions come to 2e-5, TF32 goes beyond 1e-3.
PEER_TOLERANCES: Mapping[str, float] = {**ADMITTED_ERRORS, "fp32": 1e-4}

# TF32 keeps as many bits of every factor as float16 does, and so has its bound.
TF32_TOLERANCE = ADMITTED_ERRORS["fp16"]


def peer_tolerance(precision: str, *, tf32: bool) -> float:
    """The bound for a peer that computes in this precision; `tf32`: with products of TF32."""
    return TF32_TOLERANCE if tf32 else PEER_TOLERANCES[precision]
