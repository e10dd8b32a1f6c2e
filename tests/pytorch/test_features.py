"""`vgg16gpu.pytorch.Features` beside the same layers made of torch's operators."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.torch_here import torch_with_cuda
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.zoo.generate import make_vgg

LAYERS = ("relu1_2", "relu2_2", "relu3_3")


@pytest.fixture
def features(torch: Any, model: Path) -> Any:
    from vgg16gpu.pytorch import Features

    del torch
    found = Features(model, LAYERS, batch=2)
    yield found
    found.close()


def by_torch(torch: Any, model: Path, x: Any) -> list[Any]:
    """The same layers in float64, by torch's operators."""
    found, place = [], 0
    convolutions = [op for op in Model(model).graph().ops if isinstance(op, Conv)]
    for count in (2, 2, 3):
        for op in convolutions[place : place + count]:
            weight, bias = (torch.from_numpy(array.astype(np.float64)) for array in (op.weight, op.bias))
            x = torch.relu(torch.nn.functional.conv2d(x, weight, bias, padding=1))
        place += count
        found.append(x)
        x = torch.nn.functional.max_pool2d(x, 2)
    return found


def images(torch: Any, *shape: int, dtype: Any = None) -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).to(dtype)


def distance(a: Any, b: Any) -> float:
    return float((a.double() - b).norm() / b.norm())


def loss(values: Any) -> Any:
    return sum((value**2).mean() * weight for value, weight in zip(values, (1.0, 0.5, 0.25), strict=True))


@pytest.mark.parametrize("shape", [(1, 3, 48, 48), (3, 3, 33, 40)], ids=str)
def test_values_and_gradients_are_torchs(torch: Any, model: Path, features: Any, shape: tuple[int, ...]) -> None:
    x = images(torch, *shape).requires_grad_()
    exact = x.detach().double().requires_grad_()
    values, expected = features(x), by_torch(torch, model, exact)
    for value, right in zip(values, expected, strict=True):
        assert value.dtype == torch.float32
        assert distance(value.detach(), right.detach()) < 2e-6
    loss(values).backward()
    loss(expected).backward()
    assert distance(x.grad, exact.grad) < 5e-6


def test_only_some_layers_in_the_loss_and_runs_between(torch: Any, model: Path, features: Any) -> None:
    x, other = images(torch, 1, 3, 48, 48).requires_grad_(), images(torch, 1, 3, 32, 32)
    exact = x.detach().double().requires_grad_()
    first, second = features(x), features(2 * x)
    features(other)
    (first[1].sum() + second[0].sum()).backward()
    (by_torch(torch, model, exact)[1].sum() + by_torch(torch, model, 2 * exact)[0].sum()).backward()
    assert distance(x.grad, exact.grad) < 5e-6


def test_one_layer_is_a_tensor_and_half_types_come_back(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import Features

    features = Features(model, "relu2_2")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = images(torch, 1, 3, 48, 48, dtype=dtype).requires_grad_()
        value = features(x)
        value.sum().backward()
        assert (value.dtype, x.grad.dtype) == (torch.float32, dtype)
    features.close()
    assert features(x).shape == (1, 16, 24, 24)  # built anew
    features.close()


def test_it_is_a_frozen_module(torch: Any, features: Any) -> None:
    assert not list(features.parameters())
    assert not features.state_dict()
    assert "layers relu1_2, relu2_2, relu3_3, torch" in repr(features)
    with torch.no_grad():
        assert not features(images(torch, 1, 3, 16, 16))[0].requires_grad


def test_what_is_wrong_is_said(torch: Any, model: Path, features: Any) -> None:
    from vgg16gpu.pytorch import Features

    x = images(torch, 1, 3, 48, 48).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(features(x)), x, create_graph=True)
    with pytest.raises(InputError, match="a second derivative is asked for"):
        gradient.sum().backward()
    with pytest.raises(InputError, match=r"torch.uint8; give floats"):
        features(torch.zeros((1, 3, 48, 48), dtype=torch.uint8))
    with pytest.raises(InputError, match="computed in fp32, fp16, bf16, and precision is int8"):
        Features(model, LAYERS, "int8")(x)
    half = Features(model, LAYERS, "fp16")
    assert half(x)[0].requires_grad
    with torch.no_grad():
        assert half(x)[0].shape == (1, 8, 48, 48)
    half.close()
    with pytest.raises(ModelError, match="has no value 'nothing'"):
        Features(model, "nothing")


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "torch" or name.startswith("vgg16gpu.pytorch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs torch, which is not installed: pip install '.\[torch\]'"):
        import vgg16gpu.pytorch  # noqa: F401


