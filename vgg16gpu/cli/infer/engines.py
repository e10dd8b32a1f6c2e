"""What computes a run of `infer`: one engine, or several that share the files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Answering, Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.plans.opening import Timings

if TYPE_CHECKING:
    from vgg16gpu.devices.picture_decoder import PictureCodec


class Planned(Protocol):
    """A plan, as far as a report tells of it."""

    @property
    def arithmetic(self) -> str:
        """Arithmetic of the products."""


class ReportedEngine(Answering, Protocol):
    """An engine of this process or of another one, as far as a report tells of it."""

    graph: Graph
    device_choice: str
    timings: Timings

    @property
    def plan(self) -> Planned:
        """Plan of the size that ran last."""


class Engines(Protocol):
    """What computes."""

    @property
    def engine(self) -> ReportedEngine:
        """One that works."""

    def run(self, x: Images) -> object:
        """Run a batch, host to host."""

    def answers(
        self, folder: FilePipeline, ranking: Ranking, codec: PictureCodec | None
    ) -> AbstractContextManager[AnswerStream]:
        """Return the answers for the files. codec: the decoder on the first device, if that is in this process."""

    def shares(self, stream: AnswerStream) -> list[dict[str, Any]] | None:
        """Return the work of each device of several, as plain data; None for a single one."""


@dataclass(frozen=True)
class OneEngine:
    """A single one."""

    engine: Engine

    def run(self, x: Images) -> object:
        """See Engines."""
        return self.engine.run(x)

    def answers(
        self, folder: FilePipeline, ranking: Ranking, codec: PictureCodec | None
    ) -> AbstractContextManager[AnswerStream]:
        """See Engines."""
        return folder.answers(self.engine, ranking, codec=codec)

    def shares(self, stream: AnswerStream) -> None:
        """Return None: there is one device."""
