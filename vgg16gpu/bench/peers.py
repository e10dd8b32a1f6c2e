"""Who else can run the model: the peers by name, and which of them are here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vgg16gpu.bench.timing import Contender
from vgg16gpu.errors import Error
from vgg16gpu.graph import Array, Graph

PEERS = ("onnxruntime", "torch")


class PeerError(Error):
    """A peer is not installed, or cannot run this model here."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What all contenders run: one model on one device. `threads` is what the cpu device computes with."""

    path: Path
    graph: Graph  # simplified
    kind: str  # "cuda" or "cpu"
    ordinal: int
    threads: int


class Peer(Protocol):
    """A framework that has loaded the model."""

    @property
    def notes(self) -> Sequence[str]:
        """What of it is not here, in a line each."""

    def contenders(self, x: Array) -> AbstractContextManager[Sequence[Contender]]:
        """Its ways to run the model on the inputs `x`."""

    def close(self) -> None:
        """Free the model and set back what was changed in the framework."""


def open_peer(name: str, setting: Setting) -> Peer:
    """Load the model into a peer. Raises PeerError when it is not installed or does not take the model."""
    if importlib.util.find_spec(name) is None:
        raise PeerError(f"{name} is not installed (pip install {name}): not compared")
    try:
        return _OPENERS[name](setting)
    except ImportError as error:
        raise PeerError(f"{name} is installed and does not load ({error}): not compared") from error


def _onnxruntime(setting: Setting) -> Peer:
    from vgg16gpu.bench.peer_onnxruntime import OnnxruntimePeer  # noqa: PLC0415 - not installed everywhere

    return OnnxruntimePeer(setting)


def _torch(setting: Setting) -> Peer:
    from vgg16gpu.bench.peer_torch import TorchPeer  # noqa: PLC0415 - not installed everywhere

    return TorchPeer(setting)


_OPENERS: Mapping[str, Callable[[Setting], Peer]] = {"onnxruntime": _onnxruntime, "torch": _torch}
