"""Features and losses on two streams of torch in turn: the bits of one stream, whichever gradient comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import LAYERS, images
from tests.pytorch.test_loss_runs import Places, noted, on_a_card
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.zoo.generate import make_vgg

ROUNDS = 4  # what is enqueued launch by launch, what is then bound as one, and that again
LATE = 20_000_000  # cycles, some 10 ms: whoever does not wait for a stream reads NaN
SHAPES = {"one size": ((2, 3, 40, 33), (2, 3, 40, 33)), "two sizes": ((3, 3, 40, 33), (1, 3, 32, 64))}

Compute = Callable[[Any], Any]  # numbers of images, on which a gradient can be asked for


def a_model(folder: Path, width: int) -> Path:
    path = folder / "vgg16.onnx"
    make_vgg(path, variant="vgg16", size=48, width=width, hidden=64, classes=10)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("narrow"), 8)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Channels of whole tiles, for the kernels of tensor cores."""
    return a_model(tmp_path_factory.mktemp("wide"), 64)


def alone(torch: Any, compute: Compute, x: Any) -> tuple[Any, Any]:
    """Value and gradient on torch's own stream, with nothing beside it."""
    given = x.detach().clone().requires_grad_()
    value = compute(given)
    (gradient,) = torch.autograd.grad(value.sum(), given)
    torch.cuda.synchronize()
    return value.detach(), gradient


def on_streams(
    torch: Any, compute: Compute, sources: Sequence[Any], streams: Sequence[Any], order: Sequence[int]
) -> list[tuple[Any, Any]]:
    """The same, each on a stream of its own on which its images come late; gradients are asked for in this order."""
    late = [torch.full_like(source, torch.nan) for source in sources]
    torch.cuda.synchronize()
    given, values = [], []
    for stream, source, x in zip(streams, sources, late, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE)
            given.append(x.copy_(source).detach().requires_grad_())
            values.append(compute(given[-1]))
    gradients: dict[int, Any] = {}
    for i in order:
        with torch.cuda.stream(streams[i]):
            torch.cuda._sleep(LATE)
            (gradients[i],) = torch.autograd.grad(values[i].sum(), given[i])
    torch.cuda.synchronize()
    return [(value.detach(), gradients[i]) for i, value in enumerate(values)]


def check(torch: Any, compute: Compute, sizes: str, order: Sequence[int]) -> None:
    sources = [sign * images(torch, *shape).cuda() for sign, shape in zip((1, -1), SHAPES[sizes], strict=True)]
    expected = [alone(torch, compute, x) for x in sources]
    streams = [torch.cuda.Stream() for _ in sources]
    for number in range(ROUNDS):
        found = on_streams(torch, compute, sources, streams, order)
        for pair, right in zip(found, expected, strict=True):
            assert all(map(torch.equal, pair, right)), f"round {number}"
    assert not torch.equal(expected[0][1].flatten()[:99], expected[1][1].flatten()[:99])  # they would tell


@pytest.mark.gpu
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first first", "last first"])
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_features(torch: Any, wide: Path, precision: str, sizes: str, order: Sequence[int]) -> None:
    from vgg16gpu.pytorch import Features

    torch_with_cuda()
    features = Features(wide, LAYERS, precision, batch=2)
    # Of torch's kernels only such as give the same bits each time: none that sums up.
    check(torch, lambda x: features(x)[-1].float().square(), sizes, order)
    features.check()
    features.close()


@pytest.mark.gpu
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first first", "last first"])
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kept", [True, False], ids=["targets", "images"])
def test_losses(torch: Any, wide: Path, precision: str, sizes: str, order: Sequence[int], kept: bool) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(wide, dict.fromkeys(LAYERS, 1.0), precision=precision, reduction="none", batch=2)
    goals = {shape: images(torch, *shape).flip(-1).cuda() for shape in SHAPES[sizes]}
    targets: dict[Any, Any] = {shape: loss.targets(y) for shape, y in goals.items()} if kept else goals
    torch.cuda.synchronize()
    check(torch, lambda x: loss(x, targets[tuple(x.shape)]), sizes, order)
    loss.check()
    loss.close()


def test_each_call_waits_for_its_own_stream_and_holds_that_back(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU in the place of a card: what is kept of a call for its places goes to the stream of the next one."""
    from vgg16gpu.pytorch import loss_runs

    x, y = images(torch, 2, 3, 24, 20).requires_grad_(), -images(torch, 2, 3, 24, 20)
    with on_a_card(model, monkeypatch) as (loss, engine):
        targets = loss.targets(y)
        monkeypatch.setattr(torch, "empty", Places(torch.empty))
        enqueued, found = noted(engine, monkeypatch, "on_device"), []
        for stream in (0x77, 0x55) * 4:
            monkeypatch.setattr(loss_runs, "current_stream", lambda _, stream=stream: stream)
            engine.device.foreign.followed.clear()
            engine.device.foreign.led.clear()
            value = loss(x, targets)
            found.append((value.detach(), torch.autograd.grad(value, x)[0]))
            assert {*engine.device.foreign.followed} == {*engine.device.foreign.led} == {stream}
    assert len(enqueued) == 2  # the six others are what was kept
    for pair in found:
        assert all(map(torch.equal, pair, found[0]))
