"""Hostile messages of HTTP in large numbers: `vgg16gpu serve` lives on, says no more than a line, and answers others.

    python -m tests.fuzz.http [--messages N] [--first N] [--output FILE]           needs serving/

Message `number` is always the same: a good request whose head, JSON, binary data or pictures are changed once or a few
times, by bytes or by what they mean, or cut short; or bytes of no form at all. All of it goes to a server of its own on
the loopback, from a few clients at the lowest priority that read the answer, close their side early, or hang up. Every
hundred messages an honest request must get its answer. Exit code 1 where an answer is of another form or a 500, where
the server writes anything, where a process dies, or where processes hold more than before.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import os
import random
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.serving.held import require_flat, settled, usage
from tests.serving.running import Running, serving
from tests.serving.test_serve import SAMPLE, as_bytes, binary_request, scores, tensor
from tests.support.picture_files import every_kind
from vgg16gpu import Engine
from vgg16gpu.bench.records.record import write
from vgg16gpu.io.shipped import digits_model

Digits = npt.NDArray[np.float32]

BATCH: Final = 4  # the largest
CLIENTS: Final = 4
STATUSES: Final = frozenset((100, 200, 400, 404, 405, 408, 411, 413, 414, 415, 421, 429, 431, 501, 503, 505))
_SILENCE: Final = 0.4  # seconds after which no more is expected: most messages that are cut short have no answer
_LIBTIFF: Final = re.compile(r"[\w.]+: ")  # begins what libtiff writes of damaged files: "ZIPDecode: ..."
_LOWEST: Final = 19  # of priorities

_WORDS: Final = [
    *(b"\r\n", b"\r\n\r\n", b"\n", b" ", b":", b"\0", b"\xff" * 9, b"%2e%2e/", b"?", b"#", b"//", b"A" * 5000),
    *(b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"GET", b"HEAD", b"CONNECT", b"OPTIONS *", b"-1", b"0x10"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"Upgrade: h2c\r\n", b"Connection: close\r\n"),
    *(b"Content-Length: 0\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: chunked, identity\r\n", b"Expect: 100-continue\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"Inference-Header-Content-Length: 7\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"ffffffff\r\n"),
    *(b"null", b"[]", b"{}", b"[[[[[[[[", b"1e999", b"-0", b"NaN", b'"', b"\\u0000", b"\\ud800", b"true"),
    *(b'"BYTES"', b'"UINT8"', b'"FP64"', b"binary_data_size", b"classification"),
    *(b"4294967296", b"18446744073709551616", b"\x7f\xff\xff\xff", b"9" * 4300, b"[" * 500, b"0" * 40),
]
_VALUES: Final[list[Any]] = [
    *(None, True, False, 0, -1, 1, 1.0, 0.5, 1e308, -0.0, 2**31, 2**63, 10**400),
    *(10**4299, "", "x" * 5000, "false", "1"),
    *([], {}, [[]], [None], [True], {"a": 1}, "\0", "\ud800", "é", [1, 1, 32, 32], [1], [4, 1, 32, 32], [2**31, 1]),
    *("FP32", "FP16", "UINT8", "BYTES", "INT64", "input", "output", [0.0] * 1024, [[0.0] * 32] * 32, ["AAAA"]),
]
_KEYS: Final = [
    *("name", "datatype", "shape", "data", "parameters", "inputs", "outputs", "id", "binary_data_size", "binary_data"),
    *("binary_data_output", "classification", "shared_memory_region", "layer", "maps", "class", "timeout", "\0", ""),
]
_HEADERS: Final[list[bytes]] = [
    *(b"Host: evil.example", b"Host: localhost:99999999", b"Host: [::1", b"Host:", b"Origin: null", b"Accept: */*"),
    *(b"Sec-Fetch-Site: cross-site", b"Content-Type: text/plain", b"Content-Type: application/json", b"Content-Type:"),
    *(b"Content-Length: 000000000000000000100000000", b"Content-Length: 5, 5", b"Content-Length: +7", b"TE: trailers"),
    *(b"Content-Length: " + b"9" * 4300, b"Inference-Header-Content-Length: " + b"9" * 4300, b"X-Request-Id: \xff"),
    *(
        b"Inference-Header-Content-Length: 00",
        b"Authorization: Bearer x",
        b"Range: bytes=0-1",
        b"Cookie: " + b"a" * 9000,
    ),
    *(b"Expect: 100-continue", b"Upgrade: websocket", b"Connection: Upgrade", b"Content-Encoding: gzip, identity"),
]
_PATHS: Final[list[bytes]] = [
    *(b"/", b"/v2", b"//v2", b"/v2/", b"/metrics", b"/v2/openapi.json", b"/v2/health/ready", b"/v2/models/stats", b"*"),
    *(b"/v2/models/digits", b"/v2/models/digits/versions/1", b"/v2/models/digits/versions/2", b"/v2/models//infer"),
    *(b"/v2/models/digits/config", b"/v2/models/digits/explain", b"/v2/models/%64igits", b"/v2/models/digits%2finfer"),
    *(b"/v2/models/%ff", b"/v2/models/%00", b"/v2/models/" + b"a" * 9000, b"/v2/systemsharedmemory/status", b"/..%2f"),
    *(b"/v2/cudasharedmemory/region/x/register", b"/v2/repository/models/x/load", b"http://evil.example/v2", b"/%zz"),
    *(
        b"http://localhost/v2/models/digits",
        b"/v2/models/digits/infer?x=1#y",
        b"/v2/models/digits/generate",
        b"/\xc3\xa9",
    ),
]
_METHODS: Final = [b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"FOO"]

_PICTURES: Final = [SAMPLE.read_bytes(), *every_kind().values()]


def good(number: int, digits: Digits) -> tuple[bytes, dict[str, Any], bytes]:
    """The path, the message and the binary data of one of a few kinds of good requests."""
    message, raw = binary_request(digits[: 1 + number % BATCH], ("FP32", "FP16")[number % 2])
    path = b"/v2/models/digits/infer"
    if number % 5 == 3:
        raw = as_bytes(_PICTURES[number % len(_PICTURES)])
        message = {"inputs": [tensor(np.empty(1), "BYTES", binary_data_size=len(raw))]}
    elif number % 5 == 4:
        data = digits[:1].reshape(-1).round(2).tolist()
        message, raw = {"inputs": [tensor(digits[:1], "FP32") | {"data": data}]}, b""
    if number % 11 == 10:
        message = message | {"parameters": {"layer": "relu1_1", "maps": 2, "class": 3}}
        path = b"/v2/models/digits/explain"
    return path, message, raw


def message_of(number: int, digits: Digits) -> bytes:
    """Message `number` as it is sent."""
    chance = random.Random(f"message {number}")
    path, message, raw = good(number, digits)
    how = chance.randrange(5)
    if how == 0:
        message = _meant(copy.deepcopy(message), chance)
    if how == 1 and raw:
        raw = _damaged(raw, chance)
    if how == 1 and number % 10 == 3:
        data = base64.b64encode(_damaged(_PICTURES[0], chance)).decode()
        message, raw = {"inputs": [tensor(np.empty(1), "BYTES") | {"data": [data]}]}, b""
    body = json.dumps(message).encode() + raw
    lines = [b"POST %s HTTP/1.1" % path, b"Host: localhost", b"Content-Length: %d" % len(body)]
    if raw:
        lines.append(b"Inference-Header-Content-Length: %d" % (len(body) - len(raw)))
    if how == 2:
        for _ in range(chance.choice((1, 1, 2, 3))):
            place = chance.randrange(1, len(lines) + 1)
            lines[place : place + chance.randrange(2)] = [chance.choice(_HEADERS)]
        if chance.random() < 0.5:
            lines[0] = b"%s %s HTTP/1.1" % (chance.choice(_METHODS), chance.choice(_PATHS))
    whole = b"\r\n".join((*lines, b"", body))
    if how >= 3:
        whole = _changed(whole, chance)
    return whole * chance.choice((1, 1, 1, 1, 3)) if len(whole) < 20_000 else whole


def _meant(value: Any, chance: random.Random) -> Any:
    """JSON with a value that is another one, lacks, comes twice, or lies deep."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        owner, key = _place(value, chance)
        match chance.randrange(6):
            case 0 if isinstance(owner, dict):
                owner[chance.choice(_KEYS)] = copy.deepcopy(chance.choice(_VALUES))
            case 1:
                del owner[key]
            case 2 if isinstance(owner, list):
                owner.insert(key, copy.deepcopy(owner[key]))
            case 3:
                for _ in range(chance.choice((1, 5, 60, 300))):
                    owner[key] = [owner[key]]
            case _:
                owner[key] = copy.deepcopy(chance.choice(_VALUES))
        if not value:
            break
    return value


