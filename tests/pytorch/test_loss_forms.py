"""Forms of `PerceptualLoss` beside torch's operators in float64: both gradients, masks, single layers, criteria."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import by_torch, distance, images
from tests.pytorch.test_no_operators_of_torch import guarded
from vgg16gpu.errors import InputError

# What torch imports to compile warns of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5, "relu3_3": 2.0}
STYLE = {"relu2_2": 5.0}
SHAPE = (2, 3, 26, 21)
MEAN, STD = (0.4, -0.1, 0.2), (0.3, 0.5, 2.0)
CLOSE = 1e-6


def gram(value: Any, weight: Any) -> Any:
    flat = value.flatten(2)
    return (flat * weight.flatten(2)) @ flat.transpose(1, 2) / flat.shape[1]


def parts(torch: Any, mask: Any, value: Any) -> Any:
    """Return each pixel's part of a mean."""
    mask = torch.nn.functional.adaptive_avg_pool2d(mask, value.shape[2:])
    return mask / mask.sum((2, 3), keepdim=True).clamp(min=1e-30)


def terms(torch: Any, model: Path, x: Any, y: Any, kind: str, mask: Any = None) -> dict[str, Any]:
    """Return the term of each layer, (N,)."""
    mask = torch.ones_like(x[:, :1]) if mask is None else mask
    found = {}
    for (name, weight), f, t in zip(LAYERS.items(), by_torch(torch, model, x), by_torch(torch, model, y), strict=True):
        part = parts(torch, mask, f)
        pixels = (f - t).abs().mean(1, keepdim=True) if kind == "l1" else (f - t).square().mean(1, keepdim=True)
        if kind == "fro":
            found[name] = weight * (f - t).square().sum().sqrt()
        else:
            found[name] = weight * (pixels * part).sum((1, 2, 3))
        if name in STYLE:
            difference = gram(f, part) - gram(t, part)
            if kind == "fro":
                found["style." + name] = STYLE[name] * difference.square().sum().sqrt()
            else:
                difference = difference.abs() if kind == "l1" else difference.square()
                found["style." + name] = STYLE[name] * difference.mean((1, 2))
    return found


def pictures(torch: Any, shape: tuple[int, ...] = SHAPE) -> tuple[Any, Any]:
    x = images(torch, *shape)
    return x, (x.flip(2) + 0.3 * x.flip(3)).contiguous()


def both(torch: Any, compute: Callable[[Any, Any], Any], x: Any, y: Any) -> tuple[Any, Any, Any]:
    """The value, and the gradients to x and to y."""
    given = [each.detach().clone().requires_grad_() for each in (x, y)]
    value = compute(*given)
    return value.detach(), *torch.autograd.grad(value.sum() * 3, given)


def check(found: Any, expected: Any) -> None:
    for ours, right in zip(found, expected, strict=True):
        assert distance(ours, right) < 2 * CLOSE


@pytest.mark.parametrize("rows", [2, 1], ids=["one each", "one for all"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_to_both(torch: Any, model: Path, reduction: Any, rows: int) -> None:
    """By one program for each, also compiled; and to the target alone."""
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, STYLE, reduction=reduction)
    x, y = pictures(torch)
    y = y[:rows]
    found = both(torch, loss, x, y)
    reduce = torch.mean if reduction == "mean" else torch.clone
    exact = both(torch, lambda x, y: reduce(sum(terms(torch, model, x, y, "l2").values())), x.double(), y.double())
    check(found, exact)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for ours, eager in zip(both(torch, compiled, x, y), found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-6, atol=0)
    goal = y.clone().requires_grad_()
    (alone,) = torch.autograd.grad(3 * loss(x, goal).sum(), goal)
    assert torch.equal(alone, found[2])
    loss.close()


def test_second_gradients_are_refused_of_both(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS)
    x, y = (each.requires_grad_() for each in pictures(torch))
    for given in (x, y):
        (gradient,) = torch.autograd.grad(loss(x, y), given, create_graph=True)
        for source in (x, y):  # each gradient depends on both
            with pytest.raises(InputError, match="a second derivative is asked for"):
                torch.autograd.grad(gradient.sum(), source, retain_graph=True)
    loss.close()


def test_style_alone_takes_a_target_of_another_size(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, style=STYLE)
    x, _ = pictures(torch)
    y = images(torch, 2, 3, 24, 31)
    value, to_x, to_y = both(torch, loss, x, y)
    assert (to_x.shape, to_y.shape) == (x.shape, y.shape)
    given = x.clone().requires_grad_()
    for call in (lambda: loss(given, y), lambda: loss(given, style=y), lambda: loss(given, loss.targets(y))):
        same = call()
        torch.testing.assert_close(same.detach(), value, rtol=1e-5, atol=0)
        assert distance(torch.autograd.grad(same * 3, given)[0], to_x.double()) < 2 * CLOSE
    assert distance(both(torch, loss, y, x)[1], to_y.double()) < 2 * CLOSE
    with pytest.raises(InputError, match=r"the target of 'relu2_2' is float32 \(4, 16, 16\); .* or one for all"):
        loss(x, torch.cat([y, y]))
    loss.close()


def test_a_call_with_a_mask_is_recorded(torch: Any, model: Path) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS)
    x, y = pictures(torch)
    mask = torch.ones(1, 1, *SHAPE[2:])
    recorded = make_fx(lambda x, y, mask: loss(x, y, mask=mask))(x, y, mask)
    mask[..., 5:] = 0
    torch.testing.assert_close(recorded(y, 2 * x, mask), loss(y, 2 * x, mask=mask))
    loss.close()


