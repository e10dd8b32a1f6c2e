"""A process of clients: threads with a connection each, which is kept alive. The standard library speaks HTTP.

Open loop: the arrivals of the process are dealt to whichever connection is free. A latency counts from the time at
which its request was meant to be sent, so that a server that stands still is seen by all who would have come meanwhile.
"""

from __future__ import annotations

import gc
import http.client
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from testbench.server.load import Times, percentiles
from testbench.server.target import Address, Body

READY: Final = "ready"
PATIENCE: Final = 5.0  # seconds behind the last arrival in which late requests are still sent

_SWITCH: Final = 0.0005  # seconds that a thread of Python may compute while others wait


@dataclass(frozen=True)
class Work:
    """What a process does. arrivals: seconds since the start; None for a closed loop of so many seconds.

    cores: that it stays on; all where there are none.
    """

    address: Address
    path: str
    bodies: Sequence[Body]
    connections: int
    seconds: float
    arrivals: Times | None
    cores: tuple[int, ...] = ()


@dataclass
class Tally:
    """What a process found. Times are seconds; lags: between meant and sent, where a connection was free.

    answered: from sent to answered, of the same requests as latencies, in their order. waited: arrivals for which no
    connection was free. busy: the share of its time that the process computed.
    """

    latencies: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    lags: list[float] = field(default_factory=list)
    images: int = 0
    requests: int = 0
    waited: int = 0
    busy: float = 0.0
    last: float = 0.0  # answer, since the start


def main(work: Work, pipe: Connection) -> None:
    """Connect, say READY, wait for the time of the start (CLOCK_MONOTONIC), load the server, send the tally."""
    if work.cores:
        os.sched_setaffinity(0, work.cores)
    sys.setswitchinterval(_SWITCH)
    clients = [_Client(work, number) for number in range(work.connections)]
    for client in clients:
        client.warm_up()
    gc.collect()
    gc.freeze()  # a full collection of all modules' objects would be measured as the server's
    pipe.send(READY)
    start = float(pipe.recv())
    arrivals = None if work.arrivals is None else _Arrivals(work.arrivals)
    threads = [threading.Thread(target=client.run, args=(start, arrivals), daemon=True) for client in clients]
    computed = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally = joined([client.tally for client in clients])
    tally.busy = (time.process_time() - computed) / max(time.monotonic() - start, 1e-9)
    if arrivals:
        unsent = len(arrivals.times) - tally.requests
        tally.requests += unsent
        tally.errors.update({"not sent": unsent} if unsent else {})
    pipe.send(tally)


class _Arrivals:
    """Dealt out one by one."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self._next: Iterator[float] = iter(times.tolist())
        self._lock = threading.Lock()

    def take(self) -> float | None:
        with self._lock:
            return next(self._next, None)


class _Client:
    """One connection."""

    def __init__(self, work: Work, number: int) -> None:
        self._work, self.tally, self._is_first = work, Tally(), number == 0
        self._connection = work.address.connection()
        self._bodies = itertools.cycle([*work.bodies[number % len(work.bodies) :], *work.bodies])

    def warm_up(self) -> None:
        """Connect; the first one also sends a request that does not count."""
        if self._is_first:
            self._ask(time.monotonic(), 0.0)
            self.tally = Tally()
        elif self._connection.sock is None:
            with suppress(OSError):  # then its first request says so
                self._connection.connect()

    def run(self, start: float, arrivals: _Arrivals | None) -> None:
        """Until the time is over, or nobody arrives any more."""
        time.sleep(max(0.0, start - time.monotonic()))
        if arrivals:
            self._run_open(start, arrivals)
        else:
            while (now := time.monotonic()) < start + self._work.seconds:
                self._ask(now, start)
        self._connection.close()

    def _run_open(self, start: float, arrivals: _Arrivals) -> None:
        last = start + self._work.seconds + PATIENCE
        while time.monotonic() < last and (arrival := arrivals.take()) is not None:
            meant = start + arrival
            if (ahead := meant - time.monotonic()) > 0:
                time.sleep(ahead)
                self.tally.lags.append(time.monotonic() - meant)
            else:
                self.tally.waited += 1
            self._ask(meant, start)

    def _ask(self, meant: float, start: float) -> None:
        tally, body, sent = self.tally, next(self._bodies), time.monotonic()
        tally.requests += 1
        try:
            status = self._answered(body)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            tally.errors[type(error).__name__] += 1
            return
        if status != 200:
            tally.errors[str(status)] += 1
            return
        now = time.monotonic()
        tally.latencies.append(now - meant)
        tally.answered.append(now - sent)
        tally.images += body.images
        tally.last = now - start

    def _answered(self, body: Body) -> int:
        """The status of an answer that was read. A server may close a connection that idles: then once more."""
        headers = {**self._work.address.headers, **body.headers}
        is_reused = self._connection.sock is not None
        while True:
            try:
                self._connection.request("POST", self._work.path, body.data, headers)
                reply = self._connection.getresponse()
            except (BrokenPipeError, ConnectionResetError):  # RemoteDisconnected is one of the latter
                if not is_reused:
                    raise
                self._connection.close()
                is_reused = False
            else:
                reply.read()
                return reply.status


def joined(tallies: Sequence[Tally]) -> Tally:
    """All as one; busy is that of the busiest."""
    whole = Tally()
    for each in tallies:
        whole.latencies += each.latencies
        whole.answered += each.answered
        whole.errors += each.errors
        whole.lags += each.lags
        whole.images += each.images
        whole.requests += each.requests
        whole.waited += each.waited
        whole.busy = max(whole.busy, each.busy)
        whole.last = max(whole.last, each.last)
    return whole


def lag(tally: Tally) -> float:
    """Seconds by which 99 % of the requests were sent too late at most, though a connection was free; 0 of none."""
    return percentiles(np.array(tally.lags))["p99"] or 0.0
