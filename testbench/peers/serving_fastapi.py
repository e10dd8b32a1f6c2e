"""FastAPI and torch with batches, as people write it: what a user would start in place of `vgg16gpu serve`.

`python -m testbench.peers.serving_fastapi ASKED.json`, started by bench/serving/peer.py. One process of uvicorn;
handlers decode in threads, a task gathers what comes within 5 ms, torch computes in a thread of its own: float16,
channels last, cudnn.benchmark on a GPU, float32 on a CPU.
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request

from vgg16gpu.bench.peers.torch_net import module, tensor
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.images import fitted

Waiting: TypeAlias = tuple[Pixels, "asyncio.Future[Array]"]

TOP = 5
DELAY = 0.005  # seconds that a batch waits for more
WARM_UP = 3  # runs of each batch size: cuDNN tries its algorithms in the first


class Network:
    """uint8 (N, H, W, C) to scores, on a device. batch: the largest."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._device = torch.device(asked["device"])
        self._type = torch.float16 if self._device.type == "cuda" else torch.float32
        torch.backends.cudnn.benchmark = True
        self._net = module(Model(asked["model"]).graph(), self._placed)
        preprocess = Preprocess.from_fields(asked["preprocess"])
        self._mean, self._std = (
            255 * torch.tensor(values, device=self._device).view(1, -1, 1, 1)
            for values in (preprocess.unit_mean, preprocess.unit_std)
        )
        channels, height, width = asked["shape"]
        for count in (1, asked["batch"]):
            for _ in range(WARM_UP):
                self(np.zeros((count, height, width, channels), np.uint8))

    def __call__(self, pixels: Pixels) -> Array:
        """(N, classes) float32."""
        with torch.inference_mode():
            x = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2).float()
            x = ((x - self._mean) / self._std).to(self._type).contiguous(memory_format=torch.channels_last)
            scores: Array = self._net(x).float().cpu().numpy()
        return scores

    def _placed(self, array: Array) -> Any:
        made = tensor(array).to(self._device, self._type)
        return made.to(memory_format=torch.channels_last) if array.ndim == 4 else made


class Batcher:
    """Gathers images while the network computes, and then those of DELAY seconds more."""

    def __init__(self, network: Network, largest: int) -> None:
        self._network, self._largest = network, largest
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1)

    async def scores(self, pixels: Pixels) -> Array:
        """Those of one image."""
        future: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        await self._queue.put((pixels, future))
        return await future

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            last = loop.time() + DELAY
            while len(batch) < self._largest and (left := last - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self._queue.get(), left))
                except TimeoutError:
                    break
            rows = np.stack([pixels for pixels, _ in batch])
            for (_, future), scores in zip(
                batch, await loop.run_in_executor(self._thread, self._network, rows), strict=True
            ):
                future.set_result(scores)


def application(asked: dict[str, Any]) -> FastAPI:
    """POST /jpeg takes a picture, /uint8 pixels of the network's size; both give the best classes."""
    app, batcher = FastAPI(), Batcher(Network(asked), asked["batch"])
    channels, height, width = asked["shape"]
    preprocess = Preprocess.from_fields(asked["preprocess"])
    tasks: set[asyncio.Task[None]] = set()

    def decoded(data: bytes) -> Pixels:
        return fitted(data, "picture", channels, height, width, preprocess)

    async def answer(pixels: Pixels) -> dict[str, list[float]]:
        if not tasks:
            tasks.add(asyncio.create_task(batcher.run()))
        scores = await batcher.scores(pixels)
        best = np.argsort(-scores)[:TOP]
        return {"classes": best.tolist(), "scores": scores[best].tolist()}

    async def health() -> dict[str, bool]:
        return {"ready": True}

    async def jpeg(request: Request) -> dict[str, list[float]]:
        return await answer(await asyncio.to_thread(decoded, await request.body()))

    async def pixels(request: Request) -> dict[str, list[float]]:
        return await answer(np.frombuffer(await request.body(), np.uint8).reshape(height, width, channels))

    app.add_api_route("/health", health)
    app.add_api_route("/jpeg", jpeg, methods=["POST"])
    app.add_api_route("/uint8", pixels, methods=["POST"])
    return app


def main(asked: str) -> None:
    """Serve until it is ended."""
    content = json.loads(Path(asked).read_text())
    uvicorn.run(application(content), host="127.0.0.1", port=content["port"], log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
