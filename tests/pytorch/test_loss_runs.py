"""`vgg16gpu.pytorch.loss_runs`, with the CPU's memory in the place of a card's: what torch and engines are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import images
from tests.support.foreign_arrays import STREAM, CpuForeign
from tests.support.torch_here import torch_module, torch_with_cuda
from vgg16gpu.zoo.generate import make_vgg

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
SHAPE = (3, 3, 24, 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pytorch") / "vgg11.onnx"
    make_vgg(path, variant="vgg16", size=32, width=8, hidden=64, classes=10)
    return path


@contextmanager
def on_a_card(model: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A loss whose CPU is a card, and its engine."""
    from vgg16gpu.pytorch import PerceptualLoss, loss_runs

    monkeypatch.setattr(loss_runs, "is_on_host", lambda _: False)
    monkeypatch.setattr(loss_runs, "current_stream", lambda _: STREAM)
    loss = PerceptualLoss(model, LAYERS, **options)
    engine: Any = loss._runs(torch_module().device("cpu")).engine
    engine.device.foreign = CpuForeign(engine.device)
    yield loss, engine
    loss.close()


class Places:
    """`torch.empty` as of an allocator that hands out what came back: the same memory for the same shape."""

    def __init__(self, empty: Any) -> None:
        self._empty = empty
        self._places: dict[str, Any] = {}

    def __call__(self, *shape: Any, **given: Any) -> Any:
        key = str((shape, given))
        self._places.setdefault(key, self._empty(*shape, **given))
        return self._places[key].detach()


