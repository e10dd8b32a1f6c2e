"""Features and losses, there and back, while torch's own convolutions, pools, products and ReLUs are forbidden.

A mode of torch's dispatcher sees every operator that torch is asked for. What runs inside an operator of ours it would
not see: so it is entered once more there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import LAYERS, images

FORBIDDEN = re.compile(r"conv|pool|relu|threshold|linear|matmul|mm$|mm_|mv|dot|einsum|attention")
WEIGHTS = dict.fromkeys(LAYERS, 1.0)
SHAPE = (3, 3, 33, 40)


class AskedForError(Exception):
    """torch was asked for an operator that is forbidden."""


class Guard:
    """What torch is asked for within `watched`, by name; AskedForError for what is forbidden."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def watched(self) -> AbstractContextManager[Any]:
        from torch.utils._python_dispatch import TorchDispatchMode

        guard = self

        class Forbidding(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                del types
                name = str(func.overloadpacket)
                guard.seen.append(name)
                if name.startswith("aten.") and FORBIDDEN.search(name):
                    raise AskedForError(name)
                return func(*args, **(kwargs or {}))

        return Forbidding()


def guarded(monkeypatch: pytest.MonkeyPatch) -> Guard:
    """A guard that also sees what `Features` asks for inside its operators, which hide that from others."""
    from vgg16gpu.pytorch import Features

    found = Guard()

    def inside(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            with found.watched():
                return method(*given)

        return run

    for name in ("values", "gradient"):
        monkeypatch.setattr(Features, name, inside(getattr(Features, name)))
    return found


OWN: dict[str, Callable[..., Any]] = {
    "convolution": lambda torch, x: torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3, device=x.device)),
    "max pool": lambda torch, x: torch.nn.functional.max_pool2d(x, 2),
    "average pool": lambda torch, x: torch.nn.functional.avg_pool2d(x, 2),
    "adaptive pool": lambda torch, x: torch.nn.functional.adaptive_avg_pool2d(x, 7),
    "ReLU": lambda torch, x: torch.relu(x),
    "mm": lambda torch, x: torch.mm(x[0, 0], x[0, 0].T),
    "addmm": lambda torch, x: torch.addmm(torch.ones(1, device=x.device), x[0, 0], x[0, 0].T),
    "bmm": lambda torch, x: torch.bmm(x[0], x[0].mT),
    "matmul": lambda torch, x: torch.matmul(x, x.mT),
    "linear": lambda torch, x: torch.nn.functional.linear(x, torch.ones(5, x.shape[-1], device=x.device)),
    "einsum": lambda torch, x: torch.einsum("nchw,ndhw->ncd", x, x),
}


@pytest.mark.parametrize("name", OWN)
def test_torchs_own_are_caught_there_and_back(torch: Any, where: Any, name: str) -> None:
    x, guard = images(torch, *SHAPE).to(where).requires_grad_(), Guard()
    value = OWN[name](torch, x).sum()
    with guard.watched(), pytest.raises(AskedForError):
        OWN[name](torch, x)
    with guard.watched(), pytest.raises(AskedForError):
        value.backward()
    with guard.watched():  # what a loss is made of may be asked for
        (2 * x - x.abs()).square().mean().backward()
    assert "aten.mul" in guard.seen


@pytest.mark.parametrize("name", ["values", "gradient"])
def test_what_an_operator_of_ours_asks_for_is_caught(
    torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Say, a convolution of torch's on the way there, or back."""
    from vgg16gpu.pytorch import Features

    method = getattr(Features, name)

    def convolving(module: Any, x: Any, *more: Any) -> Any:
        torch.nn.functional.conv2d(x.detach(), torch.ones(4, 3, 3, 3))
        return method(module, x, *more)

    monkeypatch.setattr(Features, name, convolving)
    features, guard = Features(model, LAYERS), guarded(monkeypatch)
    with guard.watched(), pytest.raises(AskedForError, match="conv2d"):
        sum(value.sum() for value in features(images(torch, 1, 3, 16, 16).requires_grad_())).backward()
    assert ("vgg16gpu.features_gradient" in guard.seen) == (name == "gradient")
    features.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_features(torch: Any, where: Any, model: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    from vgg16gpu.pytorch import Features

    features, guard = Features(model, LAYERS, precision, batch=2), guarded(monkeypatch)
    x = images(torch, *SHAPE).to(where).requires_grad_()
    for given in (x, x.detach().double().requires_grad_(), x):  # the last time everything is there
        with guard.watched():
            values = features(given)
            (gradient,) = torch.autograd.grad(sum(value.float().square().mean() for value in values), given)
            with torch.no_grad():
                features(given)
        assert bool(gradient.any())
    assert {"vgg16gpu.features", "vgg16gpu.features_gradient", "aten.mean"} <= set(guard.seen)
    features.check()
    features.close()


LOSSES: dict[str, dict[str, Any]] = {
    "squared": {"layers": WEIGHTS},
    "absolute": {"layers": WEIGHTS, "distance": "absolute", "reduction": "sum"},
    "unit": {"layers": WEIGHTS, "distance": "unit", "reduction": "none"},
    "style": {"layers": {"relu2_2": 1.0}, "style": WEIGHTS},  # Gram matrices are products
}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses(torch: Any, where: Any, model: Path, kind: str, precision: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss, guard = PerceptualLoss(model, **LOSSES[kind], precision=precision, batch=2), Guard()
    x, y = images(torch, *SHAPE).to(where).requires_grad_(), -images(torch, *SHAPE).to(where)
    for given in (x, x.detach().double().requires_grad_(), x):
        with guard.watched():
            (gradient,) = torch.autograd.grad(loss(given, y).sum(), given)
            loss(given.detach(), loss.targets(y))
        assert bool(gradient.any())
    assert "aten.mul" in guard.seen  # of the gradient and its slope: the way back was seen
    loss.check()
    loss.close()