def test_the_compiler_keeps_one_graph(torch: Any, features: Any) -> None:
    x = images(torch, 2, 3, 48, 48)
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compute(x: Any) -> Any:
        return loss(features(2 * x))

    compiled = torch.compile(compute, backend=keep, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), compute(x))
    targets = {str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"}
    assert any("vgg16gpu" in target for target in targets)
    assert not any("conv" in target or "pool" in target for target in targets)


def test_the_operators_are_what_torch_wants(torch: Any, features: Any) -> None:
    x = images(torch, 1, 3, 16, 16)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.vgg16gpu.features.default, (x, features._handle, "torch"), test_utils=checks)
    cotangents = [torch.ones_like(y) for y in features(x)]
    operator = torch.ops.vgg16gpu.features_gradient.default
    torch.library.opcheck(operator, (x, features._handle, "torch", cotangents), test_utils=checks)


def test_strides_of_the_input_do_not_matter(torch: Any, features: Any) -> None:
    x = images(torch, 2, 3, 32, 32)
    turned = x.to(memory_format=torch.channels_last)
    assert all(map(torch.equal, features(turned), features(x)))
    assert [y.shape[0] for y in features(x[:0])] == [0, 0, 0]


def test_a_module_lives_as_long_as_the_way_back(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import Features

    x = images(torch, 1, 3, 16, 16).requires_grad_()
    value = Features(model, "relu2_2")(x)
    gc.collect()
    value.sum().backward()
    assert x.grad.any()


def test_a_module_that_is_gone(torch: Any) -> None:
    with pytest.raises(InputError, match="number 0 is gone"):
        torch.ops.vgg16gpu.features(images(torch, 1, 3, 16, 16), 0, "torch")


# ---- On a GPU


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Channels of whole tiles, so that what is stored has no padding."""
    path = tmp_path_factory.mktemp("pytorch") / "wide.onnx"
    make_vgg(path, variant="vgg16", size=48, width=64, hidden=64, classes=10)
    return path


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_on_a_gpu_the_values_are_those_of_the_engine(torch: Any, wide: Path, precision: str) -> None:
    from vgg16gpu import Engine
    from vgg16gpu.pytorch import Features

    torch_with_cuda()
    features = Features(wide, LAYERS, precision, batch=2)
    x = images(torch, 2, 3, 48, 48).cuda()
    with Engine(wide, device="cuda", outputs=LAYERS, precision=precision, batch=2) as engine, torch.no_grad():
        expected = [torch.from_dlpack(y) for y in engine.run(x)]
        kept = [features(x) for _ in range(3)]
        for found in kept:
            for y, right in zip(found, expected, strict=True):
                assert y.is_contiguous(memory_format=torch.channels_last)
                assert torch.equal(y, right.to(y.dtype))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = features(x)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, captured, kept[0]))
        compiled = torch.compile(features, fullgraph=True, backend="eager")
        assert all(map(torch.equal, compiled(x), kept[0]))
    features.check()
    features.close()


@pytest.mark.gpu
def test_on_a_gpu_the_gradient_is_that_of_arrays_on_the_host(torch: Any, model: Path) -> None:
    """It never leaves the card; slopes that a sum spreads have strides of zero."""
    from vgg16gpu import Engine
    from vgg16gpu.pytorch import Features

    torch_with_cuda()
    x = images(torch, 3, 3, 48, 48)
    features = Features(model, LAYERS, "fp32", batch=2)
    given = x.cuda().requires_grad_()
    values = features(given)
    slopes = [torch.ones_like(value, device="cpu").numpy() for value in values]
    sum(value.sum() for value in values).backward()
    with Engine(model, device="cuda", outputs=LAYERS, batch=2, gradient=True) as engine:
        expected = engine.vjp(x.numpy(), slopes)
    assert torch.equal(given.grad.cpu(), torch.from_numpy(expected))
    features.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_on_a_gpu_a_graph_has_the_gradient_too(torch: Any, wide: Path, precision: str) -> None:
    from vgg16gpu.pytorch import Features

    torch_with_cuda()
    features = Features(wide, LAYERS, precision, batch=2)
    x = images(torch, 2, 3, 48, 48).cuda().requires_grad_()

    def step() -> Any:
        return torch.autograd.grad(loss(features(x)), x)[0]

    for _ in range(3):
        expected = step()
    (engine,) = features._engines.values()
    slopes = [y.detach() for y in features(x)]
    before = engine.counters
    torch.ops.vgg16gpu.features_gradient(x.detach(), features._handle, precision, slopes)
    assert engine.counters.since(before).synchronisations == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)
    features.check()
    features.close()
