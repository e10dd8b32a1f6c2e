"""What keeps a server from starting is one line and code 2 (A12, A14, A16), and what is assumed is told (N1)."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.serving.running import ROOT, serving
from tests.support.later import later
from vgg16gpu.cli import cli
from vgg16gpu.errors import InputError
from vgg16gpu_serving.command import _tokens
from vgg16gpu_serving.front_end.door import LogFile, check_tls
from vgg16gpu_serving.parent.limits import allowed_connections

pytestmark = pytest.mark.usefixtures("extra")

LONG = "a" * 60


def failed(*options: str, **environment: str) -> str:
    """What a server says that does not start; in this process, as it ends before it starts any."""
    command = ["serve", "digits", "--device", "cpu", "--port", "0", "--workers", "1", *options]
    done = CliRunner(env=environment).invoke(cli, command)
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("vgg16gpu: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--access-log", "/nonexistent/a.log"], "--access-log '/nonexistent/a.log' cannot be written: No such file"),
        (["--access-log", "/"], "Is a directory"),
        (["--tls-cert", "README.md", "--tls-key", "README.md"], "no PEM in it"),
        (["--name", "a/b"], "--name 'a/b'"),
        (["--name", ""], "--name ''"),
        (["--name", ".."], "--name '..'"),
        (["--name", "stats"], "--name 'stats'"),
        (["--name", "a\nb"], r"--name 'a\nb'"),
        (["--host-name", "a/b"], "--host-name 'a/b'"),
        (["--token-file", "/dev/null"], "holds no token"),
        (["--token-file", "/dev/zero"], "more than"),
        (["--labels", "/dev/zero"], "more than"),
    ],
)
def test_a12_and_a16_a_server_that_cannot_start_says_why(options, words) -> None:
    assert words in failed(*options)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CXX", "'x", 'CXX="\'x" is no command: no closing quotation'),
        ("TMPDIR", "{}/" + "/".join([LONG] * 3), "set TMPDIR to a short path"),
    ],
)
def test_a16_a_wrong_environment_is_a_line(tmp_path, monkeypatch, variable, value, words) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a process that has just begun
    value = value.format(tmp_path)
    if variable == "TMPDIR":
        Path(value).mkdir(parents=True)
    assert words in failed(**{variable: value, "VGG16GPU_CACHE": str(tmp_path)})


def test_a16_a_working_folder_that_is_gone_is_a_line(tmp_path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = 'rmdir "$PWD"; exec "$0" -m vgg16gpu serve digits --device cpu --port 0 --workers 1'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (2, "vgg16gpu: the working folder was deleted; change to another one\n")


def made_key(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.cert", folder / f"{name}.key"
    made = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *made]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl, which makes the certificate, is not installed")
def test_a12_a_certificate_and_a_key_are_checked_before_anything_starts(tmp_path) -> None:
    (certificate, key), (_, other) = made_key(tmp_path, "first"), made_key(tmp_path, "second")
    locked = tmp_path / "locked"
    protect = ["openssl", "ec", "-in", str(key), "-aes128", "-passout", "pass:abcd", "-out", str(locked)]
    subprocess.run(protect, check=True, capture_output=True)
    check_tls(certificate, key)
    check_tls(None, None)
    for wrong, words in ((other, "key values mismatch"), (locked, "encrypted"), (tmp_path / "missing", "No such file")):
        with pytest.raises(InputError, match=words):
            check_tls(certificate, wrong)
    assert "key values mismatch" in failed("--tls-cert", str(certificate), "--tls-key", str(other))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("told", "a planted fault"),
        *later("as one that says why", ("died", "front end 0 ended with code 7, and did not listen")),
    ],
)
def test_a12_a_front_end_that_cannot_listen_ends_the_start(tmp_path, how, words) -> None:
    """The line "serving" is never said: a front end has an error that no check foresees."""
    script = tmp_path / "broken.py"
    script.write_text(
        "from vgg16gpu.errors import DeviceError\n"
        "from vgg16gpu_serving.front_end import process as front_end\n"
        "def broken(*_):\n"
        "    raise DeviceError('a planted fault')\n"
        "def end_main(*given):\n"
        "    front_end.check_tls = broken\n"
        "    front_end.main(*given)\n"
        "def died(*given):\n"
        "    raise SystemExit(7)\n"
        "if __name__ == '__main__':\n"
        "    import sys\n"
        "    from vgg16gpu.cli import main\n"
        "    ends = {'told': end_main, 'died': died}[sys.argv.pop()]\n"
        "    front_end.main = ends\n"
        "    main()\n"
    )
    command = [sys.executable, str(script), "serve", "digits", "--device", "cpu", "--port", "0", "--workers", "1"]
    given = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
    done = subprocess.run([*command, how], env=given, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (2, f"vgg16gpu: {words}\n")


def test_a_log_is_appended_to_by_whole_lines(tmp_path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    log = LogFile.opened(str(path))
    log.write("after")
    log.close()
    assert path.read_text() == "before\nafter\n"


@pytest.mark.slow(reason="a server of its own; the log by itself is in make test")
def test_a_log_on_a_full_disk_costs_no_request() -> None:
    with serving("--workers", "1", "--access-log", "/dev/full") as server:
        for _ in range(3):
            assert server.ask("GET", "/v2").status == 200


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a16_a_file_of_tokens_may_have_a_mark_and_ends_of_lines(tmp_path, mark, end) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_bytes(mark + b"first" + end + end + b" second " + end)
    assert _tokens(tokens) == (b"first", b"second")


@pytest.mark.parametrize("token", ["s\u00e9cret", "a\x01b", "\u2028".join("ab"), "\u0663" * 8])
def test_tokens_that_no_header_can_hold_are_refused_at_the_start(tmp_path, token) -> None:
    """The server would answer 401 to each request: granian leaves such headers out."""
    path = tmp_path / "tokens"
    path.write_text(f"first\n{token}\n", encoding="utf-8")
    told = failed("--token-file", str(path))
    assert f"line 2 of '{path}' is no token: a header holds printable ASCII alone; change it" in told
    assert token not in told


LIMITS = [(256, 4096, 1000, 1000), (200, 200, 1000, 104), (8192, 8192, 1000, 1000)]


@pytest.mark.parametrize(("soft", "hard", "wanted", "allowed"), LIMITS)
def test_a14_the_limit_of_open_files_is_raised_or_connections_are_fewer(
    monkeypatch, soft, hard, wanted, allowed
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.__setitem__(slice(None), given))
    assert allowed_connections(wanted) == allowed
    assert limits[1] == hard
    assert limits[0] >= min(hard, allowed + 96)


def test_a14_too_few_files_are_a_line(monkeypatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(InputError, match=r"may open 64 files here, and a server needs 97; raise `ulimit -n`"):
        allowed_connections(1024)


@pytest.mark.slow(reason="a server of its own; the limit by itself is in make test")
def test_a14_with_all_connections_taken_requests_are_answered(tmp_path) -> None:
    """A process may open 160 files: 64 connections are, all of them stay, and each gets its answers."""
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource\n"
        "if __name__ == '__main__':\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))\n"
        "    from vgg16gpu.cli import main\n"
        "    main()\n"
    )
    command = [sys.executable, str(script), "serve", "digits", "--device", "cpu", "--port", "0", "--workers", "1"]
    given = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)), "VGG16GPU_THREADS": "1"}
    with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True) as process, ExitStack() as stack:
        try:
            told = process.stderr.readline()
            assert told.startswith("vgg16gpu: --max-connections is 64, as a process may open so few files here; ")
            port = int(re.search(r"http://127.0.0.1:(\d+),", process.stderr.readline())[1])
            connections = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(80)
            ]
            for path in (b"/v2", b"/metrics", b"/v2/health/ready", b"/", b"/v2/models/digits/stats"):
                for connection in connections[:64]:
                    connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
                for connection in connections[:64]:
                    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 "), path
                    connection.setblocking(False)
                    try:
                        while connection.recv(1 << 16):
                            pass
                    except BlockingIOError:
                        connection.settimeout(60)
        finally:
            process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_n1_metadata_say_what_the_file_says(server) -> None:
    told = server.ask("GET", "/v2/models/digits").json["inputs"][0]["parameters"]
    assert told["preprocess_is_assumed"] is False
    assert told["preprocess"].endswith("from the file's metadata")
    assert "assumed" not in server.told
