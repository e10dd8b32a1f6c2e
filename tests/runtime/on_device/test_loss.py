"""`LossEngine` on arrays that lie on the device: the host's bits, nothing copied, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.general.test_masked_gradient import decoded
from tests.kernels.layout.test_convert import encoded
from tests.support.foreign_arrays import SIZE, CpuForeign, Placed, images, pixels, read
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from tests.support.onnx_models import torch_vgg
from vgg16gpu import LossEngine
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.errors import InputError, KernelError
from vgg16gpu.program.types import OUTPUT_ELEMENTS, DType, TensorFormat
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.zoo.generate import make_vgg

STREAM = 0

TERMS: dict[str, Any] = {"layers": {"relu0": 1.0}, "style": {"relu0": 10.0}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg(size=SIZE).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


@contextmanager
def opened(model: Path, device: Device, **options: Any) -> Iterator[LossEngine]:
    with LossEngine(model, **TERMS, **options, device=device.facts.kind) as engine:
        if engine.device.foreign is None:
            engine.device.foreign = CpuForeign(engine.device)  # type: ignore[misc]
        yield engine


def stored_view(device: Device, array: Any, element: DType) -> StridedView:
    """An array as numbers of two bytes on the device."""
    address = Placed(device, encoded(array, element)).__cuda_array_interface__["data"][0]
    return StridedView(address, array.shape, TensorFormat().strides(array.shape), OUTPUT_ELEMENTS[element])


@pytest.mark.first_case(reason="the loss's own kernel tests have both elements")
@pytest.mark.parametrize("kernels", ["mma", "ffma"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_targets_of_two_bytes(device: Device, model: Path, precision: str, kernels: str) -> None:
    """They give what the same numbers give as float32; those of another element are taken in."""
    element = {"fp16": DType.F16, "bf16": DType.BF16}[precision]
    with opened(model, device, precision=precision, kernels=kernels) as engine:
        there, goal = Placed(engine.device, images(2)), Placed(engine.device, -images(2))
        map_target, gram_target = (target.numpy() for target in engine.targets(goal))
        rounded = Placed(engine.device, decoded(encoded(map_target, element), element))
        gram = Placed(engine.device, gram_target)
        expected = engine.value_and_gradient(there, (rounded, gram))
        found = engine.value_and_gradient(there, (stored_view(engine.device, map_target, element), gram))
        other = DType.F16 if element is DType.BF16 else DType.BF16
        again = engine.value_and_gradient(there, (stored_view(engine.device, rounded.array, other), gram))
        for ours, taken, others in zip(found, again, expected, strict=True):
            assert_same_bits(ours.numpy(), others.numpy())
            assert np.linalg.norm(taken.numpy() - others.numpy()) < 0.05 * np.linalg.norm(others.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_targets_are_made_of_what_features_are_stored_as(
    hopper: CudaDevice, tmp_path_factory: pytest.TempPathFactory, precision: str
) -> None:
    """On Hopper, of layers as wide as its kernels want: an image is no step away from itself."""
    path = tmp_path_factory.mktemp("wide") / "vgg.onnx"
    make_vgg(path, variant="vgg11", size=32, width=64, hidden=64, classes=10)
    del hopper
    with LossEngine(path, {"relu1_1": 1.0, "relu2_1": 0.5}, precision=precision, device="cuda") as engine:
        x, y = (normal(seeded(name), 2, 3, 32, 32) for name in "xy")
        there, goal = Placed(engine.device, x), Placed(engine.device, y)
        targets = engine.targets(goal)
        wanted = "bfloat16" if precision == "bf16" else "float32"  # of fp16 with what its rounding leaves
        assert [target.element_type for target in targets] == [wanted] * 2
        assert engine.target_types(x.shape) == (wanted,) * 2
        plain = [Placed(engine.device, target.numpy()) for target in targets]
        found, expected = (engine.value_and_gradient(there, given) for given in (targets, plain))
        for ours, others in zip(found, expected, strict=True):
            assert_same_bits(ours.numpy(), others.numpy())
        host = engine.value_and_gradient(x, engine.targets(y))
        np.testing.assert_allclose(found[0].numpy(), host[0], rtol=1e-5 if precision == "fp32" else 1e-2)
        assert not engine.value(there, engine.targets(there)).numpy().any()


def test_of_which_nobody_waits(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        x, y = images(5), np.ascontiguousarray(images(5)[::-1])
        there, goal = Placed(engine.device, x), Placed(engine.device, y)
        shapes = engine.target_shapes(x.shape, x.shape)
        targets = [Placed(engine.device, np.zeros(shape, np.float32)) for shape in shapes]
        wanted = engine.targets(y)
        expected = engine.value_and_gradient(x, wanted)
        out = [Placed(engine.device, np.zeros(shape, np.float32)) for shape in (x.shape[:1], x.shape)]
        later: Any = {"stream": STREAM, "wait": False}

        def steps() -> None:
            engine.targets(goal, out=targets, **later)
            engine.value_and_gradient(there, targets, out=out, **later)
            engine.value(there, targets, **later)

        for _ in range(3):
            steps()
        before = replace(engine.device.counters)
        steps()
        done = engine.device.counters.since(before)
        assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
        engine.check()
        for place, right in zip((*targets, *out), (*wanted, *expected), strict=True):
            assert_same_bits(read(engine, place), right)
        assert_same_bits(engine.value(there, targets, **later).numpy(), expected[0])
        engine.check()


def test_a_kernel_that_gave_up(device: Device, model: Path) -> None:
    with opened(model, device) as engine:
        x = images(1)
        there = Placed(engine.device, x)
        targets = engine.targets(there)
        engine.value(there, targets, stream=STREAM, wait=False)
        assert engine._pending
        engine.device.copy_in(engine._pending.found, np.array([3], np.uint32))
        with pytest.raises(KernelError, match=r"operator 3 of a run with wait=False: .*gave up"):
            engine.value(x, engine.targets(x))
        engine.check()


def test_what_is_wrong_is_said(device: Device, model: Path) -> None:
    with opened(model, device) as engine:
        x = images(2)
        there, targets = Placed(engine.device, x), engine.targets(x)
        with pytest.raises(InputError, match="the images lie on a GPU, and a target on the host"):
            engine.value(there, targets)
        with pytest.raises(InputError, match="wait=False is for arrays on the GPU"):
            engine.value(x, targets, wait=False)
        with pytest.raises(InputError, match="stream is for arrays on the GPU"):
            engine.targets(x, stream=STREAM)
        with pytest.raises(InputError, match="say on which stream"):
            engine.value(there, engine.targets(there), wait=False)
        with pytest.raises(InputError, match="out has 1 arrays; there are 2 targets"):
            engine.targets(there, out=[there])
        with pytest.raises(InputError, match="1 targets are given, and 2 are compared"):
            engine.value(there, engine.targets(there)[:1])
        with pytest.raises(InputError, match=r"the images are uint8 \(2, 16, 16, 3\); give float32 \(N, 3, H, W\)"):
            engine.targets(Placed(engine.device, pixels(2)))
        engine.device.foreign = None  # type: ignore[misc]
        with pytest.raises(InputError, match="this engine runs on the CPU"):
            engine.targets(there)
