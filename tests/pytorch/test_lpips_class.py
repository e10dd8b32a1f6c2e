"""`vgg16gpu.pytorch.LPIPS` beside the package lpips in float64, both with the weights under torch hub's file name."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch import test_no_operators_of_torch
from tests.pytorch.test_features import distance
from tests.pytorch.test_no_operators_of_torch import guarded
from tests.pytorch.test_steady_loop import no_wait_of_torch
from tests.support.torch_here import torch_with_cuda
from tests.support.torch_hub import torch_home
from vgg16gpu.compiler.vgg import provenance
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.shipped import DATA
from vgg16gpu.zoo.generate import make_vgg

# What torch imports to compile warns of torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

SHAPE = (2, 3, 24, 24)
VALUES, GRADIENTS, FLIPS = 1e-6, 1e-5, 2e-2  # relative; of gradients the median's bound, and each one's


@pytest.fixture(scope="module")
def packages(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Their module in float64, and ours."""
    from vgg16gpu.pytorch import LPIPS

    with torch_home(torch, tmp_path_factory.mktemp("home")):
        pytest.importorskip("torchvision", reason="torchvision is not installed")
        lpips = pytest.importorskip("lpips", reason="lpips is not installed")
        theirs = lpips.LPIPS(net="vgg", verbose=False)
        ours = LPIPS(net="vgg", verbose=False, check_backbone=False)
        yield theirs.requires_grad_(requires_grad=False).double(), ours
        ours.close()


@pytest.fixture
def theirs(packages: tuple[Any, Any]) -> Iterator[Any]:
    yield packages[0]
    packages[0].spatial, packages[0].lpips = False, True


@pytest.fixture
def ours(packages: tuple[Any, Any]) -> Iterator[Any]:
    yield packages[1]
    packages[1].spatial = False


