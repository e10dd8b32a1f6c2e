"""Features and losses under torch's compiler, of images whose sizes change: one graph each time, and the eager bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import LAYERS

# What torch imports to compile warns of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

SHAPES = [(1 + i % 3, 3, 16 + 3 * i, 20 + 2 * (i % 5)) for i in range(12)]  # more than are compiled one by one
WEIGHTS = dict.fromkeys(LAYERS, 1.0)


def check(torch: Any, where: Any, compute: Callable[[Any], Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Value and gradient of each shape, of what the compiler has kept and of what it has not."""
    torch._dynamo.reset()
    compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
    random = np.random.default_rng(0)
    for shape in (*shapes, shapes[0]):
        x = torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(where).requires_grad_()
        found, expected = compiled(x), compute(x)
        assert torch.equal(found, expected), shape
        slopes = [torch.autograd.grad(value.sum(), x)[0] for value in (found, expected)]
        assert torch.equal(*slopes), shape
        assert slopes[0].any()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_features(torch: Any, where: Any, model: Path, precision: str) -> None:
    from vgg16gpu.pytorch import Features

    features = Features(model, LAYERS, precision, batch=2)
    check(torch, where, lambda x: features(2 * x)[1].float().square(), SHAPES)
    features.check()
    features.close()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses(torch: Any, where: Any, model: Path, reduction: Any) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, WEIGHTS, reduction=reduction, batch=2)
    check(torch, where, lambda x: loss(2 * x, -x.detach()), SHAPES)
    loss.check()
    loss.close()
