"""Modules among torch's tools: copies, pickles, checkpoints, moving averages, other processes, parallel training."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import images
from tests.support.torch_here import torch_module
from tests.support.weight_files import state_of
from vgg16gpu import Engine, LossEngine
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.vgg.source import FILES
from vgg16gpu.errors import InputError, ModelError

LAYERS = {"relu1_2": 1.0, "relu2_2": np.arange(16.0)}
SHAPE = (2, 3, 24, 21)
PROCESSES = 2


@pytest.fixture(scope="session")
def features(model: Path) -> dict[str, Any]:
    """Give the weights of the backbone without its classifier."""
    return {name: array for name, array in state_of(model).items() if name.startswith("features.")}


@pytest.fixture
def sources(torch: Any, model: Path, features: dict[str, Any]) -> dict[str, Any]:
    """Give the same backbone in several forms."""
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    net.load_state_dict(
        {name.removeprefix("features."): torch.from_numpy(features[name].copy()) for name in list(features)[:4]}
    )
    return {"file": model, "bytes": model.read_bytes(), "state dict": features, "first layers": net}


@pytest.fixture
def loss(torch: Any, model: Path) -> Any:
    del torch
    from vgg16gpu.pytorch import PerceptualLoss

    return PerceptualLoss(model, LAYERS, distance="unit")


@pytest.mark.parametrize("form", ["file", "bytes", "state dict", "first layers"])
def test_a_pickle_has_what_another_process_needs(torch: Any, sources: dict[str, Any], form: str) -> None:
    from vgg16gpu.pytorch import Features, PerceptualLoss

    x = images(torch, *SHAPE)
    for module, given in (
        (PerceptualLoss(sources[form], {"relu1_1": 1.0}, reduction="none"), (x, -x)),
        (Features(sources[form], ("relu1_2", "relu1_1"), batch=2), (x,)),
    ):
        expected = module(*given)
        written = pickle.dumps(module)
        assert (len(written) < 4096) == (form == "file")
        module.close()
        found = pickle.loads(written)
        wanting = x.clone().requires_grad_()
        results = found(wanting, *given[1:])
        for one, other in zip(results, expected, strict=True):
            assert torch.equal(one, other)
        results[0].sum().backward()
        assert wanting.grad is not None
        assert wanting.grad.any()
        assert repr(found) == repr(module)
        assert len(pickle.dumps(found)) == len(written)


def test_a_parent_is_saved_and_loaded_whole_or_by_its_own_state(torch: Any, loss: Any) -> None:
    x = images(torch, *SHAPE)
    parent = torch.nn.ModuleDict({"net": torch.nn.Conv2d(3, 3, 1), "loss": loss})
    expected = parent["loss"](parent["net"](x), x)
    file = io.BytesIO()
    torch.save(parent, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded["loss"](loaded["net"](x), x), expected)
    assert list(parent.state_dict()) == ["net.weight", "net.bias"]  # nothing of the backbone
    old = {name: tensor.clone() for name, tensor in parent.state_dict().items()}
    torch.nn.init.zeros_(loaded["net"].weight)
    loaded.load_state_dict(old, strict=True)
    assert torch.equal(loaded["loss"](loaded["net"](x), x), expected)


def test_what_changes_parameters_leaves_a_module_as_it_is(torch: Any, loss: Any) -> None:
    x = images(torch, *SHAPE)
    expected = loss(x, -x)
    changed = loss.to("cpu").half().double().eval().train().requires_grad_(requires_grad=True)
    changed.to(memory_format=torch.channels_last).zero_grad()
    assert changed is loss
    assert (list(loss.parameters()), list(loss.buffers())) == ([], [])
    assert torch.equal(loss(x, -x), expected)
    assert torch.equal(copy.copy(loss)(x, -x), expected)
    rounded = x.half()
    assert torch.equal(loss(rounded, -rounded), loss(rounded.float(), -rounded.float()))


def test_a_moving_average_has_a_loss_of_its_own(torch: Any, loss: Any) -> None:
    x = images(torch, *SHAPE)
    parent = torch.nn.ModuleDict({"net": torch.nn.Conv2d(3, 3, 1), "loss": loss})
    averaged = torch.optim.swa_utils.AveragedModel(parent)
    for _ in range(2):
        torch.nn.init.ones_(parent["net"].weight)
        averaged.update_parameters(parent)
    assert torch.equal(averaged.module["net"].weight, torch.ones(3, 3, 1, 1))
    assert averaged.module["loss"] is not loss
    assert torch.equal(averaged.module["loss"](x, -x), loss(x, -x))


def test_a_file_is_found_where_it_was_whatever_the_current_folder(
    torch: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgg16gpu.pytorch import Features

    shutil.copy(model, tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    module = Features("net.onnx", "relu1_1")
    written = pickle.dumps(module)
    monkeypatch.chdir(tmp_path.parent)
    x = images(torch, *SHAPE)
    assert torch.equal(pickle.loads(written)(x), module(x))
    (tmp_path / "net.onnx").unlink()
    with pytest.raises(ModelError, match=r"^/.*/net\.onnx: no such file, from which a .*; bring the file there"):
        pickle.loads(written)


def test_a_model_with_a_name_is_looked_up_by_it(
    torch: Any, features: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "second"):
        path = tmp_path / folder / "hub" / "checkpoints" / FILES["vgg16"]
        path.parent.mkdir(parents=True)
        torch.save({name: torch.from_numpy(array.copy()) for name, array in features.items()}, path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "first"))
    written = pickle.dumps([Model(Path("torchvision/vgg16")), Model("digits")])
    assert str(tmp_path).encode() not in written
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "second"))
    vgg16, digits = pickle.loads(written)
    assert vgg16.path.is_relative_to(tmp_path / "second")
    assert digits.path == Model("digits").path


def test_engines_say_that_they_cannot_be_pickled(model: Path) -> None:
    for made in (Engine(model, outputs=["relu1_1"], device="cpu"), LossEngine(model, {"relu1_1": 1.0}, device="cpu")):
        with made as engine:
            for action in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(InputError, match=rf"^{type(engine).__name__} cannot be pickled .*build it there$"):
                    action(engine)


def step(net: Any, features: Any, loss: Any, x: Any) -> Any:
    """Return the gradient of a training step: by DistributedDataParallel where torch.distributed is at work."""
    torch = torch_module()

    class Training(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.features, self.loss = net, features, loss

        def forward(self, x: Any) -> Any:
            y = self.net(x)
            return (self.features(y) ** 2).mean() + self.loss(y, -x)

    training: Any = Training()
    if torch.distributed.is_initialized():
        training = torch.nn.parallel.DistributedDataParallel(training)
    training(x).backward()
    return net.weight.grad


def in_process(rank: int, size: int, folder: Path, modules: tuple[Any, ...], x: Any) -> None:
    """Take a share of the images; the first process writes the gradient that all have."""
    torch = torch_module()
    torch.distributed.init_process_group("gloo", f"file://{folder}/store-{size}", rank=rank, world_size=size)
    try:
        gradient = step(*modules, x.chunk(size)[rank])
        if rank == 0:
            torch.save(gradient, folder / f"gradient-{size}.pt")
    finally:
        torch.distributed.destroy_process_group()


def test_processes_that_were_spawned_train_in_parallel(torch: Any, features: dict[str, Any], tmp_path: Path) -> None:
    from vgg16gpu.pytorch import Features, PerceptualLoss

    torch.manual_seed(0)
    net, x = torch.nn.Conv2d(3, 3, 1), images(torch, *SHAPE)
    modules = net, Features(features, "relu1_1"), PerceptualLoss(features, LAYERS, distance="unit")
    expected = step(*copy.deepcopy(modules), x)
    in_process(0, 1, tmp_path, copy.deepcopy(modules), x)
    torch.multiprocessing.spawn(in_process, (PROCESSES, tmp_path, modules, x), PROCESSES)
    for size in (1, PROCESSES):
        found = torch.load(tmp_path / f"gradient-{size}.pt")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
