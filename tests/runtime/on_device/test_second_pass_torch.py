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
from vgg16gpu.errors import InputError

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


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_images_than_the_batch(torch: Any, wide: Path, count: int) -> None:
    with engine_of(wide, batch=4) as engine:
        later(torch, engine, images(torch, 4, 0, 1, 2, 3))
        x = images(torch, count, count - 1)
        for _ in range(3):
            found = [torch.from_dlpack(y) for y in later(torch, engine, x)]
            engine.check()
            assert all(map(torch.equal, found, waited(torch, engine, x)))


def test_rows_of_nan_beside_rows_that_were_run_again(torch: Any, wide: Path) -> None:
    x, clean = images(torch, 4, 1, 3), images(torch, 4, 1)
    x[2, 0, 0, 0] = x[3, 1, 2, 3] = torch.nan
    with engine_of(wide, batch=4) as engine:
        expected = waited(torch, engine, clean)
        for _ in range(3):
            found = [torch.from_dlpack(y) for y in later(torch, engine, x)]
            with pytest.raises(InputError, match=r"image 2 \(counted from 0; the first such\) holds NaN or Inf"):
                engine.check()
            for y, right in zip(found, expected, strict=True):
                assert torch.equal(y[:2], right[:2])
                assert bool(y[2:].isnan().all())


def test_nan_that_is_allowed_is_run_again(torch: Any, wide: Path) -> None:
    x = images(torch, 4, 1)
    x[2, 0, 0, 0], x[3, 1, 2, 3] = torch.nan, torch.inf
    with engine_of(wide, batch=4, allow_nonfinite=True) as engine:
        expected = waited(torch, engine, x)
        found = [torch.from_dlpack(y) for y in later(torch, engine, x)]
        engine.check()
        for y, right in zip(found, expected, strict=True):
            assert torch.equal(y.nan_to_num(7), right.nan_to_num(7))


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


@pytest.mark.alone(reason="torch's allocator hands blocks out in an order that other tests of a process change")
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_features_wait_for_nothing_and_bind_nothing(
    torch: Any, wide: Path, monkeypatch: pytest.MonkeyPatch, count: int, is_kept: bool
) -> None:
    """Results that go before the next come, or stay until these are there, so that torch's allocator alternates."""
    from vgg16gpu.pytorch import Features

    names = list(LAYERS[:4])
    torch.cuda.empty_cache()  # what other tests left in torch's allocator would come into the order, too
    features = Features(wide, names, batch=count)
    x = images(torch, count, count - 1)
    with torch.no_grad(), engine_of(wide, outputs=names, batch=count) as engine:
        expected = waited(torch, engine, x)

        def loop(steps: int) -> Any:
            found = None
            for _ in range(steps):
                if not is_kept:
                    found = None
                found = features(x)
            return found

        loop(60)  # until torch's allocator hands out what it has handed out before
        (used,) = features._engines.values()
        bound: list[int] = []
        bind = used.device.bind
        monkeypatch.setattr(used.device, "bind", lambda steps, bases: bound.append(len(steps)) or bind(steps, bases))
        before = used.counters
        found = loop(10)
        done = used.counters.since(before)
        assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
        if is_kept:  # small results share blocks of torch's allocator, which come in many orders
            assert len(bound) <= 5
        else:
            assert bound == []
        features.check()
        assert used.second_passes == 70
        assert all(map(torch.equal, found, expected))
    features.close()
