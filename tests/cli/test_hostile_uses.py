"""Every row of hostile_uses.py: a code that is documented, lines of our own, no traceback, and no file left behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.hostile_uses import (
    COMPILERS,
    ENVIRONMENTS,
    NO_NUMBERS,
    NUMBERS,
    PROCESSES,
    USES,
    Use,
    documents,
    furnish,
    metadata,
    models,
    reading,
    writing,
)
from vgg16gpu.cli import COMMANDS, cli
from vgg16gpu.compiler.onnx.metadata import encoded

ROOT = Path(__file__).resolve().parents[2]
LINES = 12  # of a message, at most
TABLES = {
    "reading": tuple(reading()),
    "writing": tuple(writing()),
    "documents": tuple(documents()),
    "metadata": tuple(metadata()),
    "models": tuple(models()),
    "environments": ENVIRONMENTS,
    "compilers": COMPILERS,
    "uses": USES,
}


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    furnish(folder)
    return folder


@pytest.fixture
def place(furnished: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The furnished folder, current. What a row made goes; what it found is there still."""
    monkeypatch.chdir(furnished)
    before = contents(furnished)
    yield furnished
    after = contents(furnished)
    for name in after.keys() - before.keys():
        remove(furnished / name)
    assert {name: after.get(name) for name in before} == before


def contents(place: Path) -> dict[str, tuple[int, int] | None]:
    """Size and time of every file below a folder; None for what is no file."""
    found = {}
    for path in place.rglob("*"):
        if "__pycache__" in path.parts:  # Python's own, of a kernel's module
            continue
        status = path.lstat()
        found[str(path.relative_to(place))] = (status.st_size, status.st_mtime_ns) if path.is_file() else None
    return found


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in use.files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
    if use.metadata:
        (place / "metadata.onnx").write_bytes((place / "m.onnx").read_bytes() + encoded(use.metadata))
    before = contents(place)
    for variable, value in use.environment.items():
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(cli, shlex.split(use.words), input=use.given)
    assert done.exception is None or isinstance(done.exception, SystemExit), (use.name, done.exc_info)
    judge(use, done.exit_code, done.stderr, done.stdout)
    if done.exit_code == 2:
        assert contents(place) == before, use.name  # nothing was done


def judge(use: Use, code: int, said: str, shown: str = "", *, has_stderr: bool = True) -> None:
    assert code in use.codes, (use.name, code, said)
    assert "Traceback" not in said, (use.name, said)
    assert not {"\x1b", "\x9b"} & set(said + shown), use.name
    lines = said.splitlines()
    assert len(lines) <= LINES or lines[0].startswith("Usage"), (use.name, said)
    if code == 2 and has_stderr:
        assert shown == "", use.name
        assert lines, use.name
        assert lines[0].startswith("vgg16gpu: ") or use.says == "Usage", (use.name, said)
    assert re.search(use.says, said), (use.name, said)


@pytest.mark.parametrize("use", TABLES["reading"], ids=str)
def test_names_of_files_that_are_read(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["writing"], ids=str)
def test_names_of_files_that_are_written(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["documents"], ids=str)
def test_documents(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["metadata"], ids=str)
def test_metadata(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["models"], ids=str)
def test_models(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["environments"], ids=str)
def test_environments(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["uses"], ids=str)
def test_uses(use: Use, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(use, place, monkeypatch)


@pytest.mark.parametrize("use", TABLES["compilers"], ids=str)
def test_compilers(use: Use, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in {"no-program": b"\0\1\2", "bytes": b"#!/bin/sh\nprintf '\\377\\376\\n'\n"}.items():
        (place / name).write_bytes(data)
        (place / name).chmod(0o755)
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    check(use, place, monkeypatch)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("words", NUMBERS)
def test_what_is_no_number(words: str) -> None:
    for text in NO_NUMBERS:
        before, _, after = words.partition("{}")
        *first, last = shlex.split(f"{before}@")
        arguments: Sequence[str] = [*first, last.replace("@", text) + after.split(" ")[0], *shlex.split(after)[1:]]
        done = CliRunner().invoke(cli, arguments)
        assert done.exception is None or isinstance(done.exception, SystemExit), (text[:40], done.exc_info)
        judge(Use(f"{text[:40]!r} for {words}", words), done.exit_code, done.stderr, done.stdout)


IN_MAKE_TEST = ("all three streams are closed",)
SAMPLE = [
    pytest.param(*row, marks=() if row[0].name in IN_MAKE_TEST else pytest.mark.slow(reason="a process each; a sample"))
    for row in PROCESSES
]


@pytest.mark.parametrize(("use", "shell"), SAMPLE, ids=[use.name for use, _ in PROCESSES])
def test_processes(use: Use, shell: str, place: Path) -> None:
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "vgg16gpu", *shlex.split(use.words)]
    done = run(command, place)
    judge(use, done.returncode, done.stderr, has_stderr="2>" not in shell)


AT_IMPORT = """
import os, runpy, signal, sys
class Struck:
    def find_spec(self, name, *_):
        if name == "vgg16gpu.cli.common.tell":
            os.kill(os.getpid(), {number})
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests are a background job
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.meta_path.insert(0, Struck())
sys.argv[1:] = ["--version"]
runpy.run_module("vgg16gpu", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "vgg16gpu: interrupted\n"), (signal.SIGTERM, -15, ""), (signal.SIGHUP, -1, "")],
)
def test_signals_while_modules_are_imported(place: Path, number: int, code: int, said: str) -> None:
    done = run([sys.executable, "-c", AT_IMPORT.format(number=int(number))], place)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def run(command: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        command, cwd=place, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_each_command_has_rows() -> None:
    words = [use.words for table in TABLES.values() for use in table] + list(NUMBERS)
    for command in COMMANDS:
        assert sum(each.startswith(f"{command} ") for each in words) >= (1 if command in ("cache", "doctor") else 5), (
            command
        )
    assert len(words) > 200
    assert len({use.name for table in TABLES.values() for use in table}) == sum(map(len, TABLES.values()))
