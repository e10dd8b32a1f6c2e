"""Tensors of torch in and out of an engine, on a GPU."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, ByInterface, check_same, images, inputs
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from tests.support.torch_here import torch_with_cuda
from vgg16gpu import Engine
from vgg16gpu.compiler.lowering.wgmma import has_wgmma
from vgg16gpu.devices.cuda.foreign import CudaMemory
from vgg16gpu.errors import DeviceError, InputError


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


@pytest.mark.alone
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
def test_tensors_that_are_refused(torch: Any, model: Path) -> None:
    tensor = torch.from_numpy(images(2)).cuda()
    with Engine(model, device="cuda") as engine:
        with pytest.raises(InputError, match=r"is not contiguous; use x\.contiguous\(\)"):
            engine.run(tensor.to(memory_format=torch.channels_last))
        with pytest.raises(InputError, match="gradient"):
            engine.run(tensor.clone().requires_grad_())
        with pytest.raises(InputError, match=r"convert it with x\.float\(\)"):
            engine.run(tensor.half())
        with pytest.raises(InputError, match="its address is none there"):
            engine.run(ByInterface(images(1)))
        with pytest.raises(InputError, match="bfloat16"):
            engine.run(tensor.bfloat16())
    with Engine(model, device="cpu") as engine, pytest.raises(InputError, match="this engine runs on the CPU"):
        engine.run(tensor)


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


@pytest.mark.alone
@pytest.mark.gpu
def test_large_results_are_freed(torch: Any) -> None:
    def free() -> int:
        return int(torch.cuda.mem_get_info()[0])

    def is_freed() -> bool:
        before = free()
        held = CudaMemory(0, 1 << 30)
        taken = before - free()
        del held
        return taken >= 1 << 29 and before - free() < 1 << 29

    torch.cuda.synchronize()
    assert any(is_freed() for _ in range(5))  # others use the card too
    with pytest.raises(
        DeviceError, match=r"no [0-9,]+ bytes for results on cuda:0 \(cuMemAlloc_v2 failed: .*free memory"
    ):
        CudaMemory(0, 1 << 50)


@pytest.mark.gpu
def test_a_second_pass_of_pairs(torch: Any, tmp_path: Path) -> None:
    model = torch_vgg((64, 64, "M", 128, "M"), SIZE, hidden=128, classes=20).save(tmp_path / "wide.onnx")
    with Engine(model, device="cuda", batch=(1, 4)) as engine:
        if not has_wgmma(engine.device.facts):
            pytest.skip("fp32 runs on float32 kernels here")
        x = images(5)
        x[1] *= np.float32(1e6)
        x[4] *= np.float32(1e-7)
        expected = engine.run(x)
        again = engine.second_passes
        assert again >= 1
        y = engine.run(torch.from_numpy(x).cuda())
        assert engine.second_passes == 2 * again
        assert_same_bits(y.numpy(), expected)


@pytest.mark.gpu
def test_int8(torch: Any) -> None:
    from vgg16gpu.io.shipped import digits_model
    from vgg16gpu.zoo.digits import heldout

    digits = heldout()[1][:5]
    with Engine(digits_model(), device="cuda", batch=(1, 4), precision="int8") as engine:
        check_same(engine, digits, torch.from_numpy(digits).cuda())
