"""The process of one peer: imports the framework, then does what it is asked, one thing at a time, and else sleeps.

`python -m vgg16gpu.bench.peers.worker DESCRIPTOR NAME MODULE:CLASS`, started by process.py; it ends when the other
end of the connection is closed.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from vgg16gpu.bench.measure.timing import Contender
from vgg16gpu.bench.peers.base import Peer, PeerError, RunMethod, Setting, opener
from vgg16gpu.bench.peers.messages import (
    READY,
    Built,
    Contend,
    Fault,
    Measure,
    Open,
    PeerRefusal,
    PeerReply,
    Release,
    Reply,
    Request,
    Scores,
)
from vgg16gpu.compiler.graph.ops import Array


class PeerWorker:
    """A peer, and the contenders of the batch that is being measured."""

    def __init__(self, opener: Callable[[Setting], Peer]) -> None:
        self._opener = opener
        self._peer: Peer | None = None
        self._contenders: dict[int, Contender] = {}

    def do(self, request: Request) -> Any:
        """Return the answer to a request. Raises PeerError, or whatever the framework raises."""
        match request:
            case Open():
                return self._open(request.setting)
            case Contend():
                return self._contend(request.x, request.order)
            case Scores():
                return np.asarray(self._contenders[request.number].scores())
            case Measure():
                return self._contenders[request.number].measure(request.method, request.runs)
            case Release():
                return self._release()

    def _open(self, setting: Setting) -> tuple[str, ...]:
        self._release()
        if self._peer is not None:
            self._peer.close()
        self._peer = self._opener(setting)
        return tuple(self._peer.notes)

    def _contend(self, x: Array, order: Sequence[int]) -> list[Built]:
        self._release()
        assert self._peer is not None  # opened first
        ways = self._peer.ways(x)
        return [self._build(number, ways[number]) for number in order or range(len(ways))]

    def _build(self, number: int, way: RunMethod) -> Built:
        try:
            made = way.make()
        except Exception as error:  # a framework raises what it likes, out of memory for one
            traceback.print_exc()
            refused = isinstance(error, PeerError)
            return Built(number, way.variant, reason=str(error) if refused else describe(error), refused=refused)
        self._contenders[number] = made
        return Built(number, made.variant, made.name, tuple(made.methods), made.unchecked, made.tf32)

    def _release(self) -> None:
        self._contenders.clear()
        gc.collect()  # a contender may hold gigabytes of the device in a cycle
        if self._peer is not None:
            self._peer.release()


def describe(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def reply_to(do: Callable[[], Any]) -> Reply:
    """Run `do`; wrap its result or error. The traceback of a fault goes to stderr, which the other process keeps."""
    try:
        return PeerReply(do())
    except PeerError as error:
        return PeerRefusal(str(error))
    except Exception as error:
        traceback.print_exc()
        return Fault(describe(error))


def serve(connection: Connection, name: str, target: str) -> None:
    """Import the peer, say so, and answer until the other end is closed."""
    found: list[Callable[[Setting], Peer]] = []
    greeting = reply_to(lambda: found.append(opener(name, target)))
    connection.send(greeting if not found else READY)
    if not found:
        return
    worker = PeerWorker(found[0])
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(reply_to(lambda request=request: worker.do(request)))  # type: ignore[misc]
        del request  # an input may be large


def main(arguments: Sequence[str]) -> None:
    """Serve on the connection of this descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ours ends this process
    descriptor, name, target = arguments
    with Connection(int(descriptor)) as connection, suppress(BrokenPipeError, ConnectionResetError):
        serve(connection, name, target)


if __name__ == "__main__":
    main(sys.argv[1:])
