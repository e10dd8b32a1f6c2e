"""Heads of requests: A8, lengths of bodies; A13, long numbers; A15, names of foreign hosts, and types of bodies."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from tests.serving.test_serve import binary_request
from vgg16gpu_serving.front_end.heads import Heads, check_form
from vgg16gpu_serving.refused import RefusedError

LONG = "9" * 4300  # digits that Python reads; one more, and it refuses


class Headers(dict):
    """As granian gives them."""

    def items(self):
        return [(name, value) for name, values in super().items() for value in values]

    def get(self, name, default=None):
        return super().get(name, [default])[0]


def scope(*, version: str = "1.1", authority: str | None = None, host: object = "localhost", **headers: str):
    hosts = [host] if isinstance(host, str) else list(host)
    found = Headers({name.replace("_", "-"): [value] for name, value in headers.items()})
    if hosts:
        found["host"] = hosts
    return SimpleNamespace(headers=found, http_version=version, authority=authority)


def status(heads: Heads, **given: object) -> int:
    with pytest.raises(RefusedError) as refused:
        heads.check(scope(**given))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return refused.value.status


@pytest.mark.parametrize(("length", "nbytes"), [("0", 0), ("17", 17), ("9223372036854775807", 9223372036854775807)])
def test_a8_the_length_of_a_body_is_what_its_digits_say(length: str, nbytes: int) -> None:
    assert Heads(None).check(scope(content_length=length)) == nbytes


@pytest.mark.parametrize(
    "length",
    [
        "000000000000000000100000000",
        "00",
        "01",
        "+5",
        "-5",
        " 5",
        "5 ",
        "5,5",
        "0x10",
        "1e3",
        "",
        "٣",
        LONG,
        LONG * 100,
    ],
)
def test_a8_other_forms_of_a_length_are_refused(length: str) -> None:
    """RFC 9110 8.6 lets a server refuse what is not one number of digits; zeros before it are how it was cut to 0."""
    assert status(Heads(None), content_length=length) == 400


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "LocalHost:8000",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:8000",
            "127.1.2.3",
            "[::1]",
            "[::1]:8000",
        ),
        *("model.localhost", "inference.example", "INFERENCE.example:80"),
    ],
)
def test_a15_names_of_this_machine_are_taken_on_the_loopback(host: str) -> None:
    assert Heads(("inference.example", "::9")).check(scope(host=host)) == 0


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "evil-localhost", "127.0.0.1.evil.example"),
        *("0.0.0.0", "0.0.0.0:8000", "10.0.0.1", "[::]", "", ":8000", "user@localhost", "localhost:80:80", "[::1"),
        *("localhost/x", "localhost, evil.example", "inference.example.evil", "127.0.0.1:123456", "١٢٧.0.0.1"),
    ],
)
def test_a15_other_names_are_refused_there(host: str) -> None:
    """RFC 9110 15.5.20: 421 is for a request to a name that the server does not answer for."""
    heads = Heads(("inference.example",))
    assert status(heads, host=host) == 421
    assert status(heads, host="localhost", authority=host) == 421  # of a request line that names the host, too
    assert Heads(None).check(scope(host=host)) == 0  # elsewhere any name is taken


def test_a15_one_host_is_named() -> None:
    assert status(Heads(()), host=()) == 400
    assert status(Heads(()), host=("localhost", "localhost")) == 400
    assert status(Heads(()), version="1.0", host=("localhost", "evil.example")) == 400
    assert Heads(()).check(scope(version="1.0", host=())) == 0


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        ({}, True),  # tritonclient
        ({"content-type": "application/octet-stream"}, True),
        ({"content-type": "application/json; charset=utf-8", "origin": "http://localhost"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-origin", "content-type": ""}, False),
        ({"content-type": "text/plain", "origin": "https://evil.example"}, False),
        ({"content-type": "text/plain"}, False),
        ({"content-encoding": "gzip"}, False),
        ({"content-encoding": "identity"}, True),
    ],
)
def test_a15_browsers_say_of_which_type_a_body_is(headers: dict[str, str], is_taken: bool) -> None:
    if is_taken:
        check_form(headers.get)
        return
    with pytest.raises(RefusedError) as refused:
        check_form(headers.get)
    assert refused.value.status == 415


def answer(port: int, message: bytes, rest: bytes = b"") -> tuple[bytes, int]:
    """What comes back, and how many bytes of the rest were taken before the connection ended."""
    taken = 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(message)
        try:
            for first in range(0, len(rest), 1 << 16):
                taken += connection.send(rest[first : first + (1 << 16)])
            found = connection.recv(1 << 16)
        except OSError:
            found = b""
    return found, taken


def test_a8_a_body_that_is_refused_is_not_read(server) -> None:
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n"
    for length in (b"000000000000000000100000000", b"100000000"):
        began = time.monotonic()
        found, taken = answer(server.port, head % length, bytes(100_000_000))
        assert not found or found.split()[1] in (b"400", b"413")
        assert taken < 50_000_000  # what the system's buffers have taken
        assert time.monotonic() - began < 20
    found, _ = answer(server.port, head % b"000000000000000000100000000")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b'{"error": "Content-Length is ' in found


@pytest.mark.parametrize("name", ["Content-Length", "Inference-Header-Content-Length"])
def test_a13_long_numbers_in_heads_are_400(server, digits, name) -> None:
    head = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\n{name}: {LONG}\r\n"
    length = "Content-Length: 2\r\n\r\n{}" if name != "Content-Length" else "\r\n"
    found, _ = answer(server.port, (head + length).encode())
    assert found.startswith(b"HTTP/1.1 400 ")
    assert server.infer(*binary_request(digits[:1], "FP32")).status == 200
