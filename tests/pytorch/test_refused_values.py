"""Values that the modules and engines cannot take: one line of the family for each; and what works beside them."""

# ruff: noqa: ARG005 - the functions of a table have one form

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import images
from vgg16gpu import Engine, LossEngine, classify
from vgg16gpu.errors import Error, InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch says what of it is old, and what a prototype

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
SHAPE = (2, 3, 32, 32)


class Calls:
    """Each public call that takes a tensor, on the CPU."""

    def __init__(self, model: Path) -> None:
        from vgg16gpu.pytorch import Features, PerceptualLoss

        self.features = Features(model, list(LAYERS), batch=2)
        self.loss = PerceptualLoss(model, LAYERS)
        self.styled = PerceptualLoss(model, LAYERS, {"relu1_2": 1.0})
        names = list(LAYERS)
        self.engine = Engine(model, device="cpu", outputs=names, batch=2, gradient=True, size="any")
        self.loss_engine = LossEngine(model, LAYERS, device="cpu")

    def close(self) -> None:
        for item in (self.features, self.loss, self.styled, self.engine, self.loss_engine):
            item.close()


@pytest.fixture(scope="module")
def calls(torch: Any, model: Path) -> Iterator[Calls]:
    del torch
    found = Calls(model)
    yield found
    found.close()


@pytest.fixture(scope="module")
def x(torch: Any) -> Any:
    return images(torch, *SHAPE)


def fake(torch: Any, device: str) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(SHAPE, device=device)


def picture(*_: Any) -> Any:
    from PIL import Image

    return Image.new("RGB", (32, 32))


TENSORS: dict[str, tuple[Callable[..., Any], str]] = {  # how each is made, and what every call says of it
    "sparse": (lambda torch, x: x.to_sparse(), r"layout torch.sparse_coo; give a dense one: x.to_dense\(\)"),
    "csr": (lambda torch, x: x[0, 0].to_sparse_csr(), "layout torch.sparse_csr; give a dense one"),
    "mkldnn": (lambda torch, x: x.to_mkldnn(), "layout torch._mkldnn; give a dense one"),
    "nested": (lambda torch, x: torch.nested.nested_tensor(list(x)), r"nested tensor; .*torch.stack\(x.unbind\(\)\)"),
    "quantised": (
        lambda torch, x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
        r"torch.quint8; give floats: x.dequantize\(\)",
    ),
    "meta": (lambda torch, x: x.to("meta"), "lies on meta, without numbers; make it on cpu or cuda"),
    "xpu": (lambda torch, x: fake(torch, "xpu"), r"lies on xpu:0, and kernels run on cpu and cuda; .*x.cpu\(\)"),
    "fake": (lambda torch, x: fake(torch, "cpu"), "FakeTensor, whose numbers do not lie in plain memory"),
}

OTHERS: dict[str, tuple[Callable[..., Any], str]] = {  # that modules alone refuse, or refuse with these words
    "numpy": (lambda torch, x: x.numpy(), r"is ndarray of float32 .*; give a torch tensor.*torch.from_numpy\(x\)"),
    "numbers": (lambda torch, x: x[0, 0, :2, :2].tolist(), r"give a torch tensor of floats: torch.tensor\(x\)"),
    "None": (lambda torch, x: None, "None; give a torch tensor|no images to compare with"),
    "scalar": (lambda torch, x: 1.5, "is 1.5; give a torch tensor of floats"),
    "text": (lambda torch, x: "cat.jpg", "is 'cat.jpg'; give a torch tensor of floats"),
    "picture": (picture, "type PIL.Image.Image; give a torch tensor of floats"),
    "dict": (lambda torch, x: {"x": x}, "Tensor of torch.float32 .*; give a torch tensor of floats"),
    "class": (lambda torch, x: type(x), "_TensorMeta; give a torch tensor of floats"),
    "bool": (lambda torch, x: x > 0, r"torch.bool; give floats, .*: x.float\(\)$"),
    "int64": (lambda torch, x: x.long(), r"torch.int64; give floats, .*: x.float\(\)$"),
    "uint8": (lambda torch, x: x.to(torch.uint8), r"torch.uint8; give floats, .*: x.float\(\) / 255"),
    "complex": (lambda torch, x: torch.complex(x, x), r"torch.complex64; give floats, .*: x.real or x.abs\(\)"),
    "0-d": (lambda torch, x: x[0, 0, 0, 0], r"float32 \(\); give .*\(N, 3, H, W\)"),
    "3-d": (lambda torch, x: x[0], r"float32 \(3, 32, 32\); give .*\(N, 3, H, W\)"),
    "5-d": (lambda torch, x: x[None], r"float32 \(1, 2, 3, 32, 32\); give .*\(N, 3, H, W\)"),
    "channels": (lambda torch, x: x[:, :2], r"float32 \(2, 2, 32, 32\); give .*\(N, 3, H, W\)"),
    "NHWC": (lambda torch, x: x.permute(0, 2, 3, 1), r"float32 \(2, 32, 32, 3\); give .*\(N, 3, H, W\)"),
    "no pixels": (lambda torch, x: x[:, :, :0], r"\(2, 3, 0, 32\)|0x32"),
}

