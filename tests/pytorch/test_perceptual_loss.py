"""`vgg16gpu.pytorch.PerceptualLoss` beside the same losses made of torch's operators."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import by_torch, distance, images
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.errors import InputError, ModelError

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5, "relu3_3": 2.0}
STYLE = {"relu1_2": 5.0, "relu3_3": 1.0}
SHAPE = (2, 3, 40, 33)


def gram(value: Any) -> Any:
    flat = value.flatten(2)
    return flat @ flat.transpose(1, 2) / flat[0].numel()


def unit(value: Any) -> Any:
    return value / (1e-8 + (value**2).sum(1, keepdim=True)).sqrt()


def expected(torch: Any, model: Path, x: Any, y: Any, kind: str) -> Any:
    """The mean over images, in the element type of x, by torch's operators."""
    ours, theirs = by_torch(torch, model, x), by_torch(torch, model, y)
    total = 0
    if kind == "style":
        for (name, weight), f, t in zip(LAYERS.items(), ours, theirs, strict=True):
            total += STYLE.get(name, 0) * ((gram(f) - gram(t)) ** 2).mean()
            del weight
        return total
    for weight, f, t in zip(LAYERS.values(), ours, theirs, strict=True):
        if kind == "unit":
            total += weight * ((unit(f) - unit(t)) ** 2).sum(1).mean()
        else:
            total += weight * (abs(f - t) if kind == "absolute" else (f - t) ** 2).mean()
    return total


