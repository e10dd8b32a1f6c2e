"""Faults: processes that die, full queues, slow clients, the end of the server; none hangs or answers wrongly."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serving.load import Asking
from tests.serving.running import PATIENCE, require_extra, require_later, serving, stopped
from tests.serving.test_serve import batch_of, binary_request, scores
from tests.support.kernel_harness import assert_same_bits

pytestmark = pytest.mark.usefixtures("extra")


BROKEN = ("ConnectionResetError", "ConnectionRefusedError", "RemoteDisconnected", "BadStatusLine")


class Load(Asking):
    """Clients that ask until they are told to stop. `ended`: how many requests ended how."""

    def __init__(self, server, message, raw, clients=4):
        self.ended: Counter = Counter()
        self.replies: list = []
        self._server, self._asked = server, (message, raw)
        super().__init__(clients)

    def _ask(self, _):
        while not self._stop.is_set():
            try:
                reply = self._server.infer(*self._asked)
            except OSError as error:
                self.ended[type(error).__name__] += 1
                time.sleep(0.01)
                continue
            self.ended[reply.status] += 1
            if reply.status == 200:
                self.replies.append(reply)


def until(condition):
    last = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.05)


@pytest.fixture(scope="module")
def mortal():
    """A server whose processes are killed, and whose device process fails by SIGUSR1."""
    require_extra()
    with serving("--batch", "4", "--workers", "1", "--stall-s", "60", command="tests.serving.failing") as server:
        yield server


def test_a_device_process_with_a_kernel_that_fails_ends_and_is_started_again(mortal, digits, run_at):
    """What it computes and what waits in it gets 503, and its end is one line that says why."""
    request = binary_request(digits[:1], "FP32")
    (device,) = mortal.children("device")
    with ThreadPoolExecutor(6) as clients:
        with stopped(device):
            asked = [clients.submit(mortal.infer, *request) for _ in range(6)]
            until(lambda: mortal.waiting == 6)
            os.kill(device, signal.SIGUSR1)
        for each in asked:
            require_later(each.result(), 503, "the device process ended")
    mortal.ready()
    reply = mortal.infer(*request)
    assert_same_bits(scores(reply), run_at(digits[:1], batch_of(reply)))
    told = [mortal.process.stderr.readline().removeprefix("vgg16gpu: ") for _ in range(2)]
    assert told == [
        "the device failed, its process is started again: a planted fault\n",
        "device process 0 ended with code 1; it is started again\n",
    ]


@pytest.mark.slow(reason="waits; one whose kernel fails is started again in make test")
@pytest.mark.parametrize("name", ["device", "front-end"])
def test_a_process_that_stands_still_is_killed_and_started_again(digits, name):
    message, raw = binary_request(digits[:1], "FP32")
    with serving("--batch", "4", "--workers", "1", "--stall-s", "1") as server:
        (stopped,) = server.children(name)
        with Load(server, message, raw) as load:
            until(lambda: load.ended[200] > 20)
            os.kill(stopped, signal.SIGSTOP)
            until(lambda: is_gone(stopped))
            server.ready()
            answered = load.ended[200]
            until(lambda: load.ended[200] > answered + 20)
        assert {200} < set(load.ended) <= {200, *({503} if name == "device" else BROKEN)}


@pytest.mark.slow(reason="two devices; one whose kernel fails is in make test")
def test_a_device_process_that_dies_costs_only_what_it_had(digits, run_at):
    message, raw = binary_request(digits[:1], "FP32")
    with serving("--devices", "cpu:2", "--batch", "4", "--workers", "1") as server:
        devices = server.children("device")
        assert len(devices) == 2
        with Load(server, message, raw, 8) as load:
            until(lambda: load.ended[200] > 40)
            counts = [each["inference_count"] for each in by_device(server)]
            assert min(counts) > 0.5 * max(counts) > 0
            os.kill(devices[0], signal.SIGSTOP)  # so that it has something when it dies
            time.sleep(0.1)
            os.kill(devices[0], signal.SIGKILL)
            until(lambda: len(by_device(server)) == 1)
            assert server.ask("GET", "/v2/health/ready").status == 200
            answered = load.ended[200]
            until(lambda: load.ended[200] > answered + 40)  # clients have counted what they had under way
            refused, answered = load.ended[503], load.ended[200]
            until(lambda: load.ended[200] > answered + 20)
            assert load.ended[503] == refused <= 8  # at most one of each client
            until(lambda: len(by_device(server)) == 2)
            assert all(server.metric(f'vgg16gpu_images_total{{device="{device}"}}') > 0 for device in (0, 1))
        assert set(load.ended) == {200, 503}
        for reply in load.replies:
            assert_same_bits(scores(reply), run_at(digits[:1], batch_of(reply)))


def is_gone(process):
    return not Path(f"/proc/{process}").exists()


def by_device(server):
    """The statistics of each device that is there."""
    reply = server.ask("GET", "/v2/models/digits/stats")
    return list(reply.json["model_stats"][0]["devices"].values()) if reply.status == 200 else []


def test_a_front_end_that_dies_is_started_again(mortal, digits, run_at):
    message, raw = binary_request(digits[:1], "FP32")
    (end,) = mortal.children("front-end")
    with Load(mortal, message, raw, 2) as load:
        until(lambda: load.ended[200] > 5)
        os.kill(end, signal.SIGKILL)
        mortal.ready()
        answered = load.ended[200]
        until(lambda: load.ended[200] > answered + 5)
    for reply in load.replies:
        assert_same_bits(scores(reply), run_at(digits[:1], batch_of(reply)))


def test_sigterm_ends_what_is_under_way(mortal, digits):
    """The last of `mortal`: no other test needs it afterwards."""
    message, raw = binary_request(digits[:1], "FP32")
    head = json.dumps(message).encode()
    with socket.create_connection(("127.0.0.1", mortal.port), timeout=60) as slow:
        slow.sendall(
            b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\n"
            + f"Inference-Header-Content-Length: {len(head)}\r\n".encode()
            + f"Content-Length: {len(head) + len(raw)}\r\n\r\n".encode()
            + head
        )
        time.sleep(0.3)  # it is being read
        mortal.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert mortal.ask("GET", "/v2/health/live").status == 200
        assert mortal.ask("GET", "/v2/health/ready").status == 503
        slow.sendall(raw)
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert mortal.process.wait(PATIENCE) == 0


@pytest.mark.slow(reason="it waits for deadlines; test_heads.py and test_starting.py have tokens")
def test_slow_bodies_and_tokens_and_the_access_log(tmp_path, digits):
    tokens, log = tmp_path / "tokens", tmp_path / "log"
    tokens.write_text("first\nsecond\n")
    options = ("--token-file", str(tokens), "--access-log", str(log), "--deadline-s", "1", "--workers", "1")
    options += ("--batch", "4", "--queue", "1")  # a request of the most images fits in any queue
    with serving(*options) as server:
        message, raw = binary_request(digits[:4], "FP32")
        assert server.infer(message, raw).status == 401
        assert server.infer(message, raw, Authorization="Bearer third").status == 401
        for token in ("first", "second"):
            assert server.infer(message, raw, Authorization=f"Bearer {token}").status == 200
        assert server.ask("GET", "/metrics").status == 401
        assert server.ask("GET", "/v2/health/live").status == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
            slow.sendall(
                b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        # A line is written once its answer has been sent.
        until(lambda: {200, 401, 408} <= {json.loads(line)["status"] for line in log.read_text().splitlines()})
        assert "first" not in log.read_text()
