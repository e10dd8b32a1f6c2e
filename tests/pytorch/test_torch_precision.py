"""`precision="torch"`: what torch's convolutions would compute in at the time of a call."""

from __future__ import annotations

import timeit
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import images
from vgg16gpu.errors import ModelError

# What torch imports to compile warns of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
SHAPE = (2, 3, 24, 20)


@pytest.fixture
def settings(torch: Any) -> Iterator[Any]:
    """torch's settings of TF32, which are as they come before and behind a test."""
    yield torch.backends
    torch.backends.fp32_precision = "none"
    torch.backends.cudnn.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True


@pytest.fixture
def card(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device of a GPU that is not there, with tensor cores."""
    from vgg16gpu.pytorch import scaling

    monkeypatch.setattr(scaling, "_fast", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Test")
    return torch.device("cuda:0")


def test_tf32_as_the_user_has_it(settings: Any, card: Any) -> None:
    from vgg16gpu.pytorch.scaling import resolve

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve("torch", card) == "fp16"  # torch's convolutions may use TF32 as torch comes
        settings.cudnn.allow_tf32 = False
        assert resolve("torch", card) == "fp32"
        settings.cudnn.allow_tf32 = True
        assert resolve("torch", card) == "fp16"
        for setting in (settings.cudnn.conv, settings.cudnn, settings):
            for value, expected in (("ieee", "fp32"), ("tf32", "fp16")):
                setting.fp32_precision = value
                assert resolve("torch", card) == expected
            setting.fp32_precision = "none"  # the narrowest that is set counts


def test_older_torch_has_one_setting(torch: Any, card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vgg16gpu.pytorch import scaling

    monkeypatch.setattr(scaling, "_get_fp32_precision", None)
    for allowed, expected in ((True, "fp16"), (False, "fp32")):
        monkeypatch.setattr(torch._C, "_get_cudnn_allow_tf32", lambda allowed=allowed: allowed)
        assert scaling.resolve("torch", card) == expected


def test_autocast_on_either_device(torch: Any, card: Any) -> None:
    from vgg16gpu.pytorch.scaling import resolve, under_autocast

    for dtype, expected in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        with torch.autocast("cpu", dtype):
            assert under_autocast("torch", "cpu") == expected
            assert under_autocast("fp32", "cpu") == "fp32"
            assert under_autocast("torch", "cuda") == "torch"
        assert resolve(expected, card) == expected
        assert resolve(expected, torch.device("cpu")) == "fp32"
    assert under_autocast("torch", "cpu") == "torch"


def test_a_card_without_tensor_cores_says_so_once(torch: Any, card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vgg16gpu.pytorch.scaling import resolve

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    with pytest.warns(UserWarning, match="NVIDIA Test has no tensor cores for fp16, so precision='torch' computes in"):
        assert resolve("torch", card) == "fp32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve("torch", card) == "fp32"


def test_reading_it_takes_no_time(torch: Any, card: Any) -> None:
    from vgg16gpu.pytorch.scaling import resolve, under_autocast

    del torch
    seconds = min(timeit.repeat(lambda: resolve(under_autocast("torch", "cuda"), card), number=1000, repeat=7)) / 1000
    assert seconds < 10e-6  # about 2 us on a quiet machine


@pytest.mark.parametrize("kind", ["loss", "features", "layers"])
def test_autocast_is_seen_compiled_or_not(torch: Any, model: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """There and back, around what is compiled and within it, and the operator's own choice each time it runs.

    A CPU would compute everything in fp32; here it takes what a card would.
    """
    from vgg16gpu.pytorch import Features, PerceptualLoss
    from vgg16gpu.pytorch import scaling as rule

    asked: list[str] = []

    def choose(precision: str, device: Any) -> str:
        del device
        asked.append(precision)
        return "fp32" if precision == "torch" else precision

    monkeypatch.setattr(rule, "resolve", choose)
    layers_apart = kind == "layers"
    module: Any = (
        Features(model, "relu2_2") if kind == "features" else PerceptualLoss(model, LAYERS, per_layer=layers_apart)
    )

    def plain(x: Any) -> Any:
        found = module(2 * x) if kind == "features" else module(2 * x, -x.detach())
        return found[0] if layers_apart else found

    def cast(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(x)

    torch._dynamo.reset()
    around, within = (torch.compile(each, backend="aot_eager", fullgraph=True) for each in (plain, cast))
    for compute in (plain, around):
        for dtype, expected in ((None, "torch"), (torch.bfloat16, "bf16"), (torch.float16, "fp16"), (None, "torch")):
            x, asked[:] = images(torch, *SHAPE).requires_grad_(), []
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                found = compute(x)
            (gradient,) = torch.autograd.grad(found.sum(), x)
            assert set(asked) == {expected}
            assert gradient.any()
    for compute in (cast, within):
        x, asked[:] = images(torch, *SHAPE).requires_grad_(), []
        torch.autograd.grad(compute(x).sum(), x)
        assert set(asked) == {"bf16"}
    engines = module._features._engines if layers_apart else module._engines
    assert {precision for _, precision in engines} == {"fp32", "bf16", "fp16"}
    module.close()


def test_an_explicit_precision_is_kept(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss, x = PerceptualLoss(model, LAYERS, precision="fp16"), images(torch, *SHAPE)
    loss(x, -x)
    with torch.autocast("cpu", torch.bfloat16):
        loss(x, -x)
    assert [precision for _, precision in loss._engines] == ["fp16"]
    loss.close()


def test_precisions_that_are_not_known(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import Features, PerceptualLoss

    del torch
    with pytest.raises(ModelError, match="precision 'tf32' is not supported; accepted: torch, fp32, fp16, bf16"):
        PerceptualLoss(model, LAYERS, precision="tf32")
    with pytest.raises(ModelError, match="precision 'tf32' is not supported; accepted: torch, fp32, fp16, bf16, int8"):
        Features(model, "relu1_2", "tf32")
