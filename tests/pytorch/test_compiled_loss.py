"""`PerceptualLoss` under torch's compiler: one graph, there and back, and what it computes without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import images
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.errors import InputError

# What torch imports to compile warns of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
STYLE = {"relu1_2": 5.0}
SHAPE = (2, 3, 40, 33)


def there_and_back(torch: Any, compute: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The loss, and the gradient to x."""
    given = x.detach().requires_grad_()
    found = compute(given, y)
    return found.detach(), torch.autograd.grad(found.sum(), given)[0]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_graph_and_the_same_bits(torch: Any, where: Any, model: Path, reduction: Any, precision: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, precision=precision, reduction=reduction)
    graphs: list[Any] = []

    def keep(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, given)

    def compute(x: Any, y: Any) -> Any:
        return loss(2 * x, y)  # behind a step of torch's

    x, y = images(torch, *SHAPE).to(where), -images(torch, *SHAPE).to(where)
    for goal in (y, loss.targets(y)):
        torch._dynamo.reset()
        compiled = torch.compile(compute, backend=keep, fullgraph=True)
        for found, expected in zip(
            there_and_back(torch, compiled, x, goal), there_and_back(torch, compute, x, goal), strict=True
        ):
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        with torch.no_grad():
            assert torch.equal(compiled(x, goal), compute(x, goal))
    targets = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert any("perceptual_loss" in target for target in targets)
    loss.check()
    loss.close()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
def test_gradients_have_the_type_of_the_images(torch: Any, where: Any, model: Path, name: str, order: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, STYLE)
    x, y = (images(torch, *SHAPE).to(where, getattr(torch, name)) * sign for sign in (1, -1))
    x = x.to(memory_format=getattr(torch, order))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: loss(x, y, y), backend="aot_eager", fullgraph=True)
    given = x.requires_grad_()
    found, expected = (torch.autograd.grad(each(given, y), given)[0] for each in (compiled, lambda x, y: loss(x, y, y)))
    assert found.dtype == expected.dtype == x.dtype
    assert torch.equal(found, expected)
    loss.close()


def test_the_operator_is_what_torch_wants(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, reduction="none")
    x, y = images(torch, 1, 3, 16, 16), -images(torch, 1, 3, 16, 16)
    operator = torch.ops.vgg16gpu.perceptual_loss.default
    for images_, targets in (([y], []), ([], list(loss.targets(y)))):
        given = (x, loss._handle, images_, [], targets, "torch", -1, True, False)
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
    loss.close()


def test_what_is_wrong_is_said_while_it_is_compiled_too(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS)
    x = images(torch, *SHAPE)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    with pytest.raises(InputError, match="no images to compare with"):
        compiled(x)
    loss.close()


@pytest.mark.gpu
def test_on_a_gpu_what_the_compiler_makes_of_it_has_the_same_loss(torch: Any, model: Path) -> None:
    """Fused with what stands around it, which may round otherwise."""
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(model, LAYERS, precision="bf16")
    x, y = images(torch, *SHAPE).cuda(), -images(torch, *SHAPE).cuda()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: 3 * loss(2 * x, y).sqrt(), fullgraph=True)
    found = there_and_back(torch, compiled, x, y)
    expected = there_and_back(torch, lambda x, y: 3 * loss(2 * x, y).sqrt(), x, y)
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=0)
    loss.check()
    loss.close()
