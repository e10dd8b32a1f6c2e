"""What an honest client of `vgg16gpu serve` gets while others attack the server, on one machine.

    python -m testbench.measure.serving_attack --output FILE [--seconds 30] [--kinds length,elements,pixels]

All traffic stays on the loopback. Eight clients of each kind, at the lowest priority:

| kind | what it sends |
|---|---|
| length | a Content-Length of zeros before a hundred million, and as much of the body as is taken (A8) |
| elements | BYTES of 32 MB in elements of two bytes, of which the shape says four (A10) |
| pixels | GIF files of 7000x7000 pixels: eight, four, or one, and every other client hangs up while it waits (A11) |
| numbers | a million numbers as JSON, nested lists, base64 |
| slow | bodies of 32 MB that stop before their end |

An honest client asks beside them, at the usual priority, for the scores of a tensor and of a picture in turns. The
promises: 99 % of its answers come within half a second, all of its requests are answered, the memory of all processes
grows by no more than the line at the start says, and no process dies. Exit code 1 where one does not hold.
"""

from __future__ import annotations

import argparse
import http.client
import io
import itertools
import json
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from tests.serving.held import usage
from tests.serving.running import Running, serving
from tests.serving.test_serve import SAMPLE, as_bytes
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.devices import open_device

CLIENTS: Final = 8  # of each kind
MOST_MS: Final = 500.0  # 99 % of the honest answers
LOWEST: Final = 19  # of priorities
GIVEN_UP: Final = 0.2  # seconds after which every other client of a kind that asks for work hangs up
PAUSE: Final = 0.02  # seconds between two honest requests
BODY: Final = (32 << 20) - 4096  # bytes
PATH: Final = "/v2/models/digits/infer"
_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass
class Honest:
    """A client that asks for what the server is there for. ms: of each answer; statuses: how many ended how."""

    port: int
    ms: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def ask(self, seconds: float) -> None:
        """One request after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        chance = np.random.default_rng(0)
        bodies = [of_tensor(chance.standard_normal((1, 1, 32, 32)).astype("<f4")), of_pictures(SAMPLE.read_bytes())]
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            head, raw = bodies[number % len(bodies)]
            number += 1
            began = time.monotonic()
            try:
                headers = {"Inference-Header-Content-Length": str(len(head))}
                connection.request("POST", PATH, head + raw, headers)
                reply = connection.getresponse()
                reply.read()
                self.statuses[str(reply.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.statuses[type(error).__name__] += 1
                connection.close()
            self.ms.append(1e3 * (time.monotonic() - began))
            time.sleep(PAUSE)
        connection.close()


def of_tensor(rows: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    """The head and the binary data of a request."""
    return _head("FP32", rows.shape, rows.nbytes), rows.tobytes()


def of_pictures(*pictures: bytes) -> tuple[bytes, bytes]:
    """The same for encoded pictures."""
    raw = as_bytes(*pictures)
    return _head("BYTES", (len(pictures),), len(raw)), raw


def _head(name: str, shape: Sequence[int], nbytes: int, **others: object) -> bytes:
    parameters = {"binary_data_size": nbytes} if nbytes else {}
    tensor = {"name": "input", "datatype": name, "shape": list(shape), "parameters": parameters, **others}
    return json.dumps({"inputs": [tensor]}).encode()


def gif() -> bytes:
    """Few bytes, and 49 million pixels."""
    written = io.BytesIO()
    Image.new("P", (7000, 7000)).save(written, "GIF")
    return written.getvalue()


def _message(head: bytes, raw: bytes, length: bytes | None = None) -> bytes:
    whole = length or b"%d" % (len(head) + len(raw))
    lines = [f"POST {PATH} HTTP/1.1".encode(), b"Host: localhost", b"Content-Length: " + whole]
    if raw:
        lines.append(b"Inference-Header-Content-Length: %d" % len(head))
    return b"\r\n".join((*lines, b"", head + raw))


def _numbers() -> list[bytes]:
    start = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [8, 1, 32, 32], "data": ['
    return [
        _message(start + b"0.123456789," * 999_900 + b"1]}]}", b""),
        _message(start + b"[]," * 499_900 + b"[]]}]}", b""),
        _message(_head("BYTES", (1,), 0, data=["A" * (BODY // 4 * 3)]), b""),
    ]


def _of_bytes(count: int, raw: bytes) -> bytes:
    return _message(_head("BYTES", (count,), len(raw)), raw)


KINDS: Final[dict[str, Callable[[], list[bytes]]]] = {
    "length": lambda: [_message(b"", b"", b"000000000000000000100000000") + bytes(100_000_000)],
    "elements": lambda: [_of_bytes(4, b"\2\0\0\0ab" * (BODY // 6))],
    "pixels": lambda: [_message(*of_pictures(*[gif()] * count)) for count in (8, 4, 1)],
    "numbers": _numbers,
    "slow": lambda: [_of_bytes(1, bytes(BODY))[:-1]],
}


def attack(kind: str, port: int, seconds: float, together: Any, told: Any) -> None:
    """Eight clients that send what their kind has until the time is over; `told` gets how many requests ended how."""
    os.nice(LOWEST)
    ended: Counter[str] = Counter()
    messages = KINDS[kind]()
    together.wait()
    end = time.monotonic() + seconds
    clients = [partial(_client, messages, port, end, ended, gives_up=bool(i % 2)) for i in range(CLIENTS)]
    threads = [threading.Thread(target=client) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put((kind, dict(ended)))


def _client(messages: Sequence[bytes], port: int, end: float, ended: Counter[str], *, gives_up: bool) -> None:
    for number in itertools.count():
        left = end - time.monotonic()
        if left <= 0:
            return
        patience = GIVEN_UP if gives_up and len(messages) > 1 else left + 1.0
        ended[_sent(port, messages[number % len(messages)], patience)] += 1
        time.sleep(0.01)


def _sent(port: int, message: bytes, patience: float) -> str:
    """How a request ended: its status, or "nothing" where the client gave up or the server closed the connection."""
    answer = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        with suppress(OSError):
            connection.sendall(message)
        answer = connection.recv(4096)
    return answer.split()[1].decode() if answer.startswith(b"HTTP/1.1 ") else "nothing"


def measured(server: Running, kinds: Sequence[str], seconds: float) -> dict[str, Any]:
    """What the honest client gets alone for a tenth of the time, and under attack; what the processes hold."""
    alone = Honest(server.port)
    alone.ask(max(1.0, seconds / 10))
    before = usage(server)
    told, together = _SPAWN.Queue(), _SPAWN.Barrier(len(kinds) + 1)
    attackers = [
        _SPAWN.Process(target=attack, args=(kind, server.port, seconds, together, told), daemon=True) for kind in kinds
    ]
    peak = 0.0
    honest = Honest(server.port)
    asking = threading.Thread(target=partial(honest.ask, seconds + 2.0))
    for attacker in attackers:
        attacker.start()
    together.wait(300)  # their messages are made
    asking.start()
    while asking.is_alive():
        with suppress(OSError):  # a process that ends while it is looked at; `gone` tells of it
            peak = max(peak, sum(each.rss for each in usage(server).values()))
        asking.join(0.25)
    attacks = dict(told.get(timeout=120) for _ in attackers)
    for attacker in attackers:
        attacker.join()
    after = usage(server)
    found = re.search(r"requests at most (\d+) MB", server.line)
    return {
        "alone": _row(alone),
        "under_attack": _row(honest),
        "attacks": attacks,
        "rss_before_mb": round(sum(each.rss for each in before.values()), 1),
        "rss_peak_mb": round(peak, 1),
        "rss_after_mb": round(sum(each.rss for each in after.values()), 1),
        "bound_mb": float(found[1]) if found else 0.0,
        "gone": sorted(before.keys() - after.keys()),
    }


def _row(client: Honest) -> dict[str, Any]:
    p50, p99, most = (round(float(each), 2) for each in np.percentile(client.ms, (50, 99, 100)))
    return {"requests": len(client.ms), "statuses": dict(client.statuses), "p50_ms": p50, "p99_ms": p99, "max_ms": most}


def broken(found: dict[str, Any]) -> list[str]:
    """The promises that do not hold."""
    honest, words = found["under_attack"], []
    if honest["p99_ms"] > MOST_MS:
        words.append(f"1 % of the honest answers took {honest['p99_ms']:g} ms or more, beyond {MOST_MS:g}")
    if set(honest["statuses"]) != {"200"}:
        words.append(f"honest requests ended as {honest['statuses']}")
    grown = found["rss_peak_mb"] - found["rss_before_mb"]
    if grown > found["bound_mb"]:
        words.append(f"memory grew by {grown:.0f} MB, the line at the start says {found['bound_mb']:.0f}")
    if found["gone"]:
        words.append(f"{len(found['gone'])} processes have died")
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, say what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--kinds", default="length,elements,pixels", metavar="NAMES")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="where the record goes")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    opened = open_device("cpu")
    content = {"what": __doc__, "environment": environment(opened.device), "kinds": kinds, "seconds": options.seconds}
    opened.device.close()
    with serving("--no-page", threads=None) as server:
        content |= measured(server, kinds, options.seconds)
    content["broken"] = broken(content)
    write(options.output, content)
    for name in ("alone", "under_attack", "attacks", "rss_before_mb", "rss_peak_mb", "bound_mb"):
        print(f"{name}: {content[name]}")
    print("\n".join(content["broken"]) or "all promises hold")
    return int(bool(content["broken"]))


if __name__ == "__main__":
    sys.exit(main())
