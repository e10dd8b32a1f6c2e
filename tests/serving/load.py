"""Clients that keep their connections."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter

from tests.serving.running import PATIENCE


class Asking:
    """Threads that ask from `with` on until it ends; `_ask(share)` looks at `_stop`. share: which of them, 0 to 1."""

    def __init__(self, count):
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number / count,)) for number in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a request hangs"


class Clients(Asking):
    """Threads that send the same request again and again, each on a connection that it keeps.

    every: seconds between two requests of a client, None: at once. answered: ids of requests that got 200, by their
    order; ended: how many requests ended how; seconds: of those that got 200; replies: a few of their bodies; refused:
    what those were told that got something else.
    """

    def __init__(self, server, message, raw, count, every=None):
        head = json.dumps(message).encode()
        self._headers = {"Inference-Header-Content-Length": str(len(head))}
        self._body, self._server, self._every = head + raw, server, every
        self.answered: list[str] = []
        self.seconds: list[float] = []
        self.replies: list[tuple[dict, bytes]] = []
        self.ended: Counter = Counter()
        self.refused: set[bytes] = set()
        self._numbers = itertools.count()
        super().__init__(count)

    def _ask(self, share):
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
        began = time.monotonic() + share * (self._every or 0)
        for number in itertools.count():
            if self._every:
                self._stop.wait(began + number * self._every - time.monotonic())
            if self._stop.is_set():
                break
            try:
                self._one(connection)
            except (OSError, http.client.HTTPException) as error:
                self.ended[type(error).__name__] += 1
                connection.close()
                self._stop.wait(0.02)
        connection.close()

    def _one(self, connection):
        name, sent = f"n{next(self._numbers)}", time.monotonic()
        connection.request("POST", "/v2/models/digits/infer", self._body, {**self._headers, "X-Request-Id": name})
        reply = connection.getresponse()
        body = reply.read()
        self.ended[reply.status] += 1
        if reply.status == 200:
            self.answered.append(name)
            self.seconds.append(time.monotonic() - sent)
            if len(self.replies) < 50:
                self.replies.append((dict(reply.getheaders()), body))
        else:
            self.refused.add(body)
