"""The code blocks of a page, and the commands in them."""

from __future__ import annotations

import pytest

from tests.readme.blocks import (
    Block,
    Command,
    PageError,
    blocks,
    free_names,
    indented_code,
    prose,
    shell_commands,
    without_comment,
)

PAGE = """# Title

```sh
make demo     # makes .venv

. .venv/bin/activate
```

1. A step:
   ```python
   with a:
       b()
   ```

~~~~text extra words
```
no block
```
~~~~
Behind.
"""


def commands(*lines: str) -> list[Command]:
    return shell_commands(Block("sh", 10, lines))


def test_blocks_have_language_place_and_lines() -> None:
    assert blocks(PAGE) == [
        Block("sh", 4, ("make demo     # makes .venv", "", ". .venv/bin/activate")),
        Block("python", 11, ("with a:", "    b()")),
        Block("text", 16, ("```", "no block", "```")),
    ]


def test_prose_is_what_no_block_has() -> None:
    assert [line for _, line in prose(PAGE) if line] == ["# Title", "1. A step:", "Behind."]
    assert prose(PAGE)[-1] == (20, "Behind.")


def test_a_block_that_is_not_closed_is_refused() -> None:
    with pytest.raises(PageError, match=r"line 2: the block is not closed; end it with ```"):
        blocks("text\n```sh\nmake\n")


def test_a_line_is_a_command_unless_it_is_a_comment() -> None:
    found = commands("# first", "make demo   # x", "", "cd a && ls 'b # c'")
    assert [(command.line, command.words) for command in found] == [(11, "make demo"), (13, "cd a && ls 'b # c'")]
    assert found[0].text == "make demo   # x"


def test_a_backslash_continues_a_command() -> None:
    (found,) = commands("infer a \\", "    --output b   # c")
    assert found == Command("infer a \\\n    --output b   # c", 10)
    assert found.words == "infer a --output b"


def test_what_cannot_be_pasted_is_refused() -> None:
    with pytest.raises(PageError, match=r"line 10: '\$ make' begins with a prompt"):
        commands("$ make")
    with pytest.raises(PageError, match=r"line 10: the block ends in a backslash"):
        commands("make \\")


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("make # a", "make "),
        ("make#a", "make#a"),
        ("echo '# a' # b", "echo '# a' "),
        ('echo "it\'s # a" #', 'echo "it\'s # a" '),
        (r"echo \' # a", r"echo \' "),
        ("# a", ""),
    ],
)
def test_a_comment_is_what_the_shell_takes_for_one(line: str, kept: str) -> None:
    assert without_comment(line) == kept


def test_free_names_are_those_that_nobody_makes() -> None:
    code = """
import a.b as c, d.e
from f import g

def h(i: int) -> None:
    print(i, x)

for k in g(d, c):
    with h(k) as m:
        m.n = [y for o in k if o]
"""
    assert free_names(code) == {"x", "y"}


def test_code_that_is_only_indented_is_found() -> None:
    assert indented_code("text\n\n    make\n    ls\n\ntext\n") == [3]
    assert indented_code("- item\n\n    of the item\n\ntext\n    of the text\n\n```sh\n\n    a\n```\n") == []
    assert indented_code("- item\n\ntext\n\n    make\n") == [5]
