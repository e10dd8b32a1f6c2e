"""README's commands in a fresh clone: which are run, what becomes of one that fails, and README's own tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.readme import commands
from tests.readme.asking import AnswerError
from tests.readme.blocks import PYTHON, SHELL, PageError, blocks, indented_code, shell_commands
from tests.readme.commands import CommandError, Step, follow, left_out, serve, steps
from tests.readme.shell import Shell
from tests.readme.test_shell import is_alive
from tests.serving.running import require_extra

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECONDS = 120.0

STAND_IN = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status})
        self.end_headers()
        self.wfile.write(b'{{"inputs": [{{"name": "a"}}]}}')
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'[{{"name": "b"}}]' if "index" in self.path else b'{{"outputs": [{{"data": [1, 3, 2]}}]}}')
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
print(f"serving at http://127.0.0.1:{{server.server_port}}, until Ctrl-C", flush=True)
server.serve_forever()
"""


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


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def shell(tmp_path: Path, scratch: Path) -> Iterator[Shell]:
    """In an empty folder, with the Python of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "clone").mkdir()
    with Shell(tmp_path / "clone", scratch, {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}) as opened:
        yield opened


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., Step]:
    """A server of another make: its status for readiness, its exit code."""

    def make(status: int = 200, code: int = 0) -> Step:
        (tmp_path / "stand_in.py").write_text(STAND_IN.format(status=status, code=code))
        return Step(1, "vgg16gpu serve digits", f"python {tmp_path / 'stand_in.py'}")

    return make


def fenced(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


def test_commands_and_python_come_in_their_order(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "NOT_RUN", {"sudo a": "needs root"})
    monkeypatch.setattr(commands, "PARTLY", {"c d"})
    page = fenced("sh", "sudo  a  # b", "c   d") + fenced("python", "print(3.0)") + fenced("sh", "e")
    first, python, last = steps(page, scratch)
    assert (first.shown, first.code, first.line) == ("c d", 1, 3)
    assert python.line == 6
    assert (scratch / "line_6.py").read_text() == "print(3.0)\n"
    assert (last.shown, last.code) == ("e", 0)
    assert [command.words for command in left_out(page)] == ["sudo a"]


def test_python_with_a_name_of_nobody_is_refused(scratch: Path) -> None:
    with pytest.raises(PageError, match=r"line 2: nothing makes pictures; README must define each name"):
        list(steps(fenced("python", "print(pictures)"), scratch))


@pytest.mark.parametrize(
    ("command", "serves"),
    [
        ("vgg16gpu serve digits", True),
        ("pip install -e ./serving && vgg16gpu serve digits", True),
        ("python -m vgg16gpu serve my.onnx --port 0", True),
        ("vgg16gpu infer serve", False),
        ("pip install -e ./serving", False),
    ],
)
def test_a_server_is_known(command: str, serves: bool) -> None:
    assert Step(1, command, command).serves == serves


def test_a_line_for_each_command(shell: Shell, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = fenced("sh", "mkdir a && cd a", "touch b") + fenced("python", "import os", "assert os.listdir() == ['b']")
    assert follow(page, shell, scratch, scratch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" s  ")[2] for line in lines] == [
        "line 2: mkdir a && cd a",
        "line 3: touch b",
        "line 6: Python: import os ...",
    ]


def test_what_fails_shows_what_it_wrote_and_the_rest_is_run(
    shell: Shell, scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PARTLY", {"true"})
    page = fenced("sh", "echo why >&2; (exit 4)", "true") + fenced("python", "1 / 0") + fenced("sh", "echo on")
    assert follow(page, shell, scratch, scratch) == 3
    found = capsys.readouterr().out
    assert "line 2: echo why >&2; (exit 4): exit code 4, expected 0; it wrote:\nwhy\n" in found
    assert "line 3: true: exit code 0, expected 1" in found
    assert "ZeroDivisionError" in found
    assert found.endswith("line 9: echo on\n")


def test_a_command_that_does_not_end_is_the_last(
    shell: Shell, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = fenced("sh", "echo begun; sleep 1000", "touch after")
    assert follow(page, shell, scratch, scratch, limit=0.5) == 1
    assert "was not over after 0.5 s; it wrote:\nbegun\n" in capsys.readouterr().out


def test_a_server_answers_once_and_ends(shell: Shell) -> None:
    require_extra()
    command = "python -m vgg16gpu serve digits --device cpu --port 0 --workers 1"
    assert serve(Step(1, command, command), shell, ROOT / commands.DIGIT, SECONDS).code == 0
    assert shell.run("true", SECONDS).code == 0


@pytest.mark.parametrize("code", [0, 3])
def test_a_servers_exit_code_counts(
    shell: Shell, stand_in: Callable[..., Step], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(commands, "ITS_CLASS", 1)
    assert serve(stand_in(code=code), shell, ROOT / commands.DIGIT, SECONDS).code == code


def test_a_servers_answer_counts(shell: Shell, stand_in: Callable[..., Step]) -> None:
    with pytest.raises(CommandError, match=r"its answer to digit_sample\.png is class 1, right is 2"):
        serve(stand_in(), shell, ROOT / commands.DIGIT, SECONDS)


def test_a_server_that_is_not_ready_is_ended(
    shell: Shell, stand_in: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.readme.asking._PATIENCE", 0.3)
    with pytest.raises(AnswerError, match="/v2/health/ready answers 503"):
        serve(stand_in(status=503), shell, ROOT / commands.DIGIT, SECONDS)
    assert shell.run("echo free", SECONDS).output == "free\n"


def test_a_server_that_does_not_start(shell: Shell) -> None:
    with pytest.raises(CommandError, match="exit code 5 before it listened"):
        serve(Step(1, "", "echo no port; (exit 5)"), shell, ROOT / commands.DIGIT, SECONDS)


# The whole program


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[[str], Path]:
    """A repository with a README."""

    def make(page: str) -> Path:
        folder = tmp_path / "checkout"
        folder.mkdir()
        (folder / "README.md").write_text(page)
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "all"]):
            subprocess.run(["git", *words], cwd=folder, check=True)
        return folder

    return make


def program(folder: Path, *words: object) -> subprocess.Popen[str]:
    """It, with a folder of its own for temporary files."""
    (folder / "temporary").mkdir()
    environ = {**os.environ, "TMPDIR": str(folder / "temporary"), "PYTHONPATH": "hides what is installed"}
    command = [sys.executable, "-m", "tests.readme.commands", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_clone_is_followed_and_removed(checkout: Callable[[str], Path], tmp_path: Path) -> None:
    page = fenced("sh", "git status --short", "test -s my.onnx", "python3 -c 'import sys; print(sys.prefix)'; false")
    child = program(tmp_path, "--checkout", checkout(page), "--python", sys.executable)
    out, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 1, err
    assert "line 3: test -s my.onnx\n" in out
    assert f"it wrote:\n{sys.prefix}\n" in out
    assert out.splitlines()[-1].endswith("s, 1 failed")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing(checkout: Callable[[str], Path], tmp_path: Path, number: signal.Signals) -> None:
    page = fenced("sh", f"sh -c 'echo $$ >{tmp_path}/partial; mv {tmp_path}/partial {tmp_path}/pid; sleep 1000; true'")
    child = program(tmp_path, "--checkout", checkout(page))
    last = time.monotonic() + SECONDS
    while not (tmp_path / "pid").exists() and time.monotonic() < last:
        time.sleep(0.05)
    process = int((tmp_path / "pid").read_text())
    child.send_signal(number)
    child.communicate(timeout=SECONDS)
    assert child.returncode == 128 + number
    assert not is_alive(process)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_checkout_that_is_none(tmp_path: Path) -> None:
    child = program(tmp_path, "--checkout", tmp_path / "nowhere")
    assert "README's commands cannot be run" in child.communicate(timeout=SECONDS)[1]
    assert child.returncode == 2
    assert list((tmp_path / "temporary").iterdir()) == []
