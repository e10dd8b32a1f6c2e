"""NaN in a picture, in every form of a loss: NaN in its value and gradient, where torch has it, and in no other's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import by_torch, distance, images
from tests.pytorch.test_steady_loop import no_wait_of_torch
from vgg16gpu.errors import InputError
from vgg16gpu.zoo.generate import make_vgg

# What torch imports to compile warns of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
SHAPE = (2, 3, 40, 40)
FORMS: dict[str, tuple[dict[str, Any], bool]] = {  # options, and whether a mask is given
    "one program": ({}, False),
    "mask": ({}, True),
    "per_layer": ({"per_layer": True}, False),
}


def pair(torch: Any) -> tuple[Any, Any]:
    """Return pictures, one of which has one NaN, and others."""
    x = images(torch, *SHAPE)
    y = x.flip(2).contiguous()
    x[0, 1, 12, 12] = torch.nan
    return x, y


def losses_by_torch(torch: Any, model: Path, kind: str, x: Any, y: Any) -> Any:
    total = 0.0
    features = (by_torch(torch, model, each) for each in (x, y))
    for weight, f, t in zip(LAYERS.values(), *features, strict=False):
        if kind == "unit":
            u, v = (each * (1e-8 + each.square().sum(1, keepdim=True)).rsqrt() for each in (f, t))
            total = total + weight * (u - v).square().sum(1).mean((1, 2))
        elif kind == "absolute":  # torch's slope of abs at NaN is 0; that of a root is NaN
            total = total + weight * (f - t).square().add(1e-30).sqrt().mean((1, 2, 3))
        else:
            total = total + weight * (f - t).square().mean((1, 2, 3))
    return total


def with_gradients(torch: Any, compute: Callable[[Any, Any], Any], x: Any, y: Any) -> tuple[Any, ...]:
    given = [each.detach().clone().requires_grad_() for each in (x, y)]
    found = compute(*given)
    value = found[0] if isinstance(found, tuple) else found
    return value.detach().cpu(), *(each.cpu() for each in torch.autograd.grad(value.sum(), given))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["squared", "absolute", "unit"])
def test_nan_stands_where_torch_has_it(torch: Any, model: Path, where: Any, kind: Any, form: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    options, has_mask = FORMS[form]
    loss = PerceptualLoss(model, LAYERS, distance=kind, precision="fp32", reduction="none", **options)
    x, y = pair(torch)
    mask = torch.ones(1, 1, *SHAPE[2:], device=where) if has_mask else None
    found = with_gradients(torch, lambda x, y: loss(x, y, mask=mask), x.to(where), y.to(where))
    exact = (each.double() for each in (x, y))
    expected = with_gradients(torch, lambda x, y: losses_by_torch(torch, model, kind, x, y), *exact)
    for ours, right in zip(found, expected, strict=True):
        assert torch.equal(ours.isnan(), right.isnan())
        assert right.isnan().any()
        assert not right.isnan().all()
        assert distance(ours.nan_to_num(), right.nan_to_num()) < 1e-5
    loss.check()  # nothing is wrong that a GPU would have noted
    loss.close()


def test_nan_in_other_forms(torch: Any, model: Path, where: Any) -> None:
    """A norm of all pictures is NaN for all of them, also compiled, and a Gram matrix for its own."""
    from vgg16gpu.pytorch import PerceptualLoss

    x, y = (each.to(where) for each in pair(torch))
    norm = PerceptualLoss(model, LAYERS, criterion="fro")
    torch._dynamo.reset()
    for compute in (norm, torch.compile(norm, backend="aot_eager", fullgraph=True)):
        assert all(each.isnan().all() for each in with_gradients(torch, compute, x, y))
    for criterion in ("l1", "l2"):
        styled = PerceptualLoss(model, None, {"relu1_2": 1.0}, criterion=criterion, reduction="none")  # type: ignore[arg-type]
        value, *gradients = with_gradients(torch, styled, x, y)
        assert value.isnan().tolist() == [True, False]
        assert all(each[0].isnan().any() and each[1].isfinite().all() for each in gradients)
        styled.close()
    norm.close()


def test_nan_in_lpips(torch: Any, where: Any, tmp_path: Path) -> None:
    """Values of pictures, of layers and of pixels; without a wait on a GPU."""
    from vgg16gpu.pytorch import LPIPS

    path = tmp_path / "vgg16.onnx"
    make_vgg(path, variant="vgg16", size=32, hidden=8, classes=10)
    lpips = LPIPS(backbone=path, check_backbone=False, verbose=False)
    x, y = (each[..., :16, :16].contiguous().to(where) for each in pair(torch))
    for compute in (lpips, lambda x, y: lpips(x, y, retPerLayer=True)):
        value, *gradients = with_gradients(torch, compute, x, y)
        assert value.flatten().isnan().tolist() == [True, False]
        assert all(each[0].isnan().any() and each[1].isfinite().all() for each in gradients)
    lpips.spatial = True
    maps = lpips(x, y)
    if where.type == "cuda":
        with no_wait_of_torch(torch):
            maps = lpips(x, y)
    assert maps[0].isnan().any()
    assert maps[1].isfinite().all()
    if where.type == "cuda":  # in fp16, where NaN is told as what leaves the range
        with pytest.raises(InputError, match=r"image 0 .* range of float16"):
            lpips.check()
    lpips.check()  # once
    lpips.close()


def test_nan_in_features(torch: Any, model: Path, where: Any) -> None:
    """On either device, where the kernels have read it, and nowhere else."""
    from vgg16gpu.pytorch import Features

    features = Features(model, "relu1_2", precision="fp32")
    x, _ = pair(torch)
    found = features(x.to(where)).cpu()
    assert torch.equal(found.isnan(), by_torch(torch, model, x.double())[0].isnan())
    assert found.isnan().any()
    features.check()
    features.close()
