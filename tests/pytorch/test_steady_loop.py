"""A loop that trains on features or losses, there and back: launches, and no copy, wait or allocation beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import LAYERS, images
from tests.pytorch.test_loss_runs import on_a_card
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.zoo.generate import make_vgg

SHAPE = (3, 3, 33, 40)  # in batches of two and one
WARM, STEPS = 6, 20
WEIGHTS = dict.fromkeys(LAYERS, 1.0)
STYLE = {"relu1_2": 5.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pytorch") / "vgg16.onnx"
    make_vgg(path, variant="vgg16", size=48, width=64, hidden=64, classes=10)
    return path


@contextmanager
def no_wait_of_torch(torch: Any) -> Iterator[None]:
    """torch raises where it would wait for the card; not for what was enqueued before."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it does not see everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def counted(device: Device, step: Callable[[], Any], times: int) -> Counters:
    """What so many steps did on the device."""
    before = replace(device.counters)
    for _ in range(times):
        step()
    return device.counters.since(before)


def check(torch: Any, device: Device, step: Callable[[], Any]) -> None:
    first = step()
    for _ in range(WARM):
        step()
    with no_wait_of_torch(torch):
        for _ in range(2):  # torch's allocator may take one more segment, as earlier tests left it
            taken = torch.cuda.memory_reserved()
            done = counted(device, step, STEPS)
            if torch.cuda.memory_reserved() == taken:
                break
        assert torch.cuda.memory_reserved() == taken
    assert replace(done, launches=0) == Counters()
    assert done.launches >= 2 * STEPS  # the way there and the way back, or both at once for each of two batches
    assert torch.equal(step(), first)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_features(torch: Any, model: Path, precision: str, name: str, order: str) -> None:
    from vgg16gpu.pytorch import Features

    torch_with_cuda()
    features = Features(model, LAYERS, precision, batch=2)
    x = images(torch, *SHAPE).cuda().to(getattr(torch, name), memory_format=getattr(torch, order)).requires_grad_()

    def step() -> Any:
        return torch.autograd.grad(sum(value.float().square().mean() for value in features(x)), x)[0]

    step()
    (engine,) = features._engines.values()
    check(torch, engine.device, step)
    features.check()
    features.close()


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [True, False], ids=["targets", "images"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_losses(torch: Any, model: Path, precision: str, name: str, kept: bool) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(model, WEIGHTS, STYLE, precision=precision, batch=2)
    x, y = (sign * images(torch, *SHAPE).cuda().to(getattr(torch, name)) for sign in (1, -1))
    targets = loss.targets(y) if kept else y
    x.requires_grad_()
    check(torch, loss._runs(x.device).engine.device, lambda: torch.autograd.grad(loss(x, targets), x)[0])
    loss.check()
    loss.close()


@pytest.mark.gpu
def test_copies_and_waits_would_be_seen(torch: Any, model: Path) -> None:
    """Of torch's and of ours: a number that goes to the host, an image that comes from there."""
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(model, WEIGHTS, batch=2)
    x, y = images(torch, *SHAPE).cuda(), -images(torch, *SHAPE).cuda()
    targets, engine = loss.targets(y), loss._runs(x.device).engine
    with pytest.raises(RuntimeError, match="synchronizing"):
        check(torch, engine.device, lambda: x * float(loss(x, targets)))
    host = engine.targets(-images(torch, *SHAPE).numpy())
    done = counted(engine.device, lambda: engine.value(images(torch, *SHAPE).numpy(), host), 1)
    assert min(done.copies_in, done.copies_out, done.synchronisations) > 0
    done = counted(engine.device, lambda: engine.value(x, targets), 1)
    assert done.synchronisations > 0
    loss.close()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kept", [True, False], ids=["targets", "images"])
def test_losses_on_the_cpu_in_the_place_of_a_card(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, kept: bool, reduction: str
) -> None:
    """Wherever torch's tensors come to lie."""
    with on_a_card(model, monkeypatch, reduction=reduction, batch=2) as (loss, engine):
        x, y = images(torch, 3, 3, 16, 20).requires_grad_(), -images(torch, 3, 3, 16, 20)
        targets = loss.targets(y) if kept else y

        def step() -> Any:
            return torch.autograd.grad(loss(x, targets).sum(), x)[0]

        for _ in range(2):
            first = step()
        done = counted(engine.device, step, 4)
        assert replace(done, launches=0) == Counters()
        assert done.launches == 4 * counted(engine.device, step, 1).launches > 0
        assert torch.equal(step(), first)
        engine.check()
        assert engine.device.counters.synchronisations > 0