def noted(engine: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The arguments of each call of a method from now on."""
    calls: list[Any] = []
    method = getattr(engine, name)

    def noting(*given: Any, **more: Any) -> Any:
        calls.append(given)
        return method(*given, **more)

    monkeypatch.setattr(engine, name, noting)
    return calls


def by_the_host(torch: Any, model: Path, x: Any, y: Any, **options: Any) -> tuple[Any, Any]:
    """The mean of the losses of all images and its gradient, after the engine's of each image."""
    from vgg16gpu import LossEngine

    with LossEngine(model, LAYERS, device="cpu", **options) as engine:
        losses, gradient = engine.value_and_gradient(x.detach().float().numpy(), engine.targets(y.float().numpy()))
    return torch.from_numpy(losses).mean(), torch.from_numpy(gradient) / len(losses)


def test_two_kernels_of_torch_and_no_question_to_the_engine(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One operator gives the value, one the gradient, beside the ones that torch begins with."""
    from torch.utils._python_dispatch import TorchDispatchMode

    asked: list[str] = []

    class Noting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            asked.append(str(func.overloadpacket))
            return func(*args, **(kwargs or {}))

    with on_a_card(model, monkeypatch) as (loss, engine):
        x, y = images(torch, *SHAPE).requires_grad_(), -images(torch, *SHAPE)
        targets = loss.targets(y)
        monkeypatch.setattr(torch, "empty", Places(torch.empty))
        enqueued = noted(engine, monkeypatch, "on_device")

        def step() -> tuple[Any, Any]:
            found = loss(x, targets)
            return found.detach(), torch.autograd.grad(found, x)[0]

        for _ in range(3):
            first = step()
        assert len(enqueued) == 2  # launch by launch, then as one
        with Noting():
            again = step()
        assert len(enqueued) == 2
        moves_nothing = {"aten.detach", "aten.empty", "aten.empty_like"}
        assert [name for name in asked if name not in moves_nothing] == ["aten.sum", "aten.ones_like", "aten.mul"]
        for ours, before, right in zip(again, first, by_the_host(torch, model, x, y), strict=True):
            assert torch.equal(ours, before)
            torch.testing.assert_close(ours, right, rtol=2e-6, atol=1e-9)
        engine.check()


@pytest.mark.parametrize("styled", [False, True])
def test_images_to_compare_with_that_change_are_asked_about_once(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, styled: bool
) -> None:
    """Their targets are other numbers at the same places."""
    with on_a_card(model, monkeypatch, style={"relu2_2": 3.0}) as (loss, engine):
        x, y, style = images(torch, *SHAPE), -images(torch, *SHAPE), images(torch, 1, 3, 16, 16)
        given = (y, style) if styled else (y,)
        kept = loss.targets(*given)
        monkeypatch.setattr(torch, "empty", Places(torch.empty))
        enqueued = noted(engine, monkeypatch, "on_device")
        for factor in (1, 2, 3, 4):
            y.copy_(-factor * x)
            found = loss.targets(*given)
            right = engine.targets(*(array.numpy() for array in given))
            assert all(map(np.array_equal, (target.numpy() for target in found), right))
        assert len(enqueued) == 2 * len(given)  # launch by launch, then as one
        assert len(engine._programs._kept.keys) == len(given)  # the host's programs are these, too
        assert [target.shape for target in kept] == [target.shape for target in found]


def test_other_places_and_a_stream_that_captures_are_asked_anew(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_a_card(model, monkeypatch, reduction="none") as (loss, engine):
        x, y = images(torch, *SHAPE), -images(torch, *SHAPE)
        for given in (x, 2 * x, x, x.double(), x, x[:2], x):
            targets = loss.targets(y[: len(given)])
            for _ in range(4):
                right = engine.value(given.float().numpy(), engine.targets(y[: len(given)].numpy()))
                assert torch.equal(loss(given, targets), torch.from_numpy(right))
        engine.device.foreign.capturing = True
        out = torch.zeros(len(x))
        monkeypatch.setattr(torch, "empty", lambda *_, **__: out)
        for _ in range(2):
            assert torch.equal(loss(x, targets), torch.from_numpy(right))
        engine.device.foreign.capturing = False


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_that_are_kept_keep_no_place_of_a_run(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, reduction: str
) -> None:
    with on_a_card(model, monkeypatch, reduction=reduction) as (loss, engine):
        enqueued = noted(engine, monkeypatch, "on_device")
        y = -images(torch, 1, *SHAPE[1:])
        found = loss(images(torch, 1, *SHAPE[1:]), loss.targets(y))
        *_, (_, _, options) = enqueued
        assert found.data_ptr() not in [place.address for place in options.out]


@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "float32"])
def test_gradients_come_in_the_type_and_order_of_the_images(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, name: str, order: str
) -> None:
    dtype, memory_format = getattr(torch, name), getattr(torch, order)
    with on_a_card(model, monkeypatch) as (loss, _):
        x = images(torch, *SHAPE).to(dtype).contiguous(memory_format=memory_format).requires_grad_()
        y = -images(torch, *SHAPE)
        value = loss(x, y)
        (1024 * value).backward()
        right, slope = by_the_host(torch, model, x, y)
        assert (value.dtype, x.grad.dtype) == (torch.float32, dtype)
        assert x.grad.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(value.detach(), right, rtol=1e-5, atol=0)
        bound = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(name, 1e-6)
        assert np.allclose(x.grad.double(), 1024 * slope.double(), rtol=bound, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_on_a_gpu_a_loop_asks_its_engine_next_to_nothing(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, name: str, order: str
) -> None:
    """torch's allocator hands out the same places, mostly, though somebody keeps losses."""
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(model, LAYERS, precision="bf16")
    start = images(torch, *SHAPE).cuda().to(getattr(torch, name))
    x = start.contiguous(memory_format=getattr(torch, order)).requires_grad_()
    targets = loss.targets(-images(torch, *SHAPE).cuda())
    engine = loss._runs(x.device).engine
    kept: list[Any] = []

    def step() -> Any:
        found = loss(x, targets)
        kept.append(found.detach())
        return torch.autograd.grad(1024 * found, x)[0]

    slope = step()
    for _ in range(8):
        step()
    enqueued = noted(engine, monkeypatch, "on_device")
    for _ in range(20):
        other = step()
    assert len(enqueued) < 5
    loss.check()
    value = kept[0]
    assert all(torch.equal(value, again) for again in kept)
    assert torch.equal(slope, other)
    assert (slope.dtype, slope.stride()) == (x.dtype, x.stride())
    right = engine.value_and_gradient(x.detach(), targets, mean=True)
    np.testing.assert_allclose(float(value), right[0].numpy().sum(), rtol=1e-6)
    gradient = 1024 * right[1].numpy()
    assert np.linalg.norm(slope.double().cpu().numpy() - gradient) <= 2**-7 * np.linalg.norm(gradient)
    loss.close()
