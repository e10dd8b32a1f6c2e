"""Memory over many steps of features and losses, there and back, of more sizes than there is room for plans of.

What Python and numpy hold is counted to some kilobytes, so that a few hundred steps tell what ten thousand would lose;
what else this process has, and the card, by the megabyte.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import images
from tests.pytorch.test_loss_runs import on_a_card
from tests.support.process_memory import resident
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.devices.base import Device

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
SHAPES = [(1 + i % 3, 3, 16 + 5 * (i % 3), 17 + 6 * (i % 4)) for i in range(12)]
BOUND = {"cpu": 600_000, "cuda": 3_000_000}  # bytes for plans: of some of these sizes; a card's maps are padded
FEW, MANY = 6, 210  # rounds of all sizes: some dozen steps, and five thousand of features and losses together
KILOBYTE, MEGABYTE = 1 << 10, 1 << 20

Step = Callable[[tuple[int, ...]], None]


def step_of(torch: Any, module: Any, where: str = "cpu") -> Step:
    """There and back, of images of a shape."""
    from vgg16gpu.pytorch import Features

    def step(shape: tuple[int, ...]) -> None:
        x = images(torch, *shape).to(where).requires_grad_()
        if isinstance(module, Features):
            value = sum(value.float().square().mean() for value in module(x))
        else:
            value = module(x, -x.detach())
        assert torch.autograd.grad(value, x)[0].shape == x.shape

    return step


def grown(step: Step, rounds: int, measure: Callable[[], int]) -> int:
    """What the last two thirds of so many rounds of all sizes added."""
    for number in range(rounds):
        if number == rounds // 3:
            before = measure()
        for shape in SHAPES:
            step(shape)
    return measure() - before


# ---- What Python and numpy hold


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Counts bytes that have been asked for within and not been given back."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()


def check_traced(step: Step) -> None:
    step(SHAPES[0])  # what torch imports for it is many times as much, and slow to trace
    with traced() as held:
        found = grown(step, FEW, held)
    a_step = found / (len(SHAPES) * FEW * 2 // 3)
    assert a_step < KILOBYTE / 2, f"{a_step / KILOBYTE:.2f} KiB more for each step"


def test_features(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import Features

    features = Features(model, tuple(LAYERS), batch=2, memory=BOUND["cpu"])
    check_traced(step_of(torch, features))
    sizes = features._engine(torch.device("cpu")).sizes
    assert sizes.dropped > len(SHAPES)
    assert sizes.nbytes <= BOUND["cpu"]
    features.close()


def test_losses(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, batch=2, memory=BOUND["cpu"])
    check_traced(step_of(torch, loss))
    assert loss._runs(torch.device("cpu")).engine.nbytes <= BOUND["cpu"]
    loss.close()


def test_losses_on_the_cpu_in_the_place_of_a_card(torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of calls, by the places of their tensors, stays as much as it is."""
    from vgg16gpu.pytorch import loss_runs

    monkeypatch.setattr(loss_runs, "_KEPT", len(SHAPES))  # full before it is measured
    with on_a_card(model, monkeypatch, batch=2, memory=BOUND["cpu"]) as (loss, engine):
        check_traced(step_of(torch, loss))
        assert engine.nbytes <= BOUND["cpu"]
        engine.check()


def test_a_kilobyte_a_step_would_be_seen(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss, lost = PerceptualLoss(model, LAYERS, batch=2, memory=BOUND["cpu"]), list[Any]()
    step = step_of(torch, loss)

    def losing(shape: tuple[int, ...]) -> None:
        step(shape)
        lost.append(bytes(KILOBYTE))

    with pytest.raises(AssertionError, match=r"1\.\d\d KiB more for each step"):
        check_traced(losing)
    loss.close()


# ---- What this process has, and what is taken of the card


def taken(torch: Any, device: Device) -> int:
    """Bytes of the card that somebody has and torch has not: nobody else may run there."""
    foreign: Any = device.foreign
    torch.cuda.synchronize()
    return int(foreign.used_nbytes() - torch.cuda.memory_reserved())


def opened(torch: Any, model: Path, name: str, where: str) -> tuple[Any, Any]:
    """A module and its engine."""
    from vgg16gpu.pytorch import Features, PerceptualLoss

    device = torch.empty(0, device=where).device  # as tensors have it, with a number
    if name == "features":
        features = Features(model, tuple(LAYERS), precision="fp32", batch=2, memory=BOUND[where])
        return features, features._engine(device)
    loss = PerceptualLoss(model, LAYERS, precision="fp32", batch=2, memory=BOUND[where])
    return loss, loss._runs(device).engine


def check(torch: Any, model: Path, name: str, where: str, rounds: int, lost: int = 0) -> None:
    """lost: bytes of the device that each step takes and does not give back."""
    module, engine = opened(torch, model, name, where)
    plain, device = step_of(torch, module, where), engine.device
    before: list[int] = []

    def step(shape: tuple[int, ...]) -> None:
        plain(shape)
        if lost:
            device.allocate(lost)

    def measure() -> int:
        before.append(taken(torch, device) if device.facts.kind == "cuda" else 0)
        return resident()

    with closing(module):
        found = grown(step, rounds, measure)
        assert found <= 32 * MEGABYTE, f"{found / MEGABYTE:.1f} MiB more in this process"
        there = before[1] - before[0]
        assert there <= 16 * MEGABYTE, f"{there / MEGABYTE:.1f} MiB more on the card"
        if name == "features":
            assert engine.sizes.dropped > len(SHAPES)
        assert (engine.sizes if name == "features" else engine).nbytes <= BOUND[where]
        module.check()


@pytest.mark.alone(reason="counts the GPU's free memory")
@pytest.mark.gpu
@pytest.mark.slow(reason="2,520 steps each; test_some_steps_on_a_gpu stands for it")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["features", "loss"])
def test_thousands_of_steps_on_a_gpu(torch: Any, model: Path, name: str) -> None:
    torch_with_cuda()
    check(torch, model, name, "cuda", MANY)


@pytest.mark.alone(reason="counts the GPU's free memory")
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["features", "loss"])
def test_some_steps_on_a_gpu(torch: Any, model: Path, name: str) -> None:
    torch_with_cuda()
    check(torch, model, name, "cuda", 2 * FEW)


@pytest.mark.alone(reason="counts the GPU's free memory")
@pytest.mark.gpu
def test_a_megabyte_a_step_on_a_gpu_would_be_seen(torch: Any, model: Path) -> None:
    """Of so few steps; of thousands ten kilobytes a step."""
    torch_with_cuda()
    with pytest.raises(AssertionError, match="MiB more on the card"):
        check(torch, model, "loss", "cuda", FEW, lost=MEGABYTE)
