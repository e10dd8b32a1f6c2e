"""`infer --devices`: a pool in place of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Self

from vgg16gpu.cluster.pool import EnginePool
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened
from vgg16gpu.devices.picture_decoder import PictureCodec
from vgg16gpu.runtime.answers.folder import Folder
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.engine import Engine


@dataclass(frozen=True)
class SeveralEngines:
    """See `run.Engines`. decode: who decodes, as asked for."""

    pool: EnginePool
    decode: str

    @classmethod
    def built(
        cls, stack: ExitStack, model: Model, opened: Sequence[Opened], decode: str, options: Mapping[str, Any]
    ) -> Self:
        """A pool that `stack` closes."""
        return cls(stack.enter_context(EnginePool(model, devices=opened, **options)), decode)

    @property
    def engine(self) -> Engine:
        """See Engines."""
        return self.pool.engine

    def answers(
        self, folder: Folder, ranking: Ranking, codec: PictureCodec | None
    ) -> AbstractContextManager[AnswerStream]:
        """See Engines."""
        return self.pool.answers(folder, ranking, self.decode if codec else None)

    def shares(self, stream: AnswerStream) -> list[dict[str, Any]]:
        """See Engines."""
        done = {id(feeder.engine): feeder for feeder in stream.feeders}
        told = []
        for engine, share in zip(self.pool.engines, self.pool.shares, strict=True):
            feeder = done[id(engine)]
            told.append({**asdict(share), "images": feeder.images, "batches": feeder.batches})
            told[-1]["seconds"] = feeder.seconds.computing
        return told
