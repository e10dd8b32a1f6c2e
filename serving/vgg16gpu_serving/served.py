"""What a server serves and within which bounds: plain data that its processes hand to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.io.preprocessing import Preprocess


@dataclass(frozen=True)
class Bounds:
    """What a front end takes at most.

    body: bytes of a request; bodies: of all large ones that are under way; pixels: of a picture before it is fitted;
    request_pixels: of all pictures of a request; queue: images in slots; connections; deadline: seconds of a request,
    from its head to its answer, and of reading its head.
    """

    body: int
    bodies: int
    pixels: int
    request_pixels: int
    queue: int
    connections: int
    deadline: float


@dataclass(frozen=True)
class EngineChoice:
    """What a device process builds.

    model: a file. threads: of a device of the CPU. sides: None for a model that fixes its own, or takes rows. fits: how
    the device makes images of pictures; None where front ends do. decodes: whether it decodes their files, too.
    """

    model: str
    device: str
    precision: str
    batch: int | None
    sides: tuple[int, int] | None
    outputs: tuple[str, ...] | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    max_delay: float  # seconds that an image waits at most for others while the device computes
    threads: int | None = None
    fits: Preprocess | None = None
    decodes: bool = False


@dataclass(frozen=True)
class Tensor:
    """An input or output: its name in requests, the shape of one row of it."""

    name: str
    shape: Shape

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Description:
    """What the engine takes and gives, once it is built.

    input: float32 as the model's file has it; sample: (C, H, W) or (F,), as the kernels read it; pixels: (H, W, C) of
    uint8, or None where only floats are taken. batches: the sizes that are built, ascending. room_nbytes: memory on the
    device for pictures that it resizes; 0 where front ends do. decodes: whether it decodes their files, too.
    """

    input: Tensor
    sample: Shape
    pixels: Shape | None
    channels_last: bool
    outputs: tuple[Tensor, ...]
    batches: tuple[int, ...]
    device: str
    room_nbytes: int = 0
    decodes: bool = False

    @property
    def largest(self) -> int:
        """Images of the largest batch, and of a request."""
        return self.batches[-1]


@dataclass(frozen=True)
class Warm:
    """A device process is ready. slowest: seconds of the slowest batch of its warm-up.

    resident_nbytes: memory that the process has; card_nbytes: that is in use on its GPU, by whomever, 0 without one.
    """

    description: Description
    slowest: float
    resident_nbytes: int
    card_nbytes: int


@dataclass(frozen=True)
class Explainable:
    """What can be explained. layers: those with feature maps, (C, H, W); classes: of the model's scores, 0 for none.

    are_probabilities: whether the scores are probabilities, as a softmax gives them.
    """

    layers: tuple[Tensor, ...]
    classes: int
    are_probabilities: bool


@dataclass(frozen=True)
class Served:
    """All that a front end knows. labels: of the classes of the first output, empty where it has none.

    explainable: None for a server without the page. hosts: names that requests may have for this machine beside those
    of the loopback; None where they may have any.
    """

    name: str
    description: Description
    preprocess: Preprocess | None
    labels: Sequence[str]
    bounds: Bounds
    tokens: tuple[bytes, ...]
    explainable: Explainable | None
    hosts: tuple[str, ...] | None = None
