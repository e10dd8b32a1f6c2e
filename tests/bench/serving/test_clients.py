"""Clients against servers that fail and stand still, by the standard library: all requests are accounted for."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from vgg16gpu.bench.serving.client import Tally, Work
from vgg16gpu.bench.serving.load import Load
from vgg16gpu.bench.serving.session import Contender, Wanted, measured, run_clients
from vgg16gpu.bench.serving.target import Address, Body
from vgg16gpu.errors import InputError

BODIES = [Body(b"x" * 100, {}, 2, b"")]


class Server(ThreadingHTTPServer):
    """Answers with `status(number)`; `stall` is held while all stand still."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, status=lambda _: 200, closes=False):
        self.status, self.closes, self.asked = status, closes, 0
        self.stall = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self):
        return Address("http", "127.0.0.1", self.server_port)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.stall:
            self.server.asked += 1
        self.send_response(self.server.status(self.server.asked))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
        self.close_connection = self.server.closes  # without a word of it: as one that idled too long

    def log_message(self, *_):
        pass


@contextmanager
def running(**options):
    with Server(**options) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def load_of(server, amount, kind="open", seconds=1.0, processes=1, cores=()):
    contender = Contender("stub", "jpeg", server.address, "/", BODIES, lambda: None)
    wanted = Wanted(seconds=seconds, connections=32, processes=processes, cores=cores)
    return measured(contender, wanted, Load(kind, amount), lambda _: None)


def test_a_server_that_stands_still_is_seen_by_all_who_would_have_come():
    with running() as server:

        def stand_still():
            while not server.asked > 30:
                time.sleep(0.001)
            with server.stall:
                time.sleep(0.2)

        thread = threading.Thread(target=stand_still)
        thread.start()
        row = load_of(server, 150)
        thread.join()
    assert row["requests"] == row["answers"] == pytest.approx(150, abs=60)
    assert row["latency_s"]["p99"] > 0.15
    assert row["answer_s"]["p50"] <= row["latency_s"]["p50"]
    assert row["latency_s"]["p90"] > 0.05  # a fifth of the arrivals fell into it
    assert row["images_per_s"] == pytest.approx(2 * row["answers_per_s"])


@pytest.mark.parametrize(("kind", "amount"), [("closed", 4), ("open", 100)])
def test_requests_are_answers_and_errors(kind, amount):
    with running(status=lambda number: 429 if number % 3 == 0 else 200) as server:
        row = load_of(server, amount, kind, seconds=0.5, processes=2)
        asked = server.asked
    assert row["requests"] == row["answers"] + sum(row["errors"].values()) == asked - 2  # a warm-up in each process
    assert row["errors"].keys() == {"429"}
    assert row["errors"]["429"] == pytest.approx(row["requests"] / 3, abs=12)
    assert row["clients"]["processes"] == 2


def test_clients_stay_on_the_cores_that_they_are_told():
    core = max(os.sched_getaffinity(0))
    found = set()

    def look(_):
        found.update(tuple(os.sched_getaffinity(client.pid)) for client in multiprocessing.active_children())
        return 200

    with running(status=look) as server:
        row = load_of(server, 1, "closed", seconds=0.2, cores=(core,))
    assert row["clients"]["cores"] == [core]
    assert found == {(core,)}


def test_connections_that_the_server_closes_are_opened_again():
    with running(closes=True) as server:
        row = load_of(server, 2, "closed", seconds=0.3)
    assert row["errors"] == {}
    assert row["answers"] > 2


def test_what_nobody_answers_is_an_error_each():
    with running() as server:
        address = server.address
    tally = run_clients([Work(address, "/", BODIES, 2, 0.2, np.linspace(0, 0.1, 5))])
    assert isinstance(tally, Tally)
    assert (tally.requests, tally.latencies, sum(tally.errors.values())) == (5, [], 5)
    assert tally.errors.keys() == {"ConnectionRefusedError"}


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x:1", "http://x:y", "http://x:1/path", "http://:5", ""])
def test_addresses_that_are_none(url):
    with pytest.raises(InputError, match="give http://HOST:PORT"):
        Address.of(url)


def test_addresses():
    assert str(Address.of("http://localhost:8000/")) == "http://localhost:8000"
    assert Address.of("https://x", "secret").headers == {"Authorization": "Bearer secret"}
    with pytest.raises(InputError, match="start one with"):
        Address("http", "127.0.0.1", 1).ask("/v2")
