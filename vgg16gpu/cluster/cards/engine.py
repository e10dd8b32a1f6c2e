"""What this process knows of an engine in a card's process, and how it has batches computed there."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgg16gpu.cluster.cards.lanes import CardLane, CountThere, RemoteStream, SharedBatchMemory
from vgg16gpu.cluster.cards.memory import paged
from vgg16gpu.cluster.cards.messages import (
    BatchesQuery,
    DecoderQuery,
    End,
    IsBuilt,
    IsOpen,
    LaneIsOpen,
    NoRows,
    OpenLane,
    Versions,
)
from vgg16gpu.cluster.cards.process import CardProcess
from vgg16gpu.cluster.planning import asked_options
from vgg16gpu.compiler.compile import SizePlanner
from vgg16gpu.compiler.declared import Declared
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.staging import PinnedCopier
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.outputs import Outputs
from vgg16gpu.runtime.plans.opening import form_of
from vgg16gpu.runtime.streaming import DEPTH


@dataclass(frozen=True)
class CardDevice:
    """The device of a card's process, as far as others may ask."""

    facts: DeviceFacts
    process: CardProcess

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the device's software. Raises DeviceError."""
        versions: Mapping[str, str] = _answer(self.process, Versions())
        return versions


@dataclass(frozen=True)
class CardPrograms:
    """The batch sizes of an engine, smallest first: what goes in, and what comes out; and what multiplies."""

    programs: tuple[LaunchPlan, ...]
    arithmetic: str


class CardEngine(Closing):
    """An engine in a process of its own: what it is, under the names that `Engine` has for it, and a lane to it.

    Attributes: `model`, `graph`, `precision`, `allows_nonfinite`, `device`, `device_choice`, `plan`, `timings`, and
    `process`. One lane at a time. What is asked of a process that has ended raises DeviceError, which says how it did.
    """

    def __init__(
        self, model: Model, options: Mapping[str, Any], process: CardProcess, opened: IsOpen, built: IsBuilt
    ) -> None:
        asked = asked_options(options)
        self.model, self.graph, self.precision = model, asked.graph(model), asked.precision
        self.allows_nonfinite = bool(options.get("allow_nonfinite"))
        self.process, self._built = process, built
        self.device, self.device_choice = CardDevice(opened.facts, process), opened.choice
        self.plan, self.timings = CardPrograms(built.programs, built.arithmetic), built.timings
        self._form = form_of(self.graph, self.program, is_any=built.takes_any)
        self._planner = SizePlanner(model, asked, opened.facts) if built.takes_any else None
        self._room, self._stager = SharedBatchMemory(), PinnedCopier()
        self._lock = threading.Lock()

    @property
    def inputs(self) -> tuple[Declared, ...]:
        """See Engine."""
        return self._built.inputs

    @property
    def outputs(self) -> tuple[Declared, ...]:
        """See Engine."""
        return self._built.outputs

    @property
    def program(self) -> LaunchPlan:
        """The program of the largest batch size, without its steps."""
        return self.plan.programs[-1]

    def checked(self, x: Any) -> Images:
        """Return an input on the host in the order that the kernels read. Raises InputError."""
        images = self._form.checked(x)
        if self._planner:
            try:
                self._planner.shapes(self._form.sides(images.dtype.name, images.shape))
            except ModelError as error:
                raise InputError(f"input '{self.graph.input.name}': {error}") from error
        return images

    def batches(self, images: Images) -> list[tuple[int, int]]:
        """See Engine."""
        found: list[tuple[int, int]] = _answer(self.process, BatchesQuery(images.dtype.name, images.shape))
        return found

    def outputs_of_none(self, images: Images) -> Outputs:
        """Return the outputs of `Engine.run` for `checked` images without rows."""
        outputs: Outputs = _answer(self.process, NoRows(images.dtype.name, images.shape))
        return outputs

    def decoder(self, wanted: str) -> str | None:
        """Return the name of the card's decoder of pictures, as `codec_for` has it; None without one."""
        name: str | None = _answer(self.process, DecoderQuery(wanted))
        return name

    @contextmanager
    def lane(self, element_type: str, sample: Shape, size: int) -> Iterator[CardLane]:
        """See Engine: a way for batches of one form, `DEPTH` of them under way at most."""
        nbytes = paged(size * math.prod(sample) * np.dtype(element_type).itemsize)
        with self._lock:
            channel = self.process.channel()
            there = RemoteStream(channel, self._room, self._stager, nbytes)
            try:
                with self._room.of(DEPTH * nbytes) as (new, descriptor):
                    opened: LaneIsOpen = channel.ask(OpenLane(element_type, sample, size, new), descriptor)
                yield there.lane(element_type, sample, opened.whole, allows_nonfinite=self.allows_nonfinite)
                channel.send(End())
            finally:
                there.close()

    @contextmanager
    def counting(self, names: Sequence[str]) -> Iterator[CountThere]:
        """Yield a counter of histograms of these values over the runs that it is asked for; see `runtime.counting`."""
        channel = self.process.channel()
        try:
            yield CountThere(channel, self._room, self._stager, names)
            channel.send(End())
        finally:
            channel.close()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._stager.close()
        self._room.close()
        self.process.close()


def _answer(process: CardProcess, question: object) -> Any:
    channel = process.channel()
    try:
        return channel.ask(question)
    finally:
        channel.close()
