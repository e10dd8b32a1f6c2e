"""A16: a server ends by SIGTERM, SIGINT and SIGHUP at any time, without a traceback, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving.running import PATIENCE, ROOT, serving
from tests.serving.test_serve import binary_request

pytestmark = pytest.mark.usefixtures("extra")

SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT")


@contextmanager
def begun(folder: Path, *before: str):
    """A server with a session and a folder for temporary files of its own, as it starts."""
    folder.mkdir(exist_ok=True)
    command = [*before, sys.executable, "-m", "vgg16gpu", "serve", "digits", "--device", "cpu", "--port", "0"]
    given = {**os.environ, "TMPDIR": str(folder), "VGG16GPU_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--workers", "1"], cwd=ROOT, env=given, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def children_of(process: subprocess.Popen[str]) -> int:
    return len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


LATER = pytest.mark.slow(reason="SIGTERM of the whole group at one moment stands for it")
STARTS = [
    pytest.param(name, is_for_all, (0.0, 0.4, 0.8, 1.2), marks=LATER)
    for name in SIGNALS
    for is_for_all in (False, True)
]


@pytest.mark.parametrize(("name", "is_for_all", "pauses"), [("SIGTERM", True, (0.8,)), *STARTS])
def test_a16_a_signal_while_it_starts_ends_it_quietly(tmp_path, name, is_for_all, pauses) -> None:
    """While device processes import and build, one moment after the other; a terminal sends it to all processes."""
    for pause in pauses:
        with begun(tmp_path / "folder") as process:
            last = time.monotonic() + PATIENCE
            while not list((tmp_path / "folder").iterdir()) and children_of(process) < 1:
                assert time.monotonic() < last
                time.sleep(0.01)
            time.sleep(pause)
            (os.killpg if is_for_all else os.kill)(process.pid, signal.Signals[name])
            code = process.wait(PATIENCE)
            told = process.stderr.read()
        assert code == 0
        assert "Traceback" not in told
        assert [line for line in told.splitlines() if not line.startswith("vgg16gpu: serving ")] == []
        assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.slow(reason="SIGTERM stands for it")
def test_a16_sighup_drains_as_sigterm_does(digits) -> None:
    message, raw = binary_request(digits[:1], "FP32")
    head = json.dumps(message).encode()
    lines = [b"POST /v2/models/digits/infer HTTP/1.1", b"Host: localhost"]
    lines += [b"Inference-Header-Content-Length: %d" % len(head), b"Content-Length: %d" % (len(head) + len(raw))]
    with serving("--workers", "1", "--batch", "1") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
            slow.sendall(b"\r\n".join((*lines, b"", head)))
            time.sleep(0.3)  # it is being read
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert server.ask("GET", "/v2/health/ready").status == 503
            slow.sendall(raw)
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert server.process.wait(PATIENCE) == 0
