"""Paste every command of README.md in a fresh clone, in order, as its reader does.

    python -m tests.readme.commands [--checkout FOLDER] [--python PYTHON] [--readme FILE]

Clones FOLDER (default: this checkout) into an empty folder, and runs each command of README's ```sh blocks in one shell
there, each ```python block in a process of its own. A server is asked once and ended. Prints a line for each command
with its seconds; of a command that fails also what it wrote. Nothing is left: neither the clone nor a process. pip's
cache and the folder VGG16GPU_CACHE, where one is set, are used as ever.

Exit code 1 when a command fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.readme.asking import AnswerError, ask_for_a_digit
from tests.readme.blocks import PYTHON, SHELL, Command, PageError, blocks, free_names, shell_commands
from tests.readme.brought import CLASSES, SIDE, make_model, make_photos
from tests.readme.shell import Ran, Shell, ShellError

ROOT: Final = Path(__file__).resolve().parents[2]

# Commands of README that are not run here, and why: at most six.
NOT_RUN: Final[Mapping[str, str]] = {
    "sudo apt install g++ make python3-venv": "needs root",
    "git clone <address of this repository> vgg16gpu && cd vgg16gpu": "needs the published address; a clone is made",
    "pip install -e . && python -m vgg16gpu.cuda_setup": "needs a GPU",
    "make test": "takes minutes, and is a step of its own in .ci/run",
}

# Commands of README that end with 1, because of a picture that cannot be read.
PARTLY: Final = frozenset(
    {
        "vgg16gpu infer photos/ --model digits --output rows.csv",
        "vgg16gpu infer photos/ --model my.onnx --preprocess unit",
    }
)


@dataclass(frozen=True)
class Brought:
    """A file or folder of the reader's, and the function that writes it to a path."""

    what: str
    make: Callable[[Path], None]


# Files that README names and its reader has. They lie in the clone before the first command.
BROUGHT: Final[Mapping[str, Brought]] = {
    "photos": Brought("three digits, three structured pictures, and a picture that is cut off", make_photos),
    "my.onnx": Brought(f"a narrow VGG16 with random weights, {SIDE}x{SIDE} pixels, {CLASSES} classes", make_model),
}

LIMIT: Final = 300.0  # seconds of a command
SERVER: Final = re.compile(r"(^|&& )(python -m )?vgg16gpu serve\b")
LISTENS: Final = re.compile(r"at (https?://[^ ,]+),")  # what the server says once it does
DIGIT, ITS_CLASS = Path("vgg16gpu", "data", "digit_sample.png"), 2

_TICK = 0.1  # seconds
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What an interactive shell would not have: of this process's environment, of a make around it.
_UNSET = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHON", "VENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "BASH_ENV")


class CommandError(Exception):
    """A command of the page that failed; the message says how."""


@dataclass(frozen=True)
class Step:
    """A command that is run: `shown` is printed, `pasted` is what the shell gets; `line` is its place in the page."""

    line: int
    shown: str
    pasted: str
    code: int = 0

    @property
    def serves(self) -> bool:
        """Return whether the command is a server, which does not end by itself."""
        return SERVER.search(self.shown) is not None


def steps(page: str, folder: Path) -> Iterator[Step]:
    """Yield what a page's reader runs, in order. Python goes into files in `folder`.

    Raises PageError for a page that cannot be followed, and for Python that uses a name of nobody.
    """
    for block in blocks(page):
        if block.language == SHELL:
            for command in shell_commands(block):
                if command.words not in NOT_RUN:
                    yield Step(command.line, command.words, command.text, int(command.words in PARTLY))
        elif block.language == PYTHON:
            missing = sorted(free_names(block.text))
            if missing:
                raise PageError(f"line {block.line}: nothing makes {', '.join(missing)}; README must define each name")
            file = folder / f"line_{block.line}.py"
            file.write_text(block.text)
            yield Step(block.line, f"Python: {block.lines[0]} ...", f"python '{file}'")


def left_out(page: str) -> list[Command]:
    """Return the commands of a page that stand in NOT_RUN."""
    commands = [command for block in blocks(page) if block.language == SHELL for command in shell_commands(block)]
    return [command for command in commands if command.words in NOT_RUN]


