"""Memory over many calls of sizes that come and go: runs, gradients and losses, in this process and on the card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from tests.support.process_memory import resident
from vgg16gpu import Engine, LossEngine
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.base import Device

LAYERS = ("relu1_2", "relu2_1")
SIZES = [(height, width) for height in range(16, 46, 5) for width in range(17, 48, 6)]  # 36 sizes
BOUND = 4_000_000  # bytes on the device for plans: of several sizes, not of all
MEGABYTE = 1 << 20


class Work:
    """The next of run, vjp and value_and_gradient, of 0 to 3 images of another size each time."""

    def __init__(self, model: Model, device: str) -> None:
        self._stack = ExitStack()
        options: dict[str, Any] = {"device": device, "memory": BOUND, "batch": 2}
        self.engine = self._stack.enter_context(Engine(model, outputs=LAYERS, gradient=True, size="any", **options))
        self.losses = self._stack.enter_context(LossEngine(model, dict.fromkeys(LAYERS, 1.0), **options))
        self._random, self._calls = np.random.default_rng(0), 0

    @property
    def device(self) -> Device:
        return self.engine.device

    def close(self) -> None:
        self._stack.close()

    def call(self, times: int) -> None:
        for _ in range(times):
            count, size = self._random.integers(0, 4), SIZES[self._random.integers(len(SIZES))]
            x = self._random.standard_normal((count, 3, *size), np.float32)
            match self._calls % 3:
                case 0:
                    values = self.engine.run(x)
                    assert all(np.isfinite(value).all() for value in values)
                case 1:
                    maps = [(8, *size), (16, size[0] // 2, size[1] // 2)]
                    cotangents = [np.ones((count, *dims), np.float32) for dims in maps]
                    assert self.engine.vjp(x, cotangents).shape == x.shape
                case _:
                    _, gradient = self.losses.value_and_gradient(x, self.losses.targets(-x))
                    assert gradient.shape == x.shape
            self._calls += 1


def on_card(device: Device) -> int:
    """Bytes that are taken there, by anybody, as the driver counts them."""
    assert device.foreign is not None
    return device.foreign.used_nbytes()


def grown(work: Work, times: int) -> tuple[int, int]:
    """Bytes that the last two thirds of so many calls added to this process, and on a GPU there."""
    is_gpu = work.device.facts.kind == "cuda"
    work.call(times // 3)
    host, card = resident(), on_card(work.device) if is_gpu else 0
    work.call(times - times // 3)
    return resident() - host, on_card(work.device) - card if is_gpu else 0


ALONE = pytest.mark.alone(reason="counts the GPU's free memory")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, ALONE])])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def work(whole: Model, where: str) -> Iterator[Work]:
    made = Work(whole, where)
    yield made
    made.close()


def check(work: Work, times: int, host: int, card: int = 0) -> None:
    found = grown(work, times)
    assert found[0] <= host, f"{found[0] / MEGABYTE:.1f} MiB more in this process after {times} calls"
    assert found[1] <= card, f"{found[1] / MEGABYTE:.1f} MiB more on the card after {times} calls"
    assert work.engine.sizes.dropped > times // 20
    assert work.engine.sizes.nbytes <= BOUND


def test_a_hundred_calls(work: Work) -> None:
    check(work, 100, host=12 * MEGABYTE, card=16 * MEGABYTE)


@pytest.mark.timeout(1200)
@pytest.mark.slow(reason="10,000 calls; test_a_hundred_calls stands for it")
def test_ten_thousand_calls(work: Work) -> None:
    check(work, 10_000, host=16 * MEGABYTE, card=16 * MEGABYTE)