def test_random_weights_are_told_once_by_the_loss_and_its_engines(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loss = PerceptualLoss(model, {"relu1_1": 1.0})
        loss(images(torch, *SHAPE), images(torch, *SHAPE))
        copy.deepcopy(loss)(images(torch, *SHAPE), images(torch, *SHAPE))
    assert [(each.filename, "has random weights" in str(each.message)) for each in told] == [(__file__, True)]


@pytest.mark.parametrize("kind", ["squared", "absolute", "unit", "style"])
def test_losses_and_gradients_are_torchs(torch: Any, model: Path, kind: Any) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    given: dict[str, Any] = {"style": STYLE} if kind == "style" else {"layers": LAYERS, "distance": kind}
    loss = PerceptualLoss(model, **given)
    x, y = images(torch, *SHAPE).requires_grad_(), -images(torch, *SHAPE)
    exact = x.detach().double().requires_grad_()
    found, right = loss(x, y), expected(torch, model, exact, y.double(), kind)
    assert (found.dtype, found.shape) == (torch.float32, ())
    assert float(found.detach()) == pytest.approx(float(right.detach()), rel=1e-5)
    (3 * found).backward()
    (3 * right).backward()
    assert distance(x.grad, exact.grad) < 2e-5
    with torch.no_grad():
        assert torch.equal(loss(x, y), found.detach())
    loss.close()


def test_reductions_and_slopes_of_single_images(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    x, y = images(torch, *SHAPE), -images(torch, *SHAPE)
    found = {}
    for reduction in ("mean", "sum", "none"):
        loss = PerceptualLoss(model, LAYERS, reduction=reduction)  # type: ignore[arg-type]
        given = x.clone().requires_grad_()
        found[reduction] = loss(given, y), given
        loss.close()
    each, given = found["none"]
    assert each.shape == (2,)
    assert torch.equal(each.sum(), found["sum"][0])
    assert torch.equal(each.mean(), found["mean"][0])
    each.backward(torch.tensor([0.0, 2.0]))
    found["sum"][0].backward()
    assert not given.grad[0].any()
    assert torch.equal(given.grad[1], 2 * found["sum"][1].grad[1])


def test_two_losses_before_one_gradient(torch: Any, model: Path) -> None:
    """What the backward run needs belongs to the call."""
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS)
    y = images(torch, *SHAPE)
    first, second = (-images(torch, *SHAPE)).requires_grad_(), (2 * images(torch, *SHAPE)).requires_grad_()
    alone = first.detach().clone().requires_grad_()
    loss(alone, y).backward()
    one, other = loss(first, y), loss(second, y)
    loss.targets(y)
    one.backward()
    assert torch.equal(first.grad, alone.grad)
    assert second.grad is None
    other.backward()
    assert second.grad.any()
    loss.close()


def test_targets_that_are_kept_and_a_style_of_its_own(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, {"relu2_2": 1.0}, STYLE)
    x, y, style = images(torch, *SHAPE), -images(torch, 1, *SHAPE[1:]), images(torch, 1, 3, 24, 24)
    assert torch.equal(loss(x, loss.targets(y, style)), loss(x, y, style))
    assert not torch.equal(loss(x, y, style), loss(x, y))
    assert "layers relu2_2, style relu1_2, relu3_3, squared, mean" in repr(loss)
    assert not list(loss.parameters())
    loss.close()


def test_other_float_types_get_their_gradients_back(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = images(torch, *SHAPE, dtype=dtype).requires_grad_()
        value = loss(x, images(torch, *SHAPE))
        value.backward()
        assert (value.dtype, x.grad.dtype) == (torch.float32, dtype)
    loss.close()


def test_what_is_wrong_is_said(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    with pytest.raises(ModelError, match="has no value 'nothing'"):
        PerceptualLoss(model, {"nothing": 1.0})
    with pytest.raises(InputError, match="reduction 'middle' is not known; accepted: mean, sum, none"):
        PerceptualLoss(model, LAYERS, reduction="middle")  # type: ignore[arg-type]
    loss = PerceptualLoss(model, LAYERS)
    x, y = images(torch, *SHAPE).requires_grad_(), images(torch, *SHAPE)
    with pytest.raises(InputError, match="a kept target or a style requires a gradient, which goes to x"):
        loss(y, y, x)
    with pytest.raises(InputError, match=r"x is torch.uint8; give floats"):
        loss(torch.zeros(SHAPE, dtype=torch.uint8), y)
    with pytest.raises(InputError, match="no images to compare with"):
        loss(x)
    (gradient,) = torch.autograd.grad(loss(x, y), x, create_graph=True)
    with pytest.raises(InputError, match="a second derivative is asked for"):
        gradient.sum().backward()
    loss.close()


def optimised(torch: Any, loss: Any, start: Any, steps: int) -> float:
    x = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss(x)
        value.backward()
        optimiser.step()
    return float(loss(x.detach()))


def ends_where_torch_does(torch: Any, model: Path, steps: int) -> None:
    """An image is changed until its features are those of another: our loss beside torch's own operators."""
    from vgg16gpu.pytorch import PerceptualLoss

    y = torch.from_numpy(np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32))
    ours = PerceptualLoss(model, LAYERS)
    targets = ours.targets(y)
    start = torch.from_numpy(np.random.default_rng(2).standard_normal(y.shape).astype(np.float32))
    found = optimised(torch, lambda x: ours(x, targets), start, steps)
    right = optimised(torch, lambda x: expected(torch, model, x.double(), y.double(), "squared"), start, steps)
    assert found < 0.5 * float(ours(start, targets))
    assert found == pytest.approx(right, rel=0.01)
    ours.close()


def test_some_steps_of_optimising_an_image(torch: Any, model: Path) -> None:
    ends_where_torch_does(torch, model, 20)


@pytest.mark.slow(reason="300 steps; 20 of them stand for it")
def test_optimising_an_image(torch: Any, model: Path) -> None:
    ends_where_torch_does(torch, model, 300)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["squared", "unit"])
def test_on_a_gpu_the_loss_is_that_of_arrays_on_the_host(torch: Any, model: Path, kind: Any) -> None:
    from vgg16gpu import LossEngine
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    x, y = images(torch, *SHAPE), -images(torch, *SHAPE)
    loss = PerceptualLoss(model, LAYERS, STYLE, distance=kind, precision="fp32", reduction="none")
    given = x.cuda().requires_grad_()
    found = loss(given, y.cuda())
    found.sum().backward()
    with LossEngine(model, LAYERS, STYLE, distance=kind, device="cuda") as engine:
        expected, gradient = engine.value_and_gradient(x.numpy(), engine.targets(y.numpy()))
    assert torch.equal(found.detach().cpu(), torch.from_numpy(expected))
    assert torch.equal(given.grad.cpu(), torch.from_numpy(gradient))
    loss.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_on_a_gpu_nobody_waits_and_a_graph_gives_the_same_bits(torch: Any, model: Path, precision: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(model, LAYERS, STYLE, precision=precision)
    given, y = images(torch, *SHAPE).cuda().requires_grad_(), -images(torch, *SHAPE).cuda()

    def step() -> tuple[Any, Any]:
        found = loss(given, y)
        return found.detach(), torch.autograd.grad(found, given)[0]

    for _ in range(3):
        expected = step()
    (runs,) = loss._engines.values()
    before = replace(runs.engine.device.counters)
    for _ in range(5):
        step()
    done = runs.engine.device.counters.since(before)
    assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, expected))
    with pytest.raises(InputError, match="the images lie on cuda:0, and a target or a style on cpu"):
        loss(given, tuple(t.cpu() for t in loss.targets(y, y)))
    loss.check()
    loss.close()
