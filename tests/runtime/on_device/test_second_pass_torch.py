"""fp32 in pairs on a GPU: what nobody waits for has the bits of what somebody waits for, out of range or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.onnx_models import torch_vgg
from tests.support.torch_here import torch_with_cuda
from vgg16gpu import Engine
from vgg16gpu.compiler.lowering.wgmma import has_wgmma

pytestmark = pytest.mark.gpu

SIZE = 32
LAYERS = ("relu0", "relu1", "pool2", "relu3", "output")  # one more than one launch of the verdict takes


@pytest.fixture
def torch() -> Any:
    return torch_with_cuda()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = (64, 64, "M", 128, "M")
    return torch_vgg(layers, SIZE, hidden=64, classes=20).save(tmp_path_factory.mktemp("models") / "wide.onnx")


@contextmanager
def engine_of(model: Path, **options: Any) -> Iterator[Engine]:
    with Engine(model, device="cuda", **{"batch": (1, 4), "outputs": LAYERS, **options}) as engine:
        if not has_wgmma(engine.device.facts):
            pytest.skip("fp32 runs on float32 kernels here")
        assert engine.plan.second_passes
        yield engine


def images(torch: Any, count: int, *strange: int) -> Any:
    """Noise, of which some is out of range: too large, or too small."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((count, 3, SIZE, SIZE)).astype(np.float32)).cuda()
    for i in strange:
        x[i] *= 1e6 if i % 2 else 1e5
    return x


def waited(torch: Any, engine: Engine, x: Any, **options: Any) -> list[Any]:
    """Copies of what a run gives that is waited for."""
    found = [torch.from_dlpack(y).clone() for y in engine.run(x, **options)]
    torch.cuda.synchronize()
    return found


def later(torch: Any, engine: Engine, x: Any, **options: Any) -> Any:
    return engine.run(x, stream=torch.cuda.current_stream(), wait=False, **options)


@pytest.mark.parametrize("form", [None, "stored", "float32 channels_last"])
@pytest.mark.parametrize("strange", [(), (0,), (4,), (1, 2), (0, 1, 2, 3, 4)], ids=str)
def test_the_bits_of_a_run_that_waits(torch: Any, wide: Path, strange: tuple[int, ...], form: str | None) -> None:
    with engine_of(wide) as engine:
        x, clean = images(torch, 5, *strange), images(torch, 5)
        expected, right = waited(torch, engine, x, form=form), waited(torch, engine, clean, form=form)
        assert engine.second_passes == len(strange)
        for _ in range(4):  # launched singly, then as one graph
            found = [torch.from_dlpack(y) for y in later(torch, engine, x, form=form)]
            others = [torch.from_dlpack(y) for y in later(torch, engine, clean, form=form)]
            engine.check()
            assert all(map(torch.equal, found, expected))
            assert all(map(torch.equal, others, right))
        assert engine.second_passes == 5 * len(strange)


@pytest.mark.parametrize("warms_up", ["waits", "does not wait"])
def test_a_graph_that_torch_captures(torch: Any, wide: Path, warms_up: str) -> None:
    """Whatever the images of a replay hold."""
    with engine_of(wide, batch=4) as engine:
        x, stream = images(torch, 4), torch.cuda.Stream()
        out = tuple(torch.empty_like(y) for y in waited(torch, engine, x))
        if warms_up == "does not wait":
            later(torch, engine, x, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            later(torch, engine, x, out=out)
            doubled = [2 * y for y in out]
        for strange in ((), (2,), (0, 3), (), (0, 1, 2, 3)):
            x.copy_(images(torch, 4, *strange))
            expected = waited(torch, engine, x)
            before = engine.second_passes
            graph.replay()
            torch.cuda.synchronize()
            engine.check()
            assert engine.second_passes == before + len(strange)
            assert all(torch.equal(y, right) for y, right in zip(out, expected, strict=True))
            assert all(torch.equal(y, 2 * right) for y, right in zip(doubled, expected, strict=True))
