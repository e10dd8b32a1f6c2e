"""What is refused for a moment: deadlines that pass, full queues, too many bodies; and answered once that is over."""

from __future__ import annotations

import json
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.serving.running import require_extra, require_later, serving, stopped
from tests.serving.test_faults import until
from tests.serving.test_serve import batch_of, binary_request, scores, statistics, tensor
from tests.support.kernel_harness import assert_same_bits

pytestmark = pytest.mark.usefixtures("extra")

OPTIONS = ("--batch", "4", "--workers", "1", "--queue", "4")  # one request of four images fills the queue


@pytest.fixture(scope="module")
def hasty():
    """A server with a deadline of a second and a queue of four images."""
    require_extra()
    with serving(*OPTIONS, "--deadline-s", "1", "--stall-s", "60") as server:
        yield server


def test_a_deadline_that_passes_while_the_device_stands_still(hasty, digits, run_at):
    request = binary_request(digits[:4], "FP32")
    (device,) = hasty.children("device")
    with stopped(device):
        require_later(hasty.infer(*request), 503, "was not answered before its deadline")
        # The device may yet write into its slots: nobody else gets them.
        require_later(hasty.infer(*request), 429, "the queue is full: 4 images wait")
    until(lambda: hasty.infer(*request).status == 200)
    reply = hasty.infer(*request)
    assert_same_bits(scores(reply), run_at(digits[:4], batch_of(reply)))


def test_a_request_that_is_late_at_the_device_is_not_computed(hasty, digits):
    def counts():
        told = statistics(hasty)
        return told["inference_count"], told["inference_stats"]["fail"]["count"]

    before = counts()
    with ThreadPoolExecutor(1) as client:
        (device,) = hasty.children("device")
        with stopped(device):
            late = client.submit(hasty.infer, *binary_request(digits[:4], "FP32"))
            until(lambda: hasty.waiting == 4)
            time.sleep(1.1)  # the front end waits a second longer for what the device says
        require_later(late.result(), 503, "was not answered before its deadline")
    assert counts() == (before[0], before[1] + 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "ends"),
    [
        ("POST", "/v2/models/other/infer", b"{}", 404, True),
        ("GET", "/v2/models/digits/infer", b"{}", 405, True),
        ("GET", "/v2/models/other", None, 404, False),
        ("POST", "/v2/models/digits/infer", b"{}", 400, False),
    ],
)
def test_a_connection_ends_with_a_body_that_was_not_read(server, method, path, body, status, ends):
    """The rest of the body would come where the next request is expected."""
    reply = server.ask(method, path, body)
    assert (reply.status, reply.headers.get("connection")) == (status, "close" if ends else None)


def begun(server, body):
    """A connection whose request has come but for its last byte."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:-1])
    return connection


@pytest.mark.slow(reason="a server of its own; bodies that are too large are in make test")
def test_more_bodies_at_once_than_four_of_the_largest_are_refused(digits):
    small = binary_request(digits[:1], "FP32")
    message = {"inputs": [tensor(digits[:1], "FP32") | {"data": digits[:1].tolist()}]}
    largest = json.dumps(message).encode().ljust(1 << 20)
    with serving("--batch", "4", "--workers", "1", "--max-body-mb", "1", "--deadline-s", "60") as server:

        def post(body):
            return server.ask("POST", "/v2/models/digits/infer", body)

        def four(stack):
            """All of them under way, so that no other large one is read, and small ones are."""
            connections = [stack.enter_context(begun(server, largest)) for _ in range(4)]
            until(lambda: post(largest).status != 200)
            refused = post(largest)
            require_later(refused, 429, "too many bodies are being read")
            assert server.infer(*small).status == 200
            assert refused.headers["connection"] == "close"  # it was not read
            assert not select.select(connections, [], [], 0)[0]  # none is refused
            return connections

        with ExitStack() as stack:
            four(stack)
        until(lambda: server.metric('vgg16gpu_requests_total{code="400"}') == 4)  # they have hung up
        assert server.infer(*small).status == 200
        with ExitStack() as stack:
            for connection in four(stack):
                connection.sendall(largest[-1:])
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert server.infer(*small).status == 200
