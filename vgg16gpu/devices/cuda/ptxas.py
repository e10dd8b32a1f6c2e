"""What nvcc's assembler says of kernels: registers, shared memory, stack, spills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

VERBOSE: Final = ("-Xptxas", "-v")  # options that make it say so

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel on one architecture."""

    kernel: str
    arch: str
    registers: int
    shared_nbytes: int
    stack_nbytes: int
    spill_nbytes: int


def parse(text: str) -> list[Usage]:
    """Read the output of `nvcc -Xptxas -v`; raises ValueError if a kernel's figures are missing."""
    starts = [match.start() for match in _ENTRY.finditer(text)]
    blocks = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [_parse_block(block) for block in blocks]


def _parse_block(block: str) -> Usage:
    entry, frame, used, shared = (pattern.search(block) for pattern in (_ENTRY, _FRAME, _USED, _SHARED))
    if entry is None or frame is None or used is None:
        raise ValueError(f"ptxas output not understood:\n{block}")
    stack, stores, loads = (int(number) for number in frame.groups())
    shared_nbytes = int(shared[1]) if shared else 0
    return Usage(entry[1], entry[2], int(used[1]), shared_nbytes, stack, stores + loads)
