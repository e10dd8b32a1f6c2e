"""Read the code blocks of a Markdown page: commands of ```sh blocks, Python of ```python blocks."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SHELL: Final = "sh"
PYTHON: Final = "python"

_FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)$")
_QUOTES = "'\""
_PROMPT = "$ "


class PageError(Exception):
    """A page that cannot be followed; the message names the line and says what to do."""


@dataclass(frozen=True)
class Block:
    """A fenced block. `line`: the number of its first line inside, from 1; `lines` are without the fence's indent."""

    language: str
    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class Command:
    """A command of a page. `text`: what is pasted, lines of a continued command included; `line`: its first line."""

    text: str
    line: int

    @property
    def words(self) -> str:
        """Return the command on one line, without its comment and with single spaces: its key in tables."""
        joined = self.text.replace("\\\n", " ")
        return " ".join(without_comment(joined).split())


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks in their order. Raises PageError for a block that is not closed."""
    found = list[Block]()
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        if opening := _FENCE.match(line):
            inside = _inside(lines, opening, number)
            found.append(Block(opening[3].strip().partition(" ")[0], number + 1, inside))
    return found


def prose(page: str) -> list[tuple[int, str]]:
    """Return the lines outside of fenced blocks, each with its number from 1."""
    covered = {number for block in blocks(page) for number in range(block.line - 1, block.line + len(block.lines) + 1)}
    return [(number, line) for number, line in enumerate(page.splitlines(), 1) if number not in covered]


def indented_code(page: str) -> list[int]:
    """Return the line numbers at which code begins that is only indented: no command of it would be run."""
    found, before, in_list = list[int](), "", False
    for number, line in prose(page):
        if line.strip() and not line.startswith(" "):
            in_list = bool(re.match(r"([-*+]|\d+[.)]) ", line))
        if line.startswith("    ") and not before.strip() and not in_list:
            found.append(number)
        before = "code" if line.startswith("    ") else line
    return found


def shell_commands(block: Block) -> list[Command]:
    """Return the commands of a block, one a line; a backslash at the end of a line continues it.

    Raises PageError for a command that begins with a prompt, which cannot be pasted.
    """
    found, pending, first = list[Command](), list[str](), 0
    for number, line in enumerate(block.lines, block.line):
        first = first if pending else number
        pending.append(line)
        if line.endswith("\\"):
            continue
        command = Command("\n".join(pending), first)
        if command.words.startswith(_PROMPT):
            raise PageError(f"line {first}: '{command.words}' begins with a prompt; leave out the '$'")
        if command.words:
            found.append(command)
        pending.clear()
    if pending:
        raise PageError(f"line {first}: the block ends in a backslash; leave it out or continue the command")
    return found


def without_comment(line: str) -> str:
    """Return a shell line up to its comment: a '#' at a word's beginning, outside of quotes."""
    quote, before = "", " "
    for index, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote and before != "\\" else quote
        elif letter in _QUOTES and before != "\\":
            quote = letter
        elif letter == "#" and before.isspace():
            return line[:index]
        before = letter
    return line


def free_names(code: str) -> set[str]:
    """Return the names that a Python program uses and does not make: its reader brings them."""
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - made - set(dir(builtins))


def _inside(lines: Iterator[tuple[int, str]], opening: re.Match[str], number: int) -> tuple[str, ...]:
    """Return the lines up to the closing fence, which is at least as long as the opening one."""
    indent, fence = len(opening[1]), opening[2]
    found = list[str]()
    for _, line in lines:
        closing = line.strip()
        if closing and set(closing) == {fence[0]} and len(closing) >= len(fence):
            return tuple(found)
        found.append(line[indent:] if not line[:indent].strip() else line)
    raise PageError(f"line {number}: the block is not closed; end it with {fence}")
