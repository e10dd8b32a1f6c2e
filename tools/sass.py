"""The loops of compiled kernels, read from what nvdisasm prints, and how many instructions of each kind they take.

A loop is a natural one: it has one head, which dominates the branch back to it. What counts is a loop that does work,
that is with arithmetic of the classes below or an access to memory; one that only waits at a barrier does none. A loop
around another one is counted without it, so that each instruction counts once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FLAG: Final = ".STRONG.SYS"  # how a volatile access is written: a flag that is waited for, no data
MATH: Final = frozenset({"HGMMA", "IGMMA", "HMMA", "IMMA", "FFMA", "DFMA", "IDP"})
CLASSES: Final[Mapping[str, str]] = {
    **{opcode: opcode for opcode in MATH},
    **dict.fromkeys(("LDS", "LDSM", "STS", "STSM", "ATOMS"), "shared"),
    **dict.fromkeys(("LDG", "STG", "LDGSTS", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG"), "global"),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UBLKCP", "UTMAREDG"), "global"),
    **dict.fromkeys(("BAR", "SYNCS", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "MEMBAR", "FENCE", "WARPSYNC"), "barrier"),
    **dict.fromkeys(("LDL", "STL"), "local"),
    FLAG: "barrier",
}
WORK: Final = frozenset({*CLASSES.values()} - {"barrier"})

_SECTION = re.compile(r"^\.text\.(\w+):$")
_LABEL = re.compile(r"^(\.L_\w+):$")
_INSTRUCTION = re.compile(r"^/\*[0-9a-f]{4,}\*/\s+(@\S+\s+)?(\w+)([\w.]*)[^;]*;?")
_TARGET = re.compile(r"\.L_\w+")
_ALWAYS = re.compile(r"(BRA|JMP)(\.\w+)*\s+`\(\.L_\w+\)\s*;")  # neither a guard nor a predicate among the operands
_ELECTED = ".U.ANY"  # on a branch back: the threads of a warp take turns at a TMA copy, which is no loop of the source
_JUMPS: Final = frozenset({"BRA", "JMP", "BRX", "JMX"})
_ENDS: Final = frozenset({"EXIT", "RET", "BRX", "JMX"})


@dataclass(frozen=True)
class Loop:
    """What one pass through a loop takes: instructions in all, and (class, number) in the order of their names."""

    instructions: int
    classes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ", ".join((str(self.instructions), *(f"{name} {number}" for name, number in self.classes)))


@dataclass(frozen=True)
class Code:
    """One kernel's code: its instructions without the padding behind them, and its working loops as they lie."""

    instructions: int
    loops: tuple[Loop, ...]


@dataclass
class _Block:
    """Instructions that run one after the other; `next` are the blocks that may follow."""

    opcodes: list[str]
    targets: list[str]
    falls_through: bool = True
    next: tuple[int, ...] = ()


def read(text: str) -> dict[str, Code]:
    """The code of each kernel in the output of `nvdisasm -c`; raises ValueError where there is none."""
    found = {name: _code(lines) for name, lines in _sections(text)}
    if not found:
        raise ValueError(f"nvdisasm's output has no code: {text[:200]!r}")
    return found


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """(kernel, its lines) of each section of code."""
    name, lines = "", list[str]()
    for line in map(str.strip, text.splitlines()):
        section = _SECTION.match(line)
        if section or line.startswith("//-----"):
            if name:
                yield name, lines
            name, lines = section[1] if section else "", []
        elif name:
            lines.append(line)
    if name:
        yield name, lines


def _code(lines: Sequence[str]) -> Code:
    blocks = _blocks(lines)
    reached, dominators = _dominators(blocks)
    loops = _natural_loops(blocks, reached, dominators)
    working = {head: body for head, body in loops.items() if _counts(blocks, body).keys() & WORK}
    found = []
    for head, body in sorted(working.items()):
        inner = [other for start, other in working.items() if start != head and other < body]
        own = body.difference(*inner)
        counts = _counts(blocks, own)
        if counts.keys() & WORK:
            total = sum(len(blocks[number].opcodes) for number in own)
            found.append(Loop(total, tuple(sorted(counts.items()))))
    return Code(sum(opcode != "NOP" for block in blocks for opcode in block.opcodes), tuple(found))


def _counts(blocks: Sequence[_Block], numbers: frozenset[int]) -> Counter[str]:
    """Instructions of each class in some blocks."""
    opcodes = (opcode for number in numbers for opcode in blocks[number].opcodes)
    return Counter(CLASSES[opcode] for opcode in opcodes if opcode in CLASSES)


def _blocks(lines: Sequence[str]) -> list[_Block]:
    """Basic blocks in the order of their addresses; a label or what stands behind a jump starts one."""
    blocks, labels = [_Block([], [])], dict[str, int]()
    for line in lines:
        if label := _LABEL.match(line):
            if blocks[-1].opcodes:
                blocks.append(_Block([], []))
            labels[label[1]] = len(blocks) - 1
        elif instruction := _INSTRUCTION.match(line):
            guard, opcode, modifiers = instruction.groups()
            block = blocks[-1]
            block.opcodes.append(FLAG if FLAG in modifiers else opcode)
            if opcode in _JUMPS | _ENDS:
                always = opcode in _ENDS or _ALWAYS.search(instruction[0])
                block.falls_through = bool(guard) or not always
                block.targets = _TARGET.findall(line) if opcode in _JUMPS and modifiers != _ELECTED else []
                blocks.append(_Block([], []))
    for number, block in enumerate(blocks):
        following = (number + 1,) if block.falls_through and number + 1 < len(blocks) else ()
        block.next = (*following, *(labels[target] for target in block.targets if target in labels))
    return blocks


def _dominators(blocks: Sequence[_Block]) -> tuple[list[int], dict[int, int]]:
    """The blocks that are reached from the first, and for each the set of its dominators, as bits."""
    reached, waiting = {0}, [0]
    while waiting:
        new = {*blocks[waiting.pop()].next} - reached
        reached |= new
        waiting += new
    before: dict[int, list[int]] = {number: [] for number in reached}
    for number in reached:
        for successor in blocks[number].next:
            before[successor].append(number)
    everything = sum(1 << number for number in reached)
    dominators = {number: everything if number else 1 for number in reached}
    changed = True
    while changed:
        changed = False
        for number in sorted(reached - {0}):
            common = everything
            for other in before[number]:
                common &= dominators[other]
            common |= 1 << number
            changed |= common != dominators[number]
            dominators[number] = common
    return sorted(reached), dominators


def _natural_loops(
    blocks: Sequence[_Block], reached: Sequence[int], dominators: Mapping[int, int]
) -> dict[int, frozenset[int]]:
    """The blocks of each loop by its head; loops of one head are one."""
    before: dict[int, list[int]] = {number: [] for number in reached}
    for number in reached:
        for successor in blocks[number].next:
            before[successor].append(number)
    loops: dict[int, set[int]] = {}
    for number in reached:
        for head in blocks[number].next:
            if dominators[number] >> head & 1:
                body = loops.setdefault(head, {head})
                waiting = [number]
                while waiting:
                    block = waiting.pop()
                    if block not in body:
                        body.add(block)
                        waiting += before[block]
    return {head: frozenset(body) for head, body in loops.items()}
