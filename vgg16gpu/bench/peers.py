"""Who else can run the model: the peers by name, what they can compute, and which of them are here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vgg16gpu.bench.timing import Contender
from vgg16gpu.errors import Error
from vgg16gpu.graph import Array, Graph

# The precisions in which each peer runs the whole model on a GPU.
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("fp32", "fp16"),
    "torch": ("fp32", "fp16", "bf16"),
    "jax": ("fp32", "fp16", "bf16", "int8"),
    "tensorrt": ("fp32", "fp16", "bf16"),
}
PEERS = tuple(PRECISIONS)


class PeerError(Error):
    """A peer is not installed, or cannot run this model here."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What all contenders run: one model on one device. `threads` is what the cpu device computes with."""

    path: Path
    graph: Graph  # simplified
    sample_shape: tuple[int, ...]  # of one input
    kind: str  # "cuda" or "cpu"
    ordinal: int
    threads: int
    precision: str = "fp32"
    compiled: bool = False  # torch.compile too


class Peer(Protocol):
    """A framework that has loaded the model."""

    @property
    def notes(self) -> Sequence[str]:
        """What of it is not here, in a line each."""

    def contenders(self, x: Array) -> AbstractContextManager[Sequence[Contender]]:
        """Its ways to run the model on the inputs `x`."""

    def close(self) -> None:
        """Free the model and set back what was changed in the framework."""


def open_peers(names: Sequence[str], setting: Setting) -> tuple[list[Peer], list[str], list[str]]:
    """(peers, remarks, why a peer is missing) of those that know the precision; a remark for each that does not."""
    peers: list[Peer] = []
    notes: list[str] = []
    missing: list[str] = []
    for name in names:
        if setting.precision not in PRECISIONS[name]:
            notes.append(f"{name} has no {setting.precision} for a whole model here: not compared in it")
            continue
        try:
            peer = open_peer(name, setting)
        except PeerError as error:
            missing.append(str(error))
            continue
        peers.append(peer)
        notes += peer.notes
    return peers, notes, missing


def open_peer(name: str, setting: Setting) -> Peer:
    """Load the model into a peer. Raises PeerError when it is not installed or does not take the model."""
    if importlib.util.find_spec(name) is None:
        raise PeerError(f"{name} is not installed (pip install {name}): not compared")
    try:
        return _OPENERS[name](setting)
    except ImportError as error:
        raise PeerError(f"{name} is installed and does not load ({error}): not compared") from error


# Imported by whoever asks for them alone: none of them is installed everywhere.


def _onnxruntime(setting: Setting) -> Peer:
    from vgg16gpu.bench.peer_onnxruntime import OnnxruntimePeer  # noqa: PLC0415

    return OnnxruntimePeer(setting)


def _torch(setting: Setting) -> Peer:
    from vgg16gpu.bench.peer_torch import TorchPeer  # noqa: PLC0415

    return TorchPeer(setting)


def _jax(setting: Setting) -> Peer:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the card, also from us
    from vgg16gpu.bench.peer_jax import JaxPeer  # noqa: PLC0415

    return JaxPeer(setting)


def _tensorrt(setting: Setting) -> Peer:
    from vgg16gpu.bench.peer_tensorrt import TensorrtPeer  # noqa: PLC0415

    return TensorrtPeer(setting)


_OPENERS: Mapping[str, Callable[[Setting], Peer]] = {
    "onnxruntime": _onnxruntime,
    "torch": _torch,
    "jax": _jax,
    "tensorrt": _tensorrt,
}
