"""Who else can run the model: the peers by name, what they can compute, and how each is opened in its own process."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from vgg16gpu.bench.measure.timing import Contender
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import Error

# The precisions in which each peer runs the whole model on a GPU.
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("fp32", "fp16"),
    "torch": ("fp32", "fp16", "bf16"),
    "jax": ("fp32", "fp16", "bf16", "int8"),
    "tensorrt": ("fp32", "fp16", "bf16"),
}
PEERS = tuple(PRECISIONS)

# "module:class" of each. Imported by whoever asks for them alone: none of them is installed everywhere.
OPENERS: Mapping[str, str] = {
    "onnxruntime": "vgg16gpu.bench.peers.onnxruntime:OnnxruntimePeer",
    "torch": "vgg16gpu.bench.peers.torch:TorchPeer",
    "jax": "vgg16gpu.bench.peers.jax:JaxPeer",
    "tensorrt": "vgg16gpu.bench.peers.tensorrt:TensorrtPeer",
}

_TF32_FROM = (8, 0)  # compute capability of the first cards whose tensor cores take float32, cut to TF32


class PeerError(Error):
    """A peer is not installed, or cannot run this model here: asking again would not help."""


@dataclass(frozen=True)
class Setting:
    """What all contenders run: one model on one device. `threads` is what the cpu device computes with.

    It goes from process to process, so the graph is loaded where it is asked for.
    """

    path: Path
    sample_shape: tuple[int, ...]  # of one input
    kind: str  # "cuda" or "cpu"
    ordinal: int
    threads: int
    precision: str = "fp32"
    compiled: bool = False  # torch.compile too
    tf32: bool = False  # products of TF32 too

    @property
    def graph(self) -> Graph:
        """The model, simplified."""
        return _graph(self.path)


@dataclass(frozen=True)
class RunMethod:
    """One way of a peer to run the model. `make` builds it, and raises what the framework raises."""

    variant: str
    make: Callable[[], Contender]


class Peer(Protocol):
    """A framework that has loaded the model, in the process where it runs."""

    @property
    def notes(self) -> Sequence[str]:
        """Return what is missing from the peer, in a line each."""

    def ways(self, x: Array) -> Sequence[RunMethod]:
        """Return the ways to run the model on the inputs `x`; none is built yet."""

    def release(self) -> None:
        """Free what the last ways have left behind; their contenders are gone."""

    def close(self) -> None:
        """Free the model."""


def has_tf32(kind: str, capability: tuple[int, int], precision: str) -> bool:
    """Return whether float32 may be computed in TF32 there."""
    return kind == "cuda" and precision == "fp32" and capability >= _TF32_FROM


def check_installed(name: str) -> None:
    """Raise PeerError when a peer is not installed; nothing is imported."""
    if importlib.util.find_spec(name) is None:
        raise PeerError(f"{name} is not installed (pip install {name}): not compared")


def open_peer(name: str, setting: Setting) -> Peer:
    """Load the model into a peer in this process. Raises PeerError when it is not here or does not take the model."""
    check_installed(name)
    return opener(name, OPENERS[name])(setting)


def opener(name: str, target: str) -> Callable[[Setting], Peer]:
    """Return the class "module:class" of a peer. Raises PeerError when its framework does not load."""
    module, _, attribute = target.partition(":")
    try:
        found: Callable[[Setting], Peer] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise PeerError(f"{name} is installed and does not load ({error}): not compared") from error
    return found


@lru_cache(maxsize=1)
def _graph(path: Path) -> Graph:
    return Model(path).graph()
