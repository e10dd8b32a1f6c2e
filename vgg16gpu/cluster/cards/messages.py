"""What this process and a card's process say to each other, over a pipe. Arrays of inputs lie in shared memory.

Every message belongs to a channel, a number: 0 is building, the others are lanes, folders and counts, each of which a
thread of the card's process serves. A failure is the last word of its channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu import errors
from vgg16gpu.compiler.declared import Declared
from vgg16gpu.errors import DeviceError
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.slots import SampleRow
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.answers.feeding import DeviceSeconds
from vgg16gpu.runtime.plans.opening import Timings

if TYPE_CHECKING:
    from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
    from vgg16gpu.runtime.answers.decoding import DecodedFiles

BUILDING: Final = 0  # the channel

_CLASSES: Final = {kind.__name__: kind for kind in (*vars(errors).values(), TypeError) if isinstance(kind, type)}


@dataclass(frozen=True)
class Build:
    """What to build. path: of the model; None where its bytes come as a memory file. threads: of the CPU device."""

    device: str
    threads: int | None
    path: Path | None
    options: Mapping[str, Any]


@dataclass(frozen=True)
class IsOpen:
    """The device is open."""

    facts: DeviceFacts
    choice: str


@dataclass(frozen=True)
class IsBuilt:
    """The engine is there. programs: without steps, smallest batch first. takes_any: images of any size.

    arithmetic: of its plan.
    """

    programs: tuple[LaunchPlan, ...]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    timings: Timings
    takes_any: bool
    arithmetic: str


@dataclass(frozen=True)
class Failed:
    """An exception of this class was raised. output: of a compiler."""

    kind: str
    message: str
    output: str = ""

    @classmethod
    def of(cls, error: BaseException, device: str) -> Failed:
        """Describe an error of a device's process; one of another package is a fault of that process."""
        for kind in type(error).__mro__:
            if _CLASSES.get(kind.__name__) is kind:
                return cls(kind.__name__, str(error), getattr(error, "output", ""))
        return cls(DeviceError.__name__, f"process of {device}: {type(error).__name__}: {error}")

    def error(self) -> Exception:
        """Return the same exception, in this process."""
        found: Exception = _CLASSES[self.kind](self.message)
        if isinstance(found, errors.KernelError):
            found.output = self.output
        return found


# Requests that one answer ends.


@dataclass(frozen=True)
class BatchesQuery:
    """Which batches `Engine.run` makes of images of this element type and shape? Answered by a list."""

    element_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NoRows(BatchesQuery):
    """What `Engine.run` gives for such images, of which there are none."""


@dataclass(frozen=True)
class Versions:
    """Of what drives the device? Answered by a mapping."""


@dataclass(frozen=True)
class DecoderQuery:
    """What decodes pictures, as asked for? Answered by its name, or None. It is kept for the next folder."""

    wanted: str


# A lane: batches from the room, memory that both share and the card has pinned.


@dataclass(frozen=True)
class OpenLane:
    """Batches of one form come. room_nbytes: of a new room, which comes as a memory file; None: the last one."""

    element_type: str
    sample: tuple[int, ...]
    size: int
    room_nbytes: int | None


@dataclass(frozen=True)
class LaneIsOpen:
    """whole: numbers of the outputs that have no row for each image."""

    whole: tuple[int, ...]


@dataclass(frozen=True)
class RunBatch:
    """Run `count` images, which lie at `offset` of the room, at this built batch size or the smallest that does."""

    offset: int
    count: int
    batch: int | None


@dataclass(frozen=True)
class Receive:
    """The results of the oldest batch, please."""


@dataclass(frozen=True)
class Received:
    """They lie one after the other in memory of the lane's. nbytes: of that, where it is new and comes with this."""

    shapes: tuple[tuple[int, ...], ...]
    nonfinite: npt.NDArray[np.bool_]
    out_of_range: npt.NDArray[np.bool_]
    nbytes: int | None


# Counting, for calibration.


@dataclass(frozen=True)
class OpenCount:
    """Count values of these names. room_nbytes: as of a lane."""

    names: tuple[str, ...]
    room_nbytes: int | None


@dataclass(frozen=True)
class Count:
    """Run images that lie at the start of the room, and count."""

    element_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Counts:
    """All that was counted, please."""


# Files: slots of a ring that is a memory file, and what comes of them.


@dataclass(frozen=True)
class OpenFeed:
    """Slots come. nbytes, count, rows, room_nbytes: of the ring, whose memory file comes with this. decode: by whom."""

    spec: InputSpec
    nbytes: int
    count: int
    rows: int
    room_nbytes: int
    fit: ResizeSpec | None
    decode: str | None


@dataclass(frozen=True)
class FilledSlot:
    """A slot with rows."""

    number: int
    element_type: str
    used: int
    needed: int
    rows: list[SampleRow]


@dataclass(frozen=True)
class FreeSlot:
    """Nobody reads that slot any more."""

    number: int


@dataclass(frozen=True)
class ComputeAll:
    """All that is there is to be computed, as nothing comes before that is answered."""


@dataclass(frozen=True)
class End:
    """Nothing more comes. is_left: and nobody wants what is under way."""

    is_left: bool = False


@dataclass(frozen=True)
class FeedEnded:
    """A folder's end: all that was to be computed is told."""

    seconds: DeviceSeconds
    decoded: DecodedFiles | None
