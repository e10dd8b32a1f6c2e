"""All peers of a benchmark: each in a process that lives as long as the benchmark, for every precision and size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from vgg16gpu.bench.measure.timing import LostError
from vgg16gpu.bench.peers.base import PRECISIONS, PeerError, Setting, check_installed
from vgg16gpu.bench.peers.remote import RemotePeer
from vgg16gpu.bench.records.findings import Absent, Remarks


class PeerProcesses:
    """Peers by name. Leaving the `with` block ends their processes; `remarks` hears who is not there, and why."""

    def __init__(self, names: Sequence[str], remarks: Remarks) -> None:
        self._names = names
        self._remarks = remarks
        self._peers: list[RemotePeer] = []
        self._refusals: list[str] = []
        self._has_opened = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self) -> None:
        """Begin to import what is installed, all at once; waits for nothing. Raises PeerError if none of them is."""
        for name in self._names:
            try:
                check_installed(name)
            except PeerError as error:
                self._refuse(Absent(name, str(error)))
                continue
            peer = RemotePeer(name, self._remarks.note)
            self._stack.callback(peer.close)
            peer.start()
            self._peers.append(peer)
        self._check()

    def wait_until_ready(self) -> None:
        """Wait until all are imported: nothing may be timed before. Raises PeerError when none of them can be."""
        for peer in list(self._peers):
            try:
                peer.wait_until_ready()
            except PeerError as error:
                self._peers.remove(peer)
                self._refuse(Absent(peer.name, str(error)))
            except LostError as error:
                self._peers.remove(peer)
                self._remarks.miss(Absent(peer.name, str(error), output=error.output))
        self._check()

    def open(self, setting: Setting) -> list[RemotePeer]:
        """Return the peers that have loaded the model in the precision of the setting.

        Raises PeerError when none does in the first one that is asked for.
        """
        asked = []
        for peer in self._peers:
            if setting.precision in PRECISIONS[peer.name]:
                asked.append(peer)
            else:
                self._remarks.note(f"{peer.name} has no {setting.precision} for a whole model here: not compared in it")
        posted = [peer for peer in asked if self._post(peer, setting)]
        found = [peer for peer in posted if self._opened(peer, setting)]
        if not found and self._refusals and not self._has_opened:
            raise PeerError("; ".join(self._refusals))
        self._has_opened = True
        return found

    def _post(self, peer: RemotePeer, setting: Setting) -> bool:
        try:
            peer.post(setting)
        except LostError as error:
            self._remarks.miss(Absent(peer.name, str(error), setting.precision, output=error.output))
            return False
        return True

    def _opened(self, peer: RemotePeer, setting: Setting) -> bool:
        try:
            for note in peer.opened():
                self._remarks.note(note)
        except PeerError as error:
            self._refuse(Absent(peer.name, str(error), setting.precision))
            return False
        except LostError as error:
            self._remarks.miss(Absent(peer.name, str(error), setting.precision, output=error.output))
            return False
        return True

    def _refuse(self, absent: Absent) -> None:
        self._remarks.miss(absent)
        self._refusals.append(absent.reason)

    def _check(self) -> None:
        """Raise PeerError if only missing peers were asked for."""
        if self._refusals and not self._peers:
            raise PeerError("; ".join(self._refusals))