def pictures(torch: Any, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> tuple[Any, Any]:
    """Between -1 and 1, and the same with noise."""
    random = np.random.default_rng(seed)
    rows, columns = np.meshgrid(*(np.linspace(0, 3, side) for side in shape[2:]), indexing="ij")
    waves = np.sin(rows + columns * random.uniform(1, 3, (*shape[:2], 1, 1)))
    noisy = np.clip(waves + 0.3 * random.standard_normal(shape), -1, 1)
    return torch.from_numpy(waves.astype(np.float32)), torch.from_numpy(noisy.astype(np.float32))


def both(torch: Any, compute: Callable[[Any, Any], Any], x: Any, y: Any) -> tuple[Any, Any, Any]:
    """The value, and the gradients to both pictures."""
    given = [each.detach().clone().requires_grad_() for each in (x, y)]
    value = compute(*given)
    return value.detach(), *torch.autograd.grad(value.sum(), given)


def test_parameters_are_theirs() -> None:
    lpips = pytest.importorskip("lpips", reason="lpips is not installed")
    from vgg16gpu.pytorch import LPIPS

    wanted = list(inspect.signature(lpips.LPIPS).parameters.values())
    found = list(inspect.signature(LPIPS).parameters.values())
    assert [(each.name, each.default) for each in found[: len(wanted)]] == [
        (each.name, "vgg" if each.name == "net" else each.default) for each in wanted
    ]
    assert {each.kind for each in found[len(wanted) :]} == {inspect.Parameter.KEYWORD_ONLY}
    theirs, ours = (inspect.signature(each.forward).parameters.values() for each in (lpips.LPIPS, LPIPS))
    assert [(each.name, each.default) for each in ours] == [(each.name, each.default) for each in theirs]


def test_the_linear_weights_are_theirs(torch: Any) -> None:
    lpips = pytest.importorskip("lpips", reason="lpips is not installed")
    from vgg16gpu.pytorch.lpips import linear_weights

    path = Path(lpips.__file__).parent / "weights" / "v0.1" / "vgg.pth"
    stored = torch.load(path, map_location="cpu", weights_only=True)
    assert (DATA / "lpips_vgg.npz").is_file()
    assert sum(map(len, linear_weights())) == 1472
    for i, (ours, again) in enumerate(zip(linear_weights(), linear_weights(path), strict=True)):
        np.testing.assert_array_equal(ours, stored[f"lin{i}.model.1.weight"].numpy().ravel())
        np.testing.assert_array_equal(ours, again)


def test_values_and_both_gradients(torch: Any, theirs: Any, ours: Any) -> None:
    """Compare pairs by their median, as a ReLU may flip where a value is nearly 0."""
    distances = []
    for seed in range(3):
        x, y = pictures(torch, seed=seed)
        found, exact = both(torch, ours, x, y), both(torch, theirs, x.double(), y.double())
        assert (found[0].shape, found[0].dtype) == ((2, 1, 1, 1), torch.float32)
        np.testing.assert_allclose(found[0].numpy(), exact[0].numpy(), rtol=VALUES)
        distances += [distance(a[i], b[i]) for a, b in zip(found[1:], exact[1:], strict=True) for i in range(2)]
    assert np.median(distances) < GRADIENTS
    assert max(distances) < FLIPS


def test_ranges_layers_and_one_for_all(torch: Any, theirs: Any, ours: Any) -> None:
    x, y = pictures(torch)
    with torch.no_grad():
        for given in ((x, y[:1]), (x[:1], y), (x[:1], y[:1]), (x.bfloat16(), y.half()), (x + 3, 7 * y)):
            exact = theirs(*(each.double() for each in given))
            found = ours(*given)
            assert found.shape == exact.shape
            np.testing.assert_allclose(found.numpy(), exact.numpy(), rtol=VALUES)
        unit = [each / 2 + 0.5 for each in (x, y)]
        exact = theirs(*(each.double() for each in unit), normalize=True)
        np.testing.assert_allclose(ours(*unit, normalize=True).numpy(), exact.numpy(), rtol=VALUES)
        total, layers = ours(*unit, True, True)
        exact, exact_layers = theirs(*(each.double() for each in unit), True, True)
        assert isinstance(layers, list)
        for value, right in zip((total, *layers), (exact, *exact_layers), strict=True):
            assert value.shape == right.shape
            np.testing.assert_allclose(value.numpy(), right.numpy(), rtol=2 * VALUES)


def test_maps_with_a_mask(torch: Any, theirs: Any, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bilinear, of pictures with odd sides; the gradient goes to both, and nothing of torch's convolves."""
    x, y = pictures(torch, (1, 3, 37, 33))
    mask = (torch.arange(33) > 11).double()
    theirs.spatial = ours.spatial = True
    exact = both(torch, lambda x, y: theirs(x, y) * mask, x.double(), y.double())
    monkeypatch.setattr(test_no_operators_of_torch, "FORBIDDEN", re.compile(r"conv|pool|relu|mm"))  # bilinear is not
    guard = guarded(monkeypatch)
    with guard.watched():
        found = both(torch, lambda x, y: ours(x, y) * mask.float(), x, y)
    assert found[0].shape == (1, 1, 37, 33)
    for value, right in zip(found, exact, strict=True):
        assert distance(value, right) < 2 * GRADIENTS
    layers = ours(x, y, retPerLayer=True)[1]
    assert [value.shape for value in layers] == [(1, 1, 37, 33)] * 5
    copied = copy.deepcopy(ours)
    assert torch.equal(copied(x, y) * mask.float(), found[0])
    copied.close()


def test_without_linear_weights(torch: Any, theirs: Any, packages: Any) -> None:
    from vgg16gpu.pytorch import LPIPS

    del packages
    ours = LPIPS(lpips=False, verbose=False, check_backbone=False)
    theirs.lpips = False
    x, y = pictures(torch)
    with torch.no_grad():
        np.testing.assert_allclose(ours(x, y).numpy(), theirs(x.double(), y.double()).numpy(), rtol=VALUES)
    ours.close()


def test_a_script_of_tamings_order(torch: Any, theirs: Any, ours: Any) -> None:
    """`loss(inputs, reconstructions)`: the second picture needs the gradient, twice, for an adaptive weight."""
    x, y = pictures(torch)

    def weight(loss: Any, x: Any, y: Any) -> tuple[Any, Any]:
        last = torch.full((1, 3, 1, 1), 0.7, dtype=y.dtype, requires_grad=True)
        p_loss = loss(x, last * y).mean()
        g_loss = (last * y).square().mean()
        slopes = [torch.autograd.grad(each, last, retain_graph=True)[0] for each in (p_loss, g_loss)]
        ratio = (slopes[0].norm() / slopes[1].norm()).detach()
        (p_loss + ratio * g_loss).backward()
        return ratio, last.grad

    for value, right in zip(weight(ours, x, y), weight(theirs, x.double(), y.double()), strict=True):
        assert distance(value, right) < GRADIENTS


def test_checkpoints_copies_and_averages(torch: Any, theirs: Any, ours: Any, tmp_path: Path) -> None:
    """No weights of ours are stored, theirs are passed over, and a parent can be copied, for an average of weights."""

    class Trainer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, perceptual: Any) -> None:
            super().__init__()
            self.net, self.perceptual = torch.nn.Conv2d(3, 3, 1), perceptual

    trainer, older = Trainer(ours), Trainer(theirs)
    assert list(trainer.state_dict()) == ["net.weight", "net.bias"]
    torch.save(older.state_dict(), tmp_path / "older.pt")
    stored = torch.load(tmp_path / "older.pt", weights_only=True)
    assert len(stored) > 30
    assert str(trainer.load_state_dict(stored, strict=True)) == "<All keys matched successfully>"
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "perceptual.other"'):
        trainer.load_state_dict(stored | {"perceptual.other": torch.zeros(1)})
    x, y = pictures(torch)
    averaged = torch.optim.swa_utils.AveragedModel(trainer)
    averaged.update_parameters(trainer)
    for copied in (averaged.module, copy.deepcopy(trainer).to(torch.bfloat16).eval()):
        assert torch.equal(copied.perceptual(x, y), ours(x, y))
        copied.perceptual.close()


def test_one_graph(torch: Any, ours: Any) -> None:
    """Compare the plain call, and the layers' values, with both gradients."""
    x, y = pictures(torch, (1, 3, 16, 16))
    for compute in (lambda x, y: ours(2 * x, y), lambda x, y: ours(x, y, True, True)[1][2]):
        torch._dynamo.reset()
        compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
        for found, right in zip(both(torch, compiled, x, y), both(torch, compute, x, y), strict=True):
            torch.testing.assert_close(found, right)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "value", "gradient"), [("fp32", 1e-5, FLIPS), ("torch", 1e-2, 0.3)])
