"""Run commands one after the other in one shell, as somebody who pastes them: folder and variables stay."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_MERCY: Final = 10.0  # seconds from SIGTERM to SIGKILL
_DEATH: Final = 2.0  # seconds that a killed process may take to be gone
_TICK: Final = 0.05  # seconds


class ShellError(Exception):
    """A command that did not come to its end; the message says why."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended: its exit code, its seconds, and what it wrote to stdout and stderr."""

    code: int
    seconds: float
    output: str


class Shell:
    """A bash that runs in `folder`; its files lie in `scratch`. It ends, with all that it started, with the block.

    Commands read nothing from the terminal: their standard input is empty.
    """

    def __init__(self, folder: Path, scratch: Path, environ: Mapping[str, str]) -> None:
        self._script, self._output = scratch / "command.sh", scratch / "output.txt"
        self._started = 0.0
        self._codes, codes = os.pipe()
        try:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(codes,),
                start_new_session=True,
                text=True,
            )
        finally:
            os.close(codes)
        self._report = f"echo $? >&{codes}"

    def __enter__(self) -> Self:
        """Return the shell."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and what runs in it."""
        self.close()

    def run(self, command: str, limit: float) -> Ran:
        """Run a command. Raises ShellError if it takes more than `limit` seconds, or ends the shell."""
        self.begin(command)
        return self.wait(limit)

    def begin(self, command: str) -> None:
        """Start a command and return at once; `wait` returns how it ended."""
        assert self._bash.stdin is not None
        self._script.write_text(command + "\n", encoding="utf-8")
        self._output.write_bytes(b"")
        self._started = time.monotonic()
        # A sourced file and not the text itself: of a syntax error the shell says so, and goes on.
        self._bash.stdin.write(f". '{self._script}' </dev/null >'{self._output}' 2>&1; {self._report}\n")
        self._bash.stdin.flush()

    def wait(self, limit: float) -> Ran:
        """Return how the command ended. Raises ShellError `limit` seconds after it was started, or without a shell."""
        while not select.select([self._codes], [], [], _TICK)[0]:
            if time.monotonic() - self._started > limit:
                raise ShellError(f"was not over after {limit:g} s")
        told = os.read(self._codes, 16)
        if not told:
            raise ShellError("ended the shell")
        return Ran(int(told), time.monotonic() - self._started, self.output())

    def is_over(self) -> bool:
        """Return whether the command, or the shell, has ended."""
        return bool(select.select([self._codes], [], [], 0)[0])

    def output(self) -> str:
        """Return what the command has written so far."""
        return self._output.read_text(encoding="utf-8", errors="replace") if self._output.exists() else ""

    def terminate(self) -> None:
        """Send SIGTERM to the process that the shell waits for, not to the shell."""
        children = Path(f"/proc/{self._bash.pid}/task/{self._bash.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGTERM)

    def close(self) -> None:
        """End the shell and all processes that run in it: SIGTERM, and SIGKILL to those that are left then."""
        if self._codes < 0:
            return
        assert self._bash.stdin is not None
        for number, patience in ((signal.SIGTERM, _MERCY), (signal.SIGKILL, _DEATH)):
            self._signal(number)
            last = time.monotonic() + patience
            while self._signal(0) and time.monotonic() < last:
                self._bash.poll()  # a process that has ended stays in its group until its parent asks
                time.sleep(_TICK)
        self._bash.wait()
        self._bash.stdin.close()
        os.close(self._codes)
        self._codes = -1

    def _signal(self, number: int) -> bool:
        """Send a signal to all processes of the shell's group; return whether there are any."""
        try:
            os.killpg(self._bash.pid, number)
        except ProcessLookupError:
            return False
        return True
