"""Check that what README's sentences and tables name is there: commands, options, targets, extras.

Commands in its blocks are run: commands.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from tests.readme.blocks import prose
from vgg16gpu.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"`([^`]+)`")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMED = [code for _, line in prose(README) for code in CODE.findall(line)]


def below(command: click.Command) -> Iterator[click.Command]:
    """It and its subcommands."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found
            yield from below(found)


def takes(command: click.Command, option: str, value: str | None) -> bool:
    """Whether it has an option, which may have this value."""
    found = [each for each in command.params if option in each.opts + each.secondary_opts]
    kinds = [each.type for each in found]
    return bool(found) and all(value in kind.choices for kind in kinds if value and isinstance(kind, click.Choice))


def wrong(code: str) -> str | None:
    """What is wrong with a command or an option; None if nothing is, or it is neither."""
    first, *words = code.split()
    if first.startswith("--"):
        value = words[0] if words else None
        return None if any(takes(command, first, value) for command in below(cli)) else f"no command takes {code}"
    if first == "make" and words:
        text = (ROOT / "Makefile").read_text(encoding="utf-8")
        return None if re.search(rf"^{re.escape(words[0])}:", text, re.MULTILINE) else f"there is no target {words[0]}"
    if extra := re.fullmatch(r"pip install '\.\[([\w,-]+)\]'", code):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        known = set(extra[1].split(",")) <= set(project["optional-dependencies"])
        return None if known else f"there is no extra {extra[1]}"
    if first in COMMANDS:
        words.insert(0, first)
    elif first != "vgg16gpu":
        return None
    command: click.Command = cli
    for word in words:
        if word.startswith("--"):
            if not takes(command, word, None):
                return f"{command.name} does not take {word}"
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if not found:
                return f"{command.name} has no command {word}"
            command = found
    return None


def test_commands_and_options_are_there() -> None:
    assert [found for code in sorted(set(NAMED)) if (found := wrong(code))] == []


def test_something_is_named() -> None:
    assert [code for code in NAMED if code.startswith("vgg16gpu ")]
    assert [code for code in NAMED if code.startswith("--")]