def test_a_gradient_to_the_target_beside_a_style(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss, content = PerceptualLoss(model, LAYERS, STYLE), PerceptualLoss(model, LAYERS)
    x, y = pictures(torch)
    style = images(torch, 1, 3, 24, 24)
    found = both(torch, lambda x, y: loss(x, y, style), x, y)
    torch.testing.assert_close(found[0], loss(x, y, style), rtol=1e-6, atol=0)
    assert distance(found[2], both(torch, content, x, y)[2].double()) < 2 * CLOSE  # the style is not the target's
    loss.close()
    content.close()


def test_layers_apart(torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sum is the loss; each has its gradient, and torch's own convolutions are not asked for."""
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, STYLE, reduction="none", per_layer=True)
    x, y = pictures(torch)
    right = terms(torch, model, x.double(), y.double(), "l2")
    total, each = loss(x, y)
    assert list(each) == [*LAYERS, "style.relu2_2"]
    for name, value in each.items():
        torch.testing.assert_close(value.double(), right[name], rtol=CLOSE, atol=0)
    torch.testing.assert_close(total, sum(each.values()), rtol=CLOSE, atol=0)
    torch.testing.assert_close(loss(x, loss.targets(y))[0], total, rtol=CLOSE, atol=0)
    found = both(torch, lambda x, y: loss(x, y)[1]["relu2_2"], x, y)
    check(found, both(torch, lambda x, y: terms(torch, model, x, y, "l2")["relu2_2"], x.double(), y.double()))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: loss(2 * x, y)[1]["relu2_2"], backend="aot_eager", fullgraph=True)
    expected = both(torch, lambda x, y: loss(2 * x, y)[1]["relu2_2"], x, y)
    for ours, eager in zip(both(torch, compiled, x, y), expected, strict=True):
        torch.testing.assert_close(ours, eager)
    plain = PerceptualLoss(model, LAYERS, per_layer=True)
    guard = guarded(monkeypatch)
    with guard.watched():
        plain(x.requires_grad_(), y)[0].backward()
    assert {"vgg16gpu.features", "vgg16gpu.features_gradient"} <= set(guard.seen)
    for module in (loss, plain):
        module.close()


@pytest.mark.parametrize("criterion", ["l1", "l2"])
def test_masks(torch: Any, model: Path, criterion: Any) -> None:
    """Weighted means; ones are none, and where all is 0 there is no loss and no gradient."""
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, STYLE, criterion=criterion, reduction="none")
    x, y = pictures(torch)
    mask = torch.linspace(0, 1, SHAPE[2] * SHAPE[3]).view(1, 1, *SHAPE[2:]).clone()
    mask[..., :9, :] = 0
    found = both(torch, lambda x, y: loss(x, y, mask=mask), x, y)
    exact = mask.double()
    check(
        found,
        both(
            torch,
            lambda x, y: sum(terms(torch, model, x, y, criterion, exact).values()),
            x.double(),
            y.double(),
        ),
    )
    ones = both(torch, lambda x, y: loss(x, y, mask=torch.ones(2, 1, *SHAPE[2:], dtype=torch.bool)), x, y)
    check(ones, [each.double() for each in both(torch, loss, x, y)])
    each = torch.cat([torch.zeros_like(mask), mask])
    one, to_x, to_y = both(torch, lambda x, y: loss(x, y, mask=each), x, y)
    assert one[0] == 0
    assert not to_x[0].any()
    assert not to_y[0].any()
    torch.testing.assert_close(one[1], found[0][1], rtol=CLOSE, atol=0)
    loss.close()