MODULES: dict[str, Callable[[Calls, Any, Any], Any]] = {
    "Features": lambda calls, v, x: calls.features(v),
    "loss of x": lambda calls, v, x: calls.loss(v, x),
    "loss to a target": lambda calls, v, x: calls.loss(x, v),
    "style": lambda calls, v, x: calls.styled(x, x, v),
    "targets": lambda calls, v, x: calls.loss.targets(v),
}
ENGINES: dict[str, Callable[[Calls, Any, Any], Any]] = {
    "run": lambda calls, v, x: calls.engine.run(v),
    "stream": lambda calls, v, x: list(calls.engine.stream([v])),
    "vjp": lambda calls, v, x: calls.engine.vjp(v, calls.engine.run(x)),
    "cotangent": lambda calls, v, x: calls.engine.vjp(x, [v, calls.engine.run(x)[1]]),
    "LossEngine.targets": lambda calls, v, x: calls.loss_engine.targets(v),
    "LossEngine.value": lambda calls, v, x: calls.loss_engine.value(v, calls.loss_engine.targets(x)),
    "LossEngine's target": lambda calls, v, x: calls.loss_engine.value(x, [v, v]),
}


def refused(call: Callable[[], Any], words: str) -> None:
    """Check that a call raises one line of the family, which has these words."""
    with pytest.raises(Error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_without_plain_memory(torch: Any, calls: Calls, x: Any, name: str) -> None:
    make, words = TENSORS[name]
    for call in (MODULES | ENGINES).values():
        refused(lambda call=call: call(calls, make(torch, x), x), words)


@pytest.mark.parametrize("name", OTHERS)
def test_what_modules_refuse(torch: Any, calls: Calls, x: Any, name: str) -> None:
    make, words = OTHERS[name]
    for key, call in MODULES.items():
        if not (name == "None" and key == "style") and not (name == "numbers" and key == "loss to a target"):
            refused(lambda call=call: call(calls, make(torch, x), x), words)


@pytest.mark.parametrize("name", ["None", "text", "picture", "bool", "complex", "3-d", "no pixels"])
def test_what_engines_refuse(torch: Any, calls: Calls, x: Any, name: str) -> None:
    for call in ENGINES.values():
        if name != "None" or call is not ENGINES["LossEngine.targets"]:
            refused(lambda call=call: call(calls, OTHERS[name][0](torch, x), x), "give|takes|not possible|use targets")
    refused(lambda: calls.loss_engine.value(x, None), "targets is None; give what targets")
    refused(lambda: calls.engine.run(x.double()), r"float64 .*convert it with x.float\(\)")


def test_targets_in_lists(torch: Any, calls: Calls, x: Any) -> None:
    y = -x
    targets = calls.loss.targets(y)
    assert torch.equal(calls.loss(x, list(targets)), calls.loss(x, y))
    refused(lambda: calls.loss(x, [targets[0], targets[1].numpy()]), r"a target is ndarray .*torch.from_numpy\(x\)")
    refused(lambda: calls.loss(x, [targets[0], None]), "a target is None; give a torch tensor")
    refused(lambda: calls.loss(x, list(x)), r"target of 'relu1_2' is float32 \(3, 32, 32\); .*use targets")
    refused(lambda: calls.loss(list(x), y), r"x is \[Tensor of .*; give a torch tensor of floats: torch.stack")
    refused(lambda: calls.loss(x, []), "0 targets are given, and 2 are compared")
    wanting = tuple(target.clone().requires_grad_() for target in targets)
    refused(lambda: calls.loss(x, wanting), "style requires a gradient")


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda func, f, x: func.grad(f)(x),
    "vjp": lambda func, f, x: func.vjp(f, x),
    "jvp": lambda func, f, x: func.jvp(f, (x,), (x,)),
    "vmap": lambda func, f, x: func.vmap(f)(x[None]),
    "vmap of grad": lambda func, f, x: func.vmap(func.grad(f))(x[None]),
    "jacrev": lambda func, f, x: func.jacrev(f)(x),
    "jacfwd": lambda func, f, x: func.jacfwd(f)(x),
    "hessian": lambda func, f, x: func.hessian(f)(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(torch: Any, calls: Calls, x: Any, name: str) -> None:
    for f in (lambda a: calls.loss(a, x), lambda a: calls.features(a)[0].sum(), lambda a: calls.loss(x, (a, a))):
        refused(
            lambda f=f: TRANSFORMS[name](torch.func, f, x),
            r"inside a transform of torch.func .*; use torch.autograd.grad|style requires a gradient",
        )


def test_forward_mode_and_second_derivatives(torch: Any, calls: Calls, x: Any) -> None:
    from torch.autograd import forward_ad

    functions = (lambda a: calls.loss(a, x), lambda a: calls.features(a)[0].sum())
    for f in functions:
        with forward_ad.dual_level():
            refused(lambda f=f: f(forward_ad.make_dual(x, x)), "has a tangent of forward-mode")
            f(x)  # without a tangent
        refused(lambda f=f: torch.func.linearize(f, x), "has a tangent of forward-mode")
        for what in ("jvp", "hvp"):  # by gradients of gradients, to the slope and to x
            other = getattr(torch.autograd.functional, what)
            refused(lambda f=f, other=other: other(f, -x, x), "a second derivative is asked for")


def test_several_gradients_at_once(torch: Any, model: Path, calls: Calls, x: Any) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    each = PerceptualLoss(model, LAYERS, reduction="none")
    jacobian = torch.autograd.functional.jacobian
    single = jacobian(lambda a: each(a, -x), x)
    assert single.any()
    assert torch.equal(jacobian(lambda a: each(a, -x), x, vectorize=True), single)
    refused(lambda: jacobian(lambda a: calls.features(a)[0].sum(), x, vectorize=True), "several gradients .* at once")
    each.close()


def test_traced_modules_compute_anew(torch: Any, calls: Calls, x: Any) -> None:
    """A trace has the operator, not the numbers of the run that was traced."""
    from torch.fx.experimental.proxy_tensor import make_fx

    y = -x
    features, loss = calls.features(y)[1], calls.loss(y, x)
    for mode in ("real", "fake"):
        assert torch.equal(make_fx(lambda a: calls.features(a)[1], tracing_mode=mode)(x)(y), features)
        assert torch.equal(make_fx(calls.loss, tracing_mode=mode)(x, x.clone())(y, x), loss)


def test_torchscript(torch: Any, calls: Calls, x: Any) -> None:
    y = -x
    assert torch.equal(torch.jit.trace(calls.features, x)(y)[1], calls.features(y)[1])
    traced = torch.jit.trace(calls.loss, (x, y))
    assert torch.equal(traced(y, x), calls.loss(y, x))
    refused(lambda: traced(y.clone().requires_grad_(), x).backward(), "recorded without one")
    for module in (calls.features, calls.loss):
        refused(lambda module=module: torch.jit.script(module), "cannot be compiled by torch.jit.script")
        refused(lambda module=module: torch.fx.symbolic_trace(module), "Proxy; give a torch tensor")


def test_compiled_calls_say_the_same(torch: Any, calls: Calls, x: Any) -> None:
    compiled = torch.compile(lambda a: calls.loss(a, x), backend="eager")
    refused(lambda: compiled(x.numpy()), r"x is ndarray .*torch.from_numpy\(x\)")
    refused(lambda: compiled(x.long()), "x is torch.int64; give floats")
    features = torch.compile(calls.features, backend="eager")
    refused(lambda: features(x[None]), r"float32 \(1, 2, 3, 32, 32\); give floats \(N, 3, H, W\)")
    refused(lambda: features(None), "the input is None")
    torch._dynamo.reset()


def test_what_works_is_right(torch: Any, calls: Calls, x: Any) -> None:
    values, loss = calls.features(x), calls.loss(x, -x)
    negative = torch._neg_view(-x)  # the sign is noted beside the numbers
    with torch.inference_mode():
        inferred = x.clone()
        assert torch.equal(calls.loss(inferred, -x), loss)
    wanting = x.clone().requires_grad_()
    for same in (negative, torch.complex(-x, -x).conj().imag, inferred, wanting, torch.nn.Parameter(x)):
        assert torch.equal(calls.features(same)[1], values[1])
        assert torch.equal(calls.loss(same, -x), loss)
        assert np.array_equal(calls.engine.run(same)[1], values[1].numpy())
        assert np.array_equal(calls.loss_engine.targets(same)[1], calls.loss.targets(x)[1].numpy())
    half = x.bfloat16()
    assert torch.equal(calls.features(half)[1], calls.features(half.float())[1])
    assert np.array_equal(calls.engine.run(half)[1], calls.engine.run(half.float())[1])
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(calls.loss(wanting, -x), loss)
    assert calls.features(x[:0])[0].shape == (0, 8, 32, 32)


def test_copies_compute_for_themselves(torch: Any, model: Path, x: Any) -> None:
    from vgg16gpu.pytorch import Features, PerceptualLoss

    for module, given in ((Features(model, "relu1_2"), (x,)), (PerceptualLoss(model, LAYERS), (x, -x))):
        expected = module(*given)
        copied = copy.deepcopy(torch.nn.Sequential(module))[0]
        module.close()
        del module
        wanting = x.clone().requires_grad_()
        assert torch.equal(copied(*given), expected)
        copied(wanting, *given[1:]).sum().backward()
        assert wanting.grad.any()
        copied.close()


def test_classify_takes_files(x: Any) -> None:
    for given in (x, x.numpy(), list(x), None, 3, picture(), x[0, 0, 0, 0], x[0, 0, 0], x.to("meta")):
        refused(lambda given=given: list(classify(given, "digits")), "paths has .*classify reads files")


def test_operators_of_another_module(torch: Any, calls: Calls, x: Any) -> None:
    with pytest.raises(InputError, match="is gone; keep it"):
        torch.ops.vgg16gpu.features(x, calls.loss._handle, "torch")
