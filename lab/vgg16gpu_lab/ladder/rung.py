"""What a rung of the ladder is: one idea, its kernels, what it should bring, and how to run a network on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.base import Device


@dataclass(frozen=True, eq=False)
class Setting:
    """What every rung runs: a model (its simplified graph) on one image, on a device that is open."""

    model: Model
    graph: Graph
    shape: Shape  # of the input: (1, C, H, W)
    device: Device
    device_name: str  # as `open_device` takes it
    inputs: Array | None = None  # a user's own, (N, C, H, W)

    @property
    def size(self) -> tuple[int, int] | None:
        """The image size, where the model leaves it open."""
        is_open = len(self.shape) == 4 and self.graph.input.shape[2:] != self.shape[2:]
        return (self.shape[2], self.shape[3]) if is_open else None


class Net(Protocol):
    """A network, however it is run."""

    def run(self, x: Array) -> Array:
        """Return the scores (1, classes) of one image (1, C, H, W), from host to host."""

    def close(self) -> None:
        """Free everything."""


class Running(Net, Protocol):
    """A network on a rung's kernels."""

    def device_seconds(self, repeats: int) -> list[float] | None:
        """Return seconds on the device of each of `repeats` runs; None where much of the work is the host's."""


@dataclass(frozen=True)
class Rung:
    """A step of the ladder."""

    letter: str
    name: str
    idea: str  # what it does that the one before does not, a line
    source: str  # the kernel file that is new or changed, in kernels/
    predicted: float | None  # gain over the rung before on an H200, before it was measured; None for the first
    reason: str  # for that number
    open: Callable[[Setting], Running]
    precision: str = "fp32"
    lacks: Callable[[Device], str] = lambda device: ""  # noqa: ARG005 - why a device cannot have it, "" if it can
    published_ms: float | None = None  # what the report had for it, on its own card, at 244x244
    note: str = ""
