"""One shell for all commands: what stays from one to the next, what ends a command, and that nothing is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme.shell import Shell, ShellError

LIMIT = 120.0  # seconds


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    with Shell(folder, scratch, os.environ) as opened:
        yield opened


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_folder_and_variables_stay(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("mkdir below && cd below; export NAME=value", LIMIT).code == 0
    (tmp_path / "folder" / "below" / "script").write_text("OTHER=more\n")
    shell.run(". ./script", LIMIT)
    ran = shell.run("pwd; echo $NAME $OTHER >&2", LIMIT)
    assert (ran.code, ran.output.splitlines()) == (0, [str(tmp_path / "folder" / "below"), "value more"])
    assert 0 <= ran.seconds < LIMIT


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1), ("(exit 7)", 7), ("true && false # a", 1)])
def test_the_exit_code_is_the_commands(shell: Shell, command: str, code: int) -> None:
    assert shell.run(command, LIMIT).code == code


def test_what_is_no_command_fails_and_the_shell_goes_on(shell: Shell) -> None:
    for command in ("no-such-command", "echo 'a", "if true"):
        ran = shell.run(command, LIMIT)
        assert ran.code != 0
        assert ran.output
    assert shell.run("echo on", LIMIT).output == "on\n"


def test_a_command_reads_nothing(shell: Shell) -> None:
    assert shell.run("cat", LIMIT).output == ""


def test_a_command_of_several_lines(shell: Shell) -> None:
    assert shell.run("echo a \\\n  b  # c", LIMIT).output == "a b\n"


def test_a_command_that_does_not_end(shell: Shell) -> None:
    with pytest.raises(ShellError, match=r"was not over after 0\.2 s"):
        shell.run("echo begun; sleep 1000", 0.2)
    assert shell.output() == "begun\n"


def test_a_command_that_ends_the_shell(shell: Shell) -> None:
    with pytest.raises(ShellError, match="ended the shell"):
        shell.run("exit 3", LIMIT)


def test_terminate_ends_the_command_alone(shell: Shell) -> None:
    shell.begin("true && sleep 1000")
    last = time.monotonic() + LIMIT
    while not shell.is_over() and time.monotonic() < last:
        shell.terminate()
        time.sleep(0.05)
    assert shell.wait(LIMIT).code == 128 + 15
    assert shell.run("true", LIMIT).code == 0


def test_nothing_is_left(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.readme.shell._MERCY", 0.5)
    shell.run("sleep 1000 & echo $!; (trap '' TERM; exec sleep 1000) & echo $!", LIMIT)
    background = [int(line) for line in shell.output().split()]
    shell.begin("sh -c 'echo $$; sleep 1000; true'")
    last = time.monotonic() + LIMIT
    while not shell.output() and time.monotonic() < last:
        time.sleep(0.05)
    processes = [*background, int(shell.output())]
    assert all(map(is_alive, processes))
    shell.close()
    assert not any(map(is_alive, processes))
    shell.close()  # again: nothing to do
