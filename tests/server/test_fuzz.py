"""Hostile messages of HTTP in large numbers: the server lives on, answers others, and holds no more than before.

Message `number` of a seed is always the same: a good request whose head, JSON or binary data is changed once or a few
times, or cut short; or bytes of no form at all.
"""

from __future__ import annotations

import json
import random
import socket

import numpy as np
import pytest

from tests.server.held import require_flat, settled, usage
from tests.server.test_serve import SAMPLE, as_bytes, binary_request, scores, tensor
from tests.support.kernel_harness import assert_same_bits

WORDS = [
    *(b"\r\n", b"\r\n\r\n", b"\n", b" ", b":", b"\0", b"\xff" * 9, b"%2e%2e/", b"?", b"#", b"//", b"A" * 5000),
    *(b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"GET", b"HEAD", b"CONNECT", b"OPTIONS *", b"-1", b"0x10"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"Upgrade: h2c\r\n", b"Connection: close\r\n"),
    *(b"Content-Length: 0\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: chunked, identity\r\n", b"Expect: 100-continue\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"Inference-Header-Content-Length: 7\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"ffffffff\r\n"),
    *(b"null", b"[]", b"{}", b"[[[[[[[[", b"1e999", b"-0", b"NaN", b'"', b"\\u0000", b"\\ud800", b"true"),
    *(b'"BYTES"', b'"UINT8"', b'"FP64"', b"binary_data_size", b"classification"),
    *(b"4294967296", b"18446744073709551616", b"\x7f\xff\xff\xff"),
]


def good(number: int, digits: np.ndarray) -> bytes:
    """One of a few kinds of good requests."""
    message, raw = binary_request(digits[: 1 + number % 4], ("FP32", "FP16")[number % 2])
    if number % 5 == 3:
        raw = as_bytes(SAMPLE.read_bytes())
        message = {"inputs": [tensor(np.empty(1), "BYTES", binary_data_size=len(raw))]}
    elif number % 5 == 4:
        data = digits[:1].reshape(-1).round(2).tolist()
        message, raw = {"inputs": [tensor(digits[:1], "FP32") | {"data": data}]}, b""
    body = json.dumps(message).encode() + raw
    lines = [b"POST /v2/models/digits/infer HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body)]
    if raw:
        lines.append(b"Inference-Header-Content-Length: %d" % (len(body) - len(raw)))
    return b"\r\n".join((*lines, b"", body))


def changed(message: bytes, chance: random.Random) -> bytes:
    """Mostly near its start, where its form is."""
    found = bytearray(message)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(min(len(found), chance.choice((60, 200, 500, len(found)))) or 1)
        match chance.randrange(6):
            case 0:
                found[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del found[place : place + chance.choice((1, 4, 40))]
            case 2:
                found[place:place] = chance.choice(WORDS)
            case 3:
                word = chance.choice(WORDS)
                found[place : place + len(word)] = word
            case 4:
                found[place:place] = found[place : place + chance.choice((1, 20, 100))]
            case 5:
                line = found.find(b"\r\n") + 2
                found[line:line] = chance.choice(WORDS)
        found = found or bytearray(b"\0")
    if chance.random() < 0.1:
        del found[chance.randrange(len(found)) :]
    return bytes(found) if chance.random() < 0.97 else chance.randbytes(chance.randrange(1, 3000))


def sent(port: int, message: bytes) -> bytes:
    """What comes back until the server ends the connection, or nothing comes any more."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        answer = b""
        try:
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        except TimeoutError:
            raise
        except OSError:  # it has ended the connection
            pass
        return answer


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("first", "count"), [(0, 1500), pytest.param(1500, 10_000, marks=pytest.mark.slow(reason="more of the same"))]
)
def test_hostile_messages(server, run_at, digits, first, count):
    before = None
    processes = usage(server).keys()
    statuses = set()
    for number in range(first, first + count):
        chance = random.Random(f"message {number}")
        answer = sent(server.port, changed(good(number, digits), chance))
        if answer:
            assert answer.startswith(b"HTTP/1."), (number, answer[:100])
            statuses.add(int(answer.split(None, 2)[1]))
            assert b"Traceback" not in answer
        if number % 100 == 99:
            reply = server.infer(*binary_request(digits[:1], "FP32"))
            assert_same_bits(scores(reply), run_at(digits[:1], 1))
            before = before or settled(server)
    assert usage(server).keys() == processes
    require_flat(before, usage(server))
    assert {200, 400, 404, 405} <= statuses
    assert not statuses - {100, 200, 400, 404, 405, 408, 411, 413, 414, 415, 431, 505}, statuses
