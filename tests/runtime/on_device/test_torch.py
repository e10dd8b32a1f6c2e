"""Tensors of torch in and out of an engine, on a GPU."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.support.foreign_arrays import SIZE, check_same, images, inputs
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from tests.support.torch_here import torch_with_cuda
from vgg16gpu import Engine
from vgg16gpu.errors import InputError


@pytest.fixture
def torch() -> Any:
    return torch_with_cuda()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg(size=SIZE).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


@pytest.mark.gpu
@pytest.mark.parametrize("element_type", ["float32", "uint8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_tensors_of_torch(torch: Any, model: Path, precision: str, element_type: str) -> None:
    with Engine(model, device="cuda", batch=(1, 4), precision=precision) as engine:
        for count in range(1, 6):
            x = inputs(element_type, count)
            check_same(engine, x, torch.from_numpy(x).cuda())
        tensor = torch.from_numpy(x).cuda()
        y = engine.run(tensor)
        for taken in (torch.as_tensor(y, device="cuda"), torch.from_dlpack(y)):
            assert taken.data_ptr() == y.row_address(0)
            assert_same_bits(taken.cpu().numpy(), engine.run(x))


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["current", "given", "handle"])
def test_streams_of_torch(torch: Any, model: Path, how: str) -> None:
    """The input is late: its stream has milliseconds of other work before it."""
    x = images(4)
    with Engine(model, device="cuda", batch=4) as engine:
        expected = engine.run(x)
        source, stream = torch.from_numpy(x).cuda(), torch.cuda.Stream()
        for _ in range(3):
            with torch.cuda.stream(stream):
                late = torch.full_like(source, torch.nan)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                late.copy_(source)
                if how == "current":
                    y = engine.run(late)
            if how != "current":
                y = engine.run(late, stream=stream if how == "given" else stream.cuda_stream)
            with torch.cuda.stream(stream):
                doubled = 2 * torch.as_tensor(y, device="cuda")
            stream.synchronize()
            assert_same_bits(doubled.cpu().numpy(), 2 * expected)


@pytest.mark.alone(reason="measures time on the GPU")
@pytest.mark.gpu
def test_other_streams_are_not_waited_for(torch: Any, model: Path) -> None:
    with Engine(model, device="cuda", batch=4) as engine:
        tensor, stream = torch.from_numpy(images(4)).cuda(), torch.cuda.Stream()
        engine.run(tensor)
        torch.cuda.synchronize()
        done = torch.cuda.Event()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000)
            done.record()
        y = engine.run(tensor)
        assert not done.query()
        assert len(y) == 4  # kept until here: to free it waits for all streams
        done.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_of_every_form_come_in(torch: Any, model: Path, dtype: str) -> None:
    tensor = torch.from_numpy(images(3)).cuda().to(getattr(torch, dtype))
    with Engine(model, device="cuda", batch=(1, 2)) as engine:
        expected = engine.run(tensor.float().cpu().numpy())
        for given in (
            tensor,
            tensor.to(memory_format=torch.channels_last),
            tensor.clone().requires_grad_(),
            torch.cat([tensor, tensor], 2)[:, :, :SIZE],
        ):
            for _ in range(3):  # launched singly, then as one graph
                assert_same_bits(engine.run(given).numpy(), expected)
        assert torch.from_dlpack(engine.run(tensor[:0])).shape == (0, *expected.shape[1:])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored without padding, and wide enough for the tensor cores of every layer but the first."""
    layers = (64, 64, "M", 128, "M")
    return torch_vgg(layers, 32, hidden=64, classes=20).save(tmp_path_factory.mktemp("models") / "wide.onnx")


@pytest.mark.gpu
def test_results_outlive_the_engine_and_then_go(torch: Any, model: Path) -> None:
    x = images(3)
    with Engine(model, device="cuda", batch=4) as engine:
        expected = engine.run(x)
        y = engine.run(torch.from_numpy(x).cuda())
    tensor = torch.from_dlpack(y)
    assert_same_bits(y.numpy(), expected)
    gone = weakref.ref(y._memory)
    del y
    gc.collect()
    assert gone() is not None
    assert_same_bits(tensor.cpu().numpy(), expected)
    del tensor
    assert gone() is None


@pytest.mark.gpu
def test_runs_that_nobody_waits_for(torch: Any, wide: Path) -> None:
    """On a stream with milliseconds of other work: it returns before that, and what comes behind finds the results."""
    stream = torch.cuda.Stream()
    x = torch.randn(4, 3, 32, 32, device="cuda")
    with Engine(wide, device="cuda", batch=4, precision="bf16", outputs=["relu0", "relu3"]) as engine:
        expected = [torch.from_dlpack(y).clone() for y in engine.run(x, form="stored")]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for cycles in (1, 1, 1, 200_000_000):  # torch, too, waits for the card where it does something first
                before = engine.counters
                torch.cuda._sleep(cycles)
                done = torch.cuda.Event()
                late = torch.where(torch.ones_like(x, dtype=torch.bool), x, torch.nan)
                done.record()
                out = tuple(torch.full_like(y, 7) for y in expected)
                engine.run(late, out=out, stream=stream, wait=False)
                doubled = [2 * y for y in out]
            assert not done.query()
            counted = engine.counters.since(before)
        assert (counted.copies_in, counted.copies_out, counted.synchronisations, counted.allocations) == (0, 0, 0, 0)
        stream.synchronize()
        assert all(torch.equal(y, 2 * right) for y, right in zip(doubled, expected, strict=True))
        engine.check()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_a_graph_that_torch_captures(torch: Any, wide: Path, precision: str) -> None:
    from vgg16gpu.io.shipped import digits_model

    model = digits_model() if precision == "int8" else wide
    with Engine(model, device="cuda", batch=4, precision=precision) as engine:
        x = torch.randn(4, *engine.program.input.shape[1:], device="cuda")
        expected = torch.from_dlpack(engine.run(x)).clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            engine.run(x, out=torch.empty_like(expected), stream=stream, wait=False)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = torch.empty_like(expected)
            engine.run(x, out=out, stream=torch.cuda.current_stream(), wait=False)
            doubled = 2 * out
        for _ in range(3):
            out.fill_(7)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(doubled, 2 * expected)
        x.copy_(x.flip(0))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(doubled.flip(0), 2 * expected)
        if engine.plan.second_passes:  # whatever the images of a replay hold
            x[2] *= 1e6
            expected = torch.from_dlpack(engine.run(x)).clone()
            before = engine.second_passes
            graph.replay()
            torch.cuda.synchronize()
            engine.check()
            assert engine.second_passes == before + 1
            assert torch.equal(out, expected)
            assert torch.equal(doubled, 2 * expected)
        x[1] = torch.nan
        graph.replay()
        torch.cuda.synchronize()
        with pytest.raises(InputError, match=r"image 1 .* holds NaN or Inf"):
            engine.check()
        assert bool(out[1].isnan().all())
        assert bool(out[0].isfinite().all())
