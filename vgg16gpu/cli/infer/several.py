"""`infer --devices`: a pool in place of an engine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from vgg16gpu.cluster.building import PoolEngine
from vgg16gpu.cluster.pool import EnginePool
from vgg16gpu.devices.picture_decoder import PictureCodec
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream
from vgg16gpu.runtime.arrays import Images


@dataclass(frozen=True)
class SeveralEngines:
    """See `engines.Engines`. decode: who decodes on the devices, as asked for; None: nobody."""

    pool: EnginePool
    decode: str | None

    @property
    def decoder(self) -> str | None:
        """The name of what decodes on the cards, where they have processes; None where nothing does."""
        return self.pool.decoder(self.decode) if self.decode else None

    @property
    def engine(self) -> PoolEngine:
        """See Engines."""
        return self.pool.engine

    def run(self, x: Images) -> object:
        """See Engines."""
        return self.pool.run(x)

    def answers(
        self, folder: FilePipeline, ranking: Ranking, codec: PictureCodec | None
    ) -> AbstractContextManager[AnswerStream]:
        """See Engines."""
        return self.pool.answers(folder, ranking, self.decode if codec or self.pool.has_processes else None)

    def shares(self, stream: AnswerStream) -> list[dict[str, Any]]:
        """See Engines."""
        done = {id(feeder.engine): feeder for feeder in stream.feeders}
        told = []
        for engine, share in zip(self.pool.engines, self.pool.shares, strict=True):
            told.append(asdict(share))
            if feeder := done.get(id(engine)):  # else it was taken out before
                told[-1] |= {"images": feeder.images, "batches": feeder.batches, "seconds": feeder.seconds.computing}
        return told