def follow(page: str, shell: Shell, clone: Path, scratch: Path, limit: float = LIMIT) -> int:
    """Run all commands of a page and return how many failed. A command that does not end is the last one."""
    failed = 0
    for step in steps(page, scratch):
        started = time.monotonic()
        try:
            ran = serve(step, shell, clone / DIGIT, limit) if step.serves else shell.run(step.pasted, limit)
            if ran.code != step.code:
                raise CommandError(f"exit code {ran.code}, expected {step.code}")
        except (CommandError, AnswerError, ShellError) as error:
            failed += 1
            _tell(f"line {step.line}: {step.shown}: {error}; it wrote:\n{shell.output()}")
            if isinstance(error, ShellError):
                _tell("What follows it was not run.")
                break
        else:
            _tell(f"{time.monotonic() - started:6.1f} s  line {step.line}: {step.shown}")
    return failed


def serve(step: Step, shell: Shell, picture: Path, limit: float) -> Ran:
    """Start a server, ask it for the class of a digit, and end it by SIGTERM.

    Raises CommandError, AnswerError or ShellError where one of these fails; the server is ended then, too.
    """
    last = time.monotonic() + limit
    shell.begin(step.pasted)
    while not (listens := LISTENS.search(shell.output())):
        if shell.is_over():
            raise CommandError(f"exit code {shell.wait(limit).code} before it listened")
        if time.monotonic() > last:
            raise ShellError(f"did not listen after {limit:g} s")
        time.sleep(_TICK)
    try:
        answer = ask_for_a_digit(listens[1], picture)
    finally:
        shell.terminate()
        ran = shell.wait(limit)
    if answer != ITS_CLASS:
        raise CommandError(f"its answer to {picture.name} is class {answer}, right is {ITS_CLASS}")
    return ran


def prepare(checkout: Path, scratch: Path) -> Path:
    """Clone the checkout into `scratch` and put what the reader brings into the clone, which is returned."""
    clone = scratch / "vgg16gpu"
    subprocess.run(["git", "clone", "--quiet", str(checkout), str(clone)], check=True)
    for name, brought in BROUGHT.items():
        brought.make(clone / name)
    return clone


def environment(scratch: Path, python: str) -> dict[str, str]:
    """Return the environment of a shell just opened, in which `python3` is `python` and no file is left elsewhere."""
    find = [python, "-c", "import sys; print(sys.executable)"]  # past what only starts another Python, as pyenv has it
    found = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    for name in ("bin", "tmp"):
        (scratch / name).mkdir()
    starter = scratch / "bin" / "python3"
    starter.write_text(f"#!/bin/sh\nexec '{found}' \"$@\"\n")
    starter.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in _UNSET}
    environ.setdefault("VGG16GPU_CACHE", str(scratch / "kernels"))
    path = f"{starter.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return {**environ, "PATH": path, "TMPDIR": str(scratch / "tmp")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run README's commands. Returns 1 when one of them fails, 2 when they cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.readme.commands", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkout", type=Path, default=ROOT, help="The repository to clone. Default: this one.")
    parser.add_argument("--python", default=sys.executable, help="What `python3` is. Default: the one that runs this.")
    parser.add_argument("--readme", type=Path, help="A page in place of the clone's README.md.")
    chosen = parser.parse_args(arguments)
    if shutil.which(chosen.python) is None:
        parser.error(f"--python {chosen.python}: there is no such program")
    for number in _ENDING:
        signal.signal(number, _leave)
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-readme-") as name:
        scratch = Path(name)
        try:
            environ = environment(scratch, chosen.python)
            clone = prepare(chosen.checkout.resolve(), scratch)
            page = (chosen.readme or clone / "README.md").read_text(encoding="utf-8")
            started = time.monotonic()
            with Shell(clone, scratch, environ) as shell:
                failed = follow(page, shell, clone, scratch)
        except (PageError, OSError, subprocess.CalledProcessError) as error:
            print(f"README's commands cannot be run: {error}", file=sys.stderr)
            return 2
    for command in left_out(page):
        _tell(f"not run   line {command.line}: {command.words}: {NOT_RUN[command.words]}")
    _tell(f"README's commands: {time.monotonic() - started:.0f} s, {failed or 'none'} failed")
    return 1 if failed else 0


def _leave(number: int, _: object) -> None:
    """Leave the program by an exception, so that what was started and made is removed, undisturbed."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
