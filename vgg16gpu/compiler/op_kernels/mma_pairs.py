"""float32 from pairs of float16 on mma.sync: which devices have it, where it pays, what its kernels share."""

from __future__ import annotations

from typing import Final

from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.program.types import DeviceFacts, DType

FIRST_WITH_PAIRS: Final = (8, 0)  # its kernels are made for asynchronous copies; Turing keeps FFMA
CHANNELS: Final = 16  # of a block of packed weights: what one product takes

# How many products of float16 with float32 sums a multiprocessor makes while it makes one FFMA, by compute capability.
# From NVIDIA's data sheets, dense TFLOP/s: A100 312 / 19.5, A40 149.7 / 37.4, L40S 362 / 91.6, RTX PRO 6000 504 / 126;
# 9.0 is measured on an H200, through mma.sync: 637 / 63.7. 10.0 is taken to have at least A100's rate of mma.sync, 1024
# products a cycle, beside 128 FFMA. Nothing but 9.0 was measured; `tune` measures a card.
RATIOS: Final = {(8, 0): 16.0, (8, 6): 4.0, (8, 9): 4.0, (9, 0): 10.0, (10, 0): 8.0, (12, 0): 4.0}
# GeForce cards add float32 at half of that rate: RTX 3090 71 / 35.6, RTX 4090 165 / 82.6, RTX 5090 209 / 104.8.
HALVING: Final = "GeForce"
# With a ratio of 10 pairs took 0.31 of FFMA's time for 128 images (testbench/results/mma-pairs-h200.json), so that from
# 3.1 on they are faster; a margin, because that was measured on one card.
LEAST_RATIO: Final = 3.5


def has_pairs(facts: DeviceFacts) -> bool:
    """Return whether a device can run these kernels; the CPU emulates them, for tests."""
    return facts.kind == "cpu" or facts.compute_capability >= FIRST_WITH_PAIRS


def pays(facts: DeviceFacts) -> bool:
    """Return whether `kernels="auto"` takes pairs on mma.sync.

    As `tune` has measured it on the card; else by a prediction from the rates of the card's kind.
    """
    if facts.kind != "cuda" or not has_pairs(facts):
        return False
    if facts.float32_kernels is not None:
        return facts.float32_kernels == "mma"
    ratio = RATIOS.get(facts.compute_capability, 0.0)
    return (ratio / 2 if HALVING in facts.name else ratio) >= LEAST_RATIO


def stores_pairs(layer: OpContext[Op]) -> bool:
    """Return whether values of float32 are stored as pairs where some op on tensor cores has them."""
    return layer.precision == "fp32" and has_pairs(layer.facts)


def is_wide(channels: int) -> bool:
    """Return whether this many channels are stored in whole tiles of 64; few are padded to 16 bytes alone."""
    return DType.F16_PAIR.padded(channels) % DType.F16_PAIR.channel_alignment == 0


def output_dtype(layer: OpContext[Op], wanted: tuple[DType, ...]) -> DType:
    """Return float32 where the reader takes that and no pairs."""
    plain = DType.F32 in wanted and DType.F16_PAIR not in wanted and not layer.rescaled
    return DType.F32 if plain else DType.F16_PAIR
