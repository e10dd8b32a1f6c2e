"""A file server on the loopback interface that can be told to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CONTENT = hashlib.shake_256(b"vgg").digest(3_000_001)
EXPECTED = {"size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest(), "metadata": {}}


@dataclass
class Server:
    """What the next answers are. Paths: /good, /wrong, /short, /anything-else (404)."""

    base: str = ""
    ranges: bool = True
    lengths: bool = True
    cut_after: list[int] = field(default_factory=list)  # bytes sent by the next answers before they hang up
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range header)
    bodies: dict[str, bytes] = field(
        default_factory=lambda: {
            "/good": CONTENT,
            "/wrong": b"x" * len(CONTENT),
            "/short": b"version https://git-lfs.github.com/spec/v1\n",
            "/long": CONTENT + b"more",
        }
    )

    def url(self, path: str) -> str:
        return self.base + path


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.requests.append((self.path, wanted))
            if self.path == "/redirect":
                self.send_response(302)
                self.send_header("Location", server.url("/good"))
                self.end_headers()
                return
            body = server.bodies.get(self.path)
            if body is None:
                self.send_error(404)
                return
            start = self.start_of(wanted, len(body))
            if start is None:
                self.send_error(416)
                return
            rest = body[start:]
            if server.lengths:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client may have heard enough
                self.wfile.write(rest[: server.cut_after.pop(0)] if server.cut_after else rest)

        def start_of(self, wanted: str | None, total: int) -> int | None:
            if not (wanted and server.ranges):
                self.send_response(200)
                return 0
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= total:
                return None
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            return start

        def log_message(self, *_: object) -> None:
            """Silent."""

    return Handler


@contextlib.contextmanager
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A running server; proxies set in the environment are ignored meanwhile."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(state)) as http:
        state.base = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield state
        http.shutdown()
        thread.join()
