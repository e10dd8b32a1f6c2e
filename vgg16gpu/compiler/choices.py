"""What a user may choose. No imports: a command line offers it before anything heavy is loaded."""

from __future__ import annotations

from typing import Final

PRECISIONS: Final = ("fp32", "fp16", "bf16", "int8")
FAMILIES: Final = ("wgmma", "mma", "ffma")  # of kernels, the best first
KERNELS: Final = ("auto", *FAMILIES)
MAX_BATCH: Final = 65535  # images of a run: blocks of a grid in y and z
MAX_CHANNELS: Final = 65536  # of an image: each has a mean and a deviation
