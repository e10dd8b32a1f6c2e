"""README's own tables of commands: what is not run, what ends with 1, what its reader brings. .ci/run runs them."""

from __future__ import annotations

from pathlib import Path

from tests.readme import commands
from tests.readme.blocks import PYTHON, SHELL, blocks, indented_code, shell_commands
from tests.readme.commands import steps

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def of_readme() -> set[str]:
    """The commands that README has, as tables name them."""
    return {c.words for block in blocks(README) if block.language == SHELL for c in shell_commands(block)}


def test_what_is_not_run_stands_in_readme_and_is_little() -> None:
    assert set(commands.NOT_RUN) <= of_readme()
    assert len(commands.NOT_RUN) <= 6
    assert all(commands.NOT_RUN.values())


def test_what_ends_with_1_stands_in_readme_and_is_run() -> None:
    assert of_readme() - set(commands.NOT_RUN) >= commands.PARTLY


def test_what_the_reader_brings_is_used_and_nothing_more() -> None:
    code = "".join(block.text for block in blocks(README))
    assert all(name in code for name in commands.BROUGHT)


def test_all_code_of_readme_is_run_or_no_command() -> None:
    assert {block.language for block in blocks(README)} <= {SHELL, PYTHON, "text"}
    assert indented_code(README) == []


def test_readme_has_a_server(tmp_path: Path) -> None:
    assert sum(step.serves for step in steps(README, tmp_path)) == 1