def test_the_frobenius_norm_is_of_all_images(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, STYLE, criterion="fro")
    x, y = pictures(torch)
    check(
        both(torch, loss, x, y),
        both(torch, lambda x, y: sum(terms(torch, model, x, y, "fro").values()), x.double(), y.double()),
    )
    same = x.clone().requires_grad_()
    assert loss(same, x) == 0
    (gradient,) = torch.autograd.grad(loss(same, x), same)
    assert not gradient.any()
    loss.close()


def test_criteria_are_distances(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    x, y = pictures(torch)
    for criterion, kind in (("l1", "absolute"), ("l2", "squared")):
        one, other = PerceptualLoss(model, LAYERS, criterion=criterion), PerceptualLoss(model, LAYERS, distance=kind)  # type: ignore[arg-type]
        assert torch.equal(one(x, y), other(x, y))
        one.close()
        other.close()


@pytest.mark.parametrize("form", ["program", "layers"])
def test_normalised_inside(torch: Any, model: Path, form: str) -> None:
    """The gradient goes through, also to both and compiled, in the element type of each."""
    from vgg16gpu.pytorch import PerceptualLoss

    options: Any = {"criterion": "fro"} if form == "layers" else {}
    inside = PerceptualLoss(model, LAYERS, mean=MEAN, std=torch.tensor(STD).view(1, 3, 1, 1), **options)
    outside = PerceptualLoss(model, LAYERS, **options)
    x, y = pictures(torch)
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, 3, 1, 1) for each in (MEAN, STD))

    def scaled(x: Any) -> Any:
        return ((x - mean) / std).float()

    exact = both(torch, lambda x, y: outside(scaled(x), scaled(y)), x.double(), y.double())
    torch._dynamo.reset()
    for compute in (torch.compile(inside, backend="aot_eager", fullgraph=True), inside):  # cold first
        check(both(torch, compute, x, y), exact)
        given = x.double().requires_grad_()
        (gradient,) = torch.autograd.grad(3 * compute(given, y), given)
        assert gradient.dtype == torch.float64
        assert distance(gradient, exact[1]) < 2 * CLOSE
    if form == "program":
        assert distance(inside(x, inside.targets(y)), exact[0]) < CLOSE
    for module in (inside, outside):
        module.close()