def _place(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Somewhere in nested values: what holds it, and where."""
    owner, key = value, None
    while isinstance(owner, dict | list) and owner:
        key = chance.choice(list(owner)) if isinstance(owner, dict) else chance.randrange(len(owner))
        below = owner[key]
        if not isinstance(below, dict | list) or not below or chance.random() < 0.3:
            return owner, key
        owner = below
    return {"x": 1}, "x"


def _damaged(raw: bytes, chance: random.Random) -> bytes:
    found = bytearray(raw)
    for _ in range(chance.choice((1, 2, 8, 40))):
        place = chance.randrange(min(len(found), chance.choice((8, 64, 400, len(found)))))
        found[place] = chance.choice((0, 255, chance.randrange(256)))
    if chance.random() < 0.3:
        del found[chance.randrange(len(found)) :]
    return bytes(found)


def _changed(message: bytes, chance: random.Random) -> bytes:
    """Bytes that are others, mostly near the start, where the form of a message is."""
    found = bytearray(message)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(min(len(found), chance.choice((60, 200, 500, len(found)))) or 1)
        match chance.randrange(6):
            case 0:
                found[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del found[place : place + chance.choice((1, 4, 40))]
            case 2:
                found[place:place] = chance.choice(_WORDS)
            case 3:
                word = chance.choice(_WORDS)
                found[place : place + len(word)] = word
            case 4:
                found[place:place] = found[place : place + chance.choice((1, 20, 100))]
            case 5:
                line = found.find(b"\r\n") + 2
                found[line:line] = chance.choice(_WORDS)
        found = found or bytearray(b"\0")
    if chance.random() < 0.1:
        del found[chance.randrange(len(found)) :]
    return bytes(found) if chance.random() < 0.97 else chance.randbytes(chance.randrange(1, 3000))


def sent(port: int, number: int, message: bytes) -> bytes:
    """What comes back until the server ends the connection or says no more; some clients hang up before."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        answer = b""
        with suppress(OSError):  # it has ended the connection
            connection.sendall(message)
            if number % 7 == 6:
                return b""
            if number % 7 == 5:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(_SILENCE)
            while part := connection.recv(1 << 16):
                answer += part
        return answer


class Findings:
    """What is wrong, and how many answers had which status. Several threads tell."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def judge(self, number: int, answer: bytes) -> None:
        """Look at what came back."""
        with self._lock:
            if not answer:
                self.statuses[0] += 1
                return
            if not answer.startswith(b"HTTP/1.") or not answer[9:12].isdigit():
                self.wrong.append(f"message {number}: {answer[:100]!r}")
                return
            status = int(answer[9:12])
            self.statuses[status] += 1
            if status not in STATUSES or b"Traceback" in answer:
                self.wrong.append(f"message {number}: {answer[:300]!r}")
            body = answer.partition(b"\r\n\r\n")[2]
            if status >= 400 and body.startswith(b"{"):
                with suppress(ValueError):
                    if "\n" in json.JSONDecoder().raw_decode(body.decode())[0]["error"]:
                        self.wrong.append(f"message {number}: more than a line: {body[:300]!r}")

    def add(self, words: str) -> None:
        """What is wrong beside answers."""
        with self._lock:
            self.wrong.append(words)


def fuzz(server: Running, first: int, count: int, honest: Callable[[], None], digits: Digits) -> Findings:
    """Send messages from several clients; `honest` asks every hundred of them and raises where its answer is wrong."""
    found = Findings()
    numbers = iter(range(first, first + count))
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                found.judge(number, sent(server.port, number, message_of(number, digits)))
                if number % 100 == 99:
                    honest()
            except (OSError, AssertionError) as error:
                found.add(f"message {number}: {type(error).__name__}: {str(error)[:300]}")

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Send, write a record, say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first message")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the record goes")
    options = parser.parse_args(arguments)
    digits = np.random.default_rng(3).standard_normal((16, 1, 32, 32)).astype(np.float32)
    with Engine(digits_model(), device="cpu", batch=[1, 2, BATCH]) as engine:
        right = engine.run(digits[:1])
    with serving("--batch", str(BATCH), "--workers", "1", "--deadline-s", "5") as server:
        os.nice(_LOWEST)
        request = binary_request(digits[:1], "FP32")

        def honest() -> None:
            np.testing.assert_allclose(scores(server.infer(*request)), right, rtol=1e-5)

        fuzz(server, options.first, 200, honest, digits)  # what it holds is what it holds once all kinds have come
        before, processes = settled(server), usage(server).keys()
        found = fuzz(server, options.first, options.messages, honest, digits)
        honest()
        if usage(server).keys() != processes:
            found.add("a process has died")
        with suppress_into(found):
            require_flat(before, settled(server), rss=64.0)
        server.process.terminate()
        assert server.process.stderr
        told = [line for line in server.process.stderr if not _LIBTIFF.match(line) or "vgg16gpu" in line]
        if told:
            found.add(f"the server wrote: {''.join(told)[:2000]}")
    statuses = dict(sorted(found.statuses.items()))
    if options.output:
        content = {"what": __doc__, "messages": options.messages, "first": options.first}
        write(
            options.output, {**content, "statuses": {str(key): n for key, n in statuses.items()}, "wrong": found.wrong}
        )
    print(f"{options.messages} messages: {statuses}; 0 is no answer")
    print("\n".join(found.wrong) or "nothing found")
    return int(bool(found.wrong))


class suppress_into:  # noqa: N801 - used as a function
    """Turns an AssertionError into a finding."""

    def __init__(self, found: Findings) -> None:
        self._found = found

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, AssertionError):
            self._found.add(f"processes hold more: {str(error)[:300]}")
            return True
        return False


if __name__ == "__main__":
    sys.exit(main())
