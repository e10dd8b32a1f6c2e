"""Many clients, more requests than the server can answer, its end under load, and a long time of all of it."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack

import numpy as np
import pytest

from tests.serving.held import require_flat, settled, usage
from tests.serving.load import Clients
from tests.serving.running import PATIENCE, serving
from tests.serving.test_serve import batch_of, binary_request
from tests.support.kernel_harness import assert_same_bits

pytestmark = [
    pytest.mark.alone(reason="measures how soon requests are answered under load"),
    pytest.mark.usefixtures("extra"),
]
LONG = pytest.mark.slow(reason="fewer seconds and requests of the same stand for it")


@pytest.mark.slow(reason="measures time; a full queue is in make test")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=LONG)])
def test_three_times_what_it_can_is_refused_at_once_or_answered_soon(digits, run_at, seconds):
    message, raw = binary_request(digits[:1], "FP32")
    queue, count = 16, 48
    with serving("--batch", "4", "--workers", "1", "--queue", str(queue)) as server:
        settled(server)
        with Clients(server, message, raw, 8) as warm:
            time.sleep(2)
        capacity = warm.ended[200] / 2
        with Clients(server, message, raw, count, every=count / (3 * capacity)) as load:
            time.sleep(seconds / 3)
            before = usage(server)
            time.sleep(seconds * 2 / 3)
            after = usage(server)
        assert set(load.ended) == {200, 429}
        offered = sum(load.ended.values()) / seconds
        assert offered > 1.5 * capacity  # the clients are on the same cores
        assert load.ended[200] > 0.4 * capacity * seconds
        # It waits for those before it in the queue, and for a batch that has begun.
        assert np.percentile(load.seconds, 99) < 0.5 + 3 * (queue + 4) / capacity
        require_flat(before, after)
        for headers, body in load.replies:
            length = int(headers["inference-header-content-length"])
            found = np.frombuffer(body[length:], "<f4").reshape(1, -1)
            batch = json.loads(body[:length])["parameters"]["batch_size"]
            assert_same_bits(found, run_at(digits[:1], batch))


@pytest.mark.slow(reason="test_faults.py ends a server that has a request under way")
@pytest.mark.parametrize("round_", range(3))
def test_sigterm_under_load_loses_no_request(digits, tmp_path, round_):
    """Whatever the log says was answered did arrive, and no connection ends in the middle of a request."""
    message, raw = binary_request(digits[:1], "FP32")
    log = tmp_path / "log"
    with serving("--batch", "4", "--workers", "2", "--access-log", str(log), "--deadline-s", "5") as server:
        with Clients(server, message, raw, 12) as load:
            time.sleep(1 + 0.3 * round_)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 0
        told = [json.loads(line) for line in log.read_text().splitlines()]
        logged = {line["id"] for line in told if line["status"] == 200 and line["method"] == "POST"}
        assert logged == set(load.answered)
        assert load.ended[200] > 20
        # These had not been read. Others, as a connection that ends where an answer is due, would be lost.
        lost = set(load.ended) - {200, "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError"}
        assert not lost, load.refused


@pytest.mark.slow(reason="waits; a slow body is in make test")
def test_slow_readers_and_writers_and_half_requests_cost_others_nothing(digits):
    message, raw = binary_request(digits[:4], "FP32")
    head = json.dumps(message | {"outputs": [{"name": "features.1"}]}).encode()
    asked = (
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\n"
        + f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + len(raw)}\r\n\r\n".encode()
        + head
        + raw
    )
    options = ("--batch", "4", "--workers", "1", "--outputs", "features.1,output", "--deadline-s", "2")
    with serving(*options, "--max-connections", "20") as server, ExitStack() as stack:
        before = usage(server)

        def connected(room=None):
            connection = stack.enter_context(socket.socket())
            if room:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            connection.settimeout(30)
            connection.connect(("127.0.0.1", server.port))
            return connection

        readers = [connected(4096) for _ in range(6)]  # they read nothing
        for reader in readers:
            reader.sendall(asked * 8)
        halves = [connected() for _ in range(12)]
        for number, half in enumerate(halves):
            half.sendall(asked[: (number + 1) * len(asked) // 14])
        for _ in range(20):
            assert server.infer(*binary_request(digits[:1], "FP32")).status == 200
        for half in halves:
            answer = half.recv(4096)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
        for _ in range(16):  # with the others more than there are connections: nobody keeps one without reading
            connected(4096).sendall(asked * 8)
        assert server.infer(*binary_request(digits[:1], "FP32")).status == 200
        stack.close()
        for _ in range(20):
            reply = server.infer(*binary_request(digits[:1], "FP32"))
            assert reply.status == 200
        assert batch_of(reply) == 1
        require_flat(before, usage(server), rss=40.0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [pytest.param(180, marks=LONG)])
def test_nothing_grows_in_a_long_time(digits, seconds):
    """Tensors, pictures, bad requests, clients that come and go."""
    message, raw = binary_request(digits[:1], "FP32")
    bad, _ = binary_request(digits[:1] * np.float32(np.nan), "FP32")
    with serving("--batch", "4", "--workers", "2", "--devices", "cpu:2") as server:
        with Clients(server, message, raw, 6) as load, Clients(server, bad, b"\0" * 99, 2, every=0.05) as spoil:
            last = time.monotonic() + seconds
            before = None
            while time.monotonic() < last:
                for path in ("/metrics", "/v2/models/digits/stats", "/nothing"):
                    server.ask("GET", path)
                assert server.infer(message, raw).status in (200, 429)
                time.sleep(0.2)
                if before is None and time.monotonic() > last - seconds * 2 / 3:
                    before = usage(server)
            require_flat(before, usage(server))
        assert set(load.ended) <= {200, 429}
        assert set(spoil.ended) <= {400, 429}