def test_what_is_wrong_is_said(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    options: list[tuple[dict[str, Any], str]] = [
        ({"criterion": "l3"}, "criterion 'l3' is not known; accepted: l1, l2, fro"),
        ({"criterion": ["l1"]}, r"criterion \['l1'\] is not known; accepted: l1, l2, fro"),
        ({"mean": torch.ones(3, requires_grad=True)}, "mean is .*; give 3 finite numbers"),
        ({"layers": {"relu1_2": torch.ones((), requires_grad=True)}}, "the weight of 'relu1_2' is .*; give a finite"),
        ({"criterion": "l1", "distance": "unit"}, "distance 'unit' and criterion 'l1' are given; give one of them"),
        ({"criterion": "fro", "reduction": "none"}, "'fro' is one norm of all images; leave reduction='none' out"),
        ({"batch": 0}, "batch 0: give a number from 1 to "),
        ({"batch": "4"}, "batch '4': give a number from 1 to "),
        ({"mean": (0.5, 0.5)}, r"mean is \(0.5, 0.5\); give 3 finite numbers"),
        ({"std": (1, 1, 0)}, r"std is \(1, 1, 0\); give a number above 0"),
        ({"std": (1, 1, float("nan"))}, "std is .*; give 3 finite numbers"),
    ]
    for given, message in options:
        with pytest.raises(InputError, match=message):
            PerceptualLoss(model, **{"layers": LAYERS} | given)
    styled = PerceptualLoss(model, LAYERS, STYLE)
    loss, norm = PerceptualLoss(model, LAYERS), PerceptualLoss(model, LAYERS, criterion="fro")
    x, y = pictures(torch)
    mask = torch.ones(1, 1, *SHAPE[2:])
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: loss(x, y[..., :20]), "target's images are 26x20 pixels .height x width., and x has 26x21; resize"),
        (lambda: loss(x, torch.cat([y, y])), "the target has 4 images, and x has 2; give as many, or one for all"),
        (lambda: loss(x, y, mask=mask[0]), r"mask is torch.float32 \(1, 26, 21\); give floats or bool \(2 or 1, 1, 26"),
        (lambda: loss(x, y, mask=1.0), "mask is 1.0; give a tensor"),
        (lambda: loss(x, y, mask=-mask), "mask has numbers below 0, the least -1; give weights of 0 and more"),
        (lambda: loss(x, y, mask=mask / 0), "mask has NaN or numbers beyond float32; give weights of 0 and more"),
        (lambda: loss(x, y, mask=mask * float("nan")), "mask has NaN or numbers beyond float32"),
        (lambda: loss(x, y, mask=mask.double() * 1e300), "mask has NaN or numbers beyond float32"),
        (lambda: loss(x, y, mask=mask.to_sparse()), "mask is a tensor of layout torch.sparse_coo; give a dense one"),
        (lambda: loss(x, y, mask=mask.to(torch.float8_e5m2)), "mask is torch.float8_e5m2 .*; give floats or bool"),
        (lambda: loss(x, y, mask=mask.clone().requires_grad_()), "mask requires a gradient, .*; detach it"),
        (lambda: styled(x, y, torch.cat([y, y]), mask=mask), "style has 4 images, and x has 2; give as many, or one"),
        (lambda: styled(x, styled.targets(y), y), r"kept targets and style images are given; keep both, targets\("),
        (lambda: norm(x, y, mask=mask), "'fro' is a norm of all pixels and takes no mask"),
        (lambda: norm(x, y[..., :20]), "target's images are 26x20 pixels"),
        (
            lambda: norm(x, norm.targets(y[..., :20])),
            r"a target is torch.float32 \(2, 520, 8\); for these images it is",
        ),
        (lambda: norm(x, norm.targets(y)[:2]), "2 targets are given, and 3 are compared"),
        (lambda: norm(x, []), "images to compare with are missing"),
    ]
    for call, message in calls:
        with pytest.raises(InputError, match=message):
            call()
    for module in (loss, norm, styled):
        module.close()


FAULTY = {"below 0": -0.25, "NaN": float("nan"), "infinite": float("inf")}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_masks_where_nobody_waits_make_nan(torch: Any, name: str) -> None:
    """Make NaN, as on a GPU, all of the image's means, Gram matrices and gradients, and none of the other image's."""
    from vgg16gpu.pytorch.layer_terms import _Masks

    mask = torch.ones(2, 1, 16, 16)
    mask[0, 0, 7, 9] = FAULTY[name]
    values = torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 8, 8).requires_grad_()
    masks, whole = _Masks(mask), _Masks(torch.ones(2, 1, 16, 16))
    for found, right in (
        (masks.mean(values[:, :1]), whole.mean(values[:, :1])),
        (masks.gram(values), whole.gram(values)),
        (
            masks.without_empty(masks.gram(values).mean((1, 2)), values),
            whole.without_empty(whole.gram(values).mean((1, 2)), values),
        ),
    ):
        assert found[0].isnan().all()
        assert torch.equal(found[1], right[1])
    (gradient,) = torch.autograd.grad(masks.mean(values[:, :1]).sum(), values)
    assert gradient[0, 0].isnan().all()
    assert not gradient[1].isnan().any()


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_masks_of_recorded_calls_make_nan(torch: Any, model: Path, name: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, reduction="none")
    compiled = torch.compile(lambda x, y, mask: loss(x, y, mask=mask), backend="eager")
    x, y = pictures(torch)
    x.requires_grad_()
    mask = torch.ones(2, 1, *SHAPE[2:])
    right = compiled(x, y, mask)
    mask[0, 0, 3, 4] = FAULTY[name]
    found = compiled(x, y, mask)
    assert found[0].isnan()
    assert found[1] == right[1]
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gradient[0].isnan().any()
    assert not gradient[1].isnan().any()
    torch._dynamo.reset()