def test_on_a_gpu_nobody_waits_and_a_graph_has_the_bits(
    torch: Any, theirs: Any, precision: str, value: float, gradient: float
) -> None:
    """Both gradients, as TF32 is allowed as torch comes; and a graph that was captured."""
    from vgg16gpu.pytorch import LPIPS

    torch_with_cuda()
    ours = LPIPS(verbose=False, check_backbone=False, precision=precision)
    x, y = (each.cuda() for each in pictures(torch))
    exact = both(torch, theirs, x.cpu().double(), y.cpu().double())
    given = [each.clone().requires_grad_() for each in (x, y)]

    def step() -> tuple[Any, ...]:
        found = ours(*given)
        return found.detach(), *torch.autograd.grad(found.sum(), given)

    for _ in range(3):
        step()
    with no_wait_of_torch(torch):
        found = step()
    np.testing.assert_allclose(found[0].cpu().numpy(), exact[0].numpy(), rtol=value)
    assert max(distance(a.cpu(), b) for a, b in zip(found[1:], exact[1:], strict=True)) < gradient
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, found))
    assert [each for _, each in ours._loss._engines] == ["fp16" if precision == "torch" else "fp32"]
    ours.check()
    ours.close()


def test_what_it_does_not_have(torch: Any, packages: Any, tmp_path: Path) -> None:
    del packages
    from vgg16gpu.pytorch import LPIPS

    torch.save({"features.0.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "backbone.pth")
    (tmp_path / "text.pth").write_text("no weights")
    torch.save({f"lin{i}.model.1.weight": [1.0] for i in range(5)}, tmp_path / "lists.pth")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"net": "alex"}, "net is 'alex'; the networks here are VGGs"),
        ({"net": "squeeze"}, "net is 'squeeze'"),
        ({"version": "0.0"}, "version is '0.0'; accepted: '0.1'"),
        ({"pnet_rand": True}, "pnet_rand=True is a random network"),
        ({"pnet_tune": True}, "pnet_tune=True trains the network"),
        ({"eval_mode": False}, "eval_mode=False is for training linear weights"),
        ({"pretrained": False}, "pretrained=False has random linear weights"),
        (
            {"model_path": tmp_path / "backbone.pth"},
            "lin0, .*, lin4 of a VGG16 are missing; .* backbone=",
        ),
        ({"model_path": tmp_path / "lists.pth"}, "lin0, .*, lin4 of a VGG16 are missing"),
        ({"model_path": tmp_path / "text.pth"}, "text.pth: torch cannot read it as weights"),
        ({"model_path": tmp_path / "none.pth"}, "none.pth: torch cannot read it as weights .*No such file"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            LPIPS(**options, check_backbone=False)
        assert "\n" not in str(caught.value)


def test_whose_weights_the_backbone_has(
    torch: Any, packages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del packages
    from vgg16gpu.pytorch import LPIPS

    path = tmp_path / "random-vgg16.onnx"
    make_vgg(path, variant="vgg16", size=32, hidden=8, classes=10)
    with pytest.raises(InputError, match=r"random-vgg16.onnx has random weights .*backbone='torchvision/vgg16'"):
        LPIPS(backbone=path)
    with pytest.warns(UserWarning, match="LPIPS' linear weights belong to torchvision's VGG16: another") as told:
        LPIPS()
    assert len(told) == 1
    assert told[0].filename == __file__
    with monkeypatch.context() as patched:  # as of torchvision's own file of another net
        patched.setattr(provenance, "_hub_name", lambda _: "vgg19-dcbb9e9d.pth")
        with pytest.warns(UserWarning, match="torchvision's vgg19-dcbb9e9d.pth, and LPIPS' linear weights belong to"):
            LPIPS(verbose=False)
    assert capsys.readouterr().out == "Setting up [LPIPS] perceptual loss: trunk [vgg], v[0.1], spatial [off]\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LPIPS(check_backbone=False, verbose=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"vgg16-397923af.pth does not exist; get it: python -c "):
        LPIPS()
    assert torch.hub.get_dir().startswith(str(tmp_path))
