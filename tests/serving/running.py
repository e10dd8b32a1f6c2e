"""A server that runs for a test, and requests to it by the standard library."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds for a start, on a slow machine


def require_extra() -> None:
    """Skip where what serves HTTP is missing."""
    for name in ("granian", "prometheus_client", "uvloop"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install ./serving")


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says, or its part that is JSON."""
        return json.loads(self.body[: int(self.headers.get("inference-header-content-length", len(self.body)))])

    @property
    def binary(self) -> bytes:
        """What follows the JSON."""
        return self.body[int(self.headers["inference-header-content-length"]) :]


@dataclass
class Running:
    """told: what it has said until it listened, `line` last."""

    process: subprocess.Popen[str]
    port: int
    line: str
    told: str

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            found = connection.getresponse()
            return Reply(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    def infer(
        self, message: dict[str, Any], binary: bytes | None = None, name: str = "digits", **headers: str
    ) -> Reply:
        head = json.dumps(message).encode()
        if binary is not None:
            headers["Inference_Header_Content_Length"] = str(len(head))
        return self.ask("POST", f"/v2/models/{name}/infer", head + (binary or b""), **headers)

    def children(self, name: str) -> list[int]:
        """The processes that it started: "device", "front-end" or "explainer", by what they hold open."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        spawned = [int(pid) for pid in tasks if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return [pid for pid in spawned if _part(pid, self.port) == name]

    def metric(self, sample: str) -> float:
        """What /metrics says of a name with its labels, 0 of one that it does not have yet."""
        text = self.ask("GET", "/metrics").body.decode()
        found = re.search(rf"^{re.escape(sample)} (.*)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    @property
    def waiting(self) -> float:
        """Images in slots, as they were when a request was last answered."""
        return self.metric("vgg16gpu_slots_used")

    def ready(self) -> None:
        """Wait until it says so."""
        last = time.monotonic() + PATIENCE
        while time.monotonic() < last:
            try:
                if self.ask("GET", "/v2/health/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("the server did not become ready")


def _part(pid: int, port: int) -> str:
    """What a process is, by the sockets that it holds."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {line[9] for line in lines if line[3] == "0A" and int(line[1].split(":")[1], 16) == port}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    explaining = {line[6] for line in lines if line[-1].endswith("/explain")}
    links = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    if links & {f"socket:[{inode}]" for inode in ports}:
        return "front-end"
    return "explainer" if links & {f"socket:[{inode}]" for inode in explaining} else "device"


def require_later(reply: Reply, status: int, words: str) -> None:
    """It must be refused for a moment: it says in a line why, and to try again."""
    assert reply.status == status, reply.body
    assert reply.headers["retry-after"] == "1"
    error = reply.json["error"]
    assert words in error
    assert "\n" not in error


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """It stands still."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def serving(
    *options: str, model: str = "digits", threads: int | None = 1, command: str = "vgg16gpu"
) -> Iterator[Running]:
    """`vgg16gpu serve` on the CPU at a free port, ready. It must end by SIGTERM with 0, unless it has ended before.

    threads: of the CPU device; None for its own choice. command: the module that is run.
    """
    require_extra()
    devices = () if "--devices" in options else ("--device", "cpu")
    asked = [sys.executable, "-m", command, "serve", model, *devices, "--port", "0", *options]
    environment = {**os.environ, **({"VGG16GPU_THREADS": str(threads)} if threads else {})}
    process = subprocess.Popen(
        asked, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stderr is not None
    try:
        line = told = ""
        while not (found := re.search(r"at https?://[^ ]+:(\d+),", line)):
            line = process.stderr.readline()
            told += line
            assert line, f"the server ended: {told}"
        server = Running(process, int(found[1]), line, told)
        if "https" not in line:
            server.ready()
        yield server
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
