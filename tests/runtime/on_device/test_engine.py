"""An engine on arrays that lie on its device: the host's bits, no copies, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, ByInterface, Placed, check_same, images, inputs, opened, read
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from tests.support.small_models import model as model_of
from tests.support.small_models import node, normal, value
from vgg16gpu import Engine
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.errors import InputError, KernelError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg(size=SIZE).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


@pytest.mark.parametrize("element_type", ["float32", "uint8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_same_bits_as_from_the_host(device: Device, model: Path, precision: str, element_type: str) -> None:
    with opened(model, device, batch=(1, 4), precision=precision) as engine:
        for count in (5, 1, 4, 2, 3):
            x = inputs(element_type, count)
            check_same(engine, x, Placed(engine.device, x))
        check_same(engine, x, {"input": Placed(engine.device, x, shift=1 if element_type == "uint8" else 4)})
        check_same(engine, x, Placed(engine.device, x), stream=1)


@pytest.mark.parametrize(
    ("element_type", "count", "shift", "is_copied"),
    [
        ("float32", 4, 0, False),
        ("uint8", 4, 0, False),
        ("float32", 3, 0, True),  # zeros have to be behind them
        ("float32", 4, 4, True),  # not at an address that kernels read vectors from
    ],
)
def test_images_are_read_where_they_are(
    device: Device,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    element_type: str,
    count: int,
    shift: int,
    *,
    is_copied: bool,
) -> None:
    with opened(model, device, batch=4) as engine:
        x, bound, bind = inputs(element_type, count), list[str](), engine.device.bind

        def recording(steps: Any, bases: Any, **how: bool) -> Any:
            bound.extend(step.label for step in steps)
            return bind(steps, bases, **how)

        monkeypatch.setattr(engine.device, "bind", recording)
        given = Placed(engine.device, x, shift=shift)
        check_same(engine, x, given)
        assert ("images from an array" in bound) is is_copied
        assert ("control words" in bound) is not is_copied
        found = np.empty_like(x)
        engine.device.copy_out(found, given.__cuda_array_interface__["data"][0])
        engine.device.synchronize()
        assert np.array_equal(found, x)


def a_number_for_each_image() -> Any:
    """A net whose output is a vector."""
    weights = [("w", normal(4, 3, 3, 3)), ("v", normal(4, 1)), ("axis", np.array([1], np.int64))]
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "v"], ["g"]),
        node("Squeeze", ["g", "axis"], ["y"]),
    ]
    return model_of(nodes, [value("x", ["n", 3, SIZE, SIZE])], [value("y", ["n"])], weights)


def test_a_vector_gets_a_number_for_each_image_and_no_more(device: Device) -> None:
    with opened(a_number_for_each_image(), device, batch=4) as engine:
        behind = np.full(16, 7, np.float32)
        for count in (1, 2, 3, 4, 6):
            x, room = images(count), Placed(engine.device, behind)
            out = ByInterface(behind[:count], data=room.__cuda_array_interface__["data"])
            for _ in range(2):
                engine.run(Placed(engine.device, x), out=out)
                left = read(engine, room)
                assert_same_bits(left[:count], engine.run(x))
                assert_same_bits(left[count:], behind[count:])


def test_a_stream_takes_arrays_from_both_places_in_their_order(device: Device, model: Path) -> None:
    with opened(model, device, batch=(1, 4)) as engine:
        given = [images(count) for count in (2, 1, 5, 3)]
        expected = [engine.run(x) for x in given]
        items = [given[0], Placed(engine.device, given[1]), {"input": Placed(engine.device, given[2])}, given[3]]
        for x, found, wanted in zip(given, engine.stream(items), expected, strict=True):
            if isinstance(found, np.ndarray):
                assert_same_bits(found, wanted)
            else:
                assert_same_bits(found.numpy(), wanted)
                assert found.shape[0] == len(x)


def test_what_leaves_the_range_of_float16(device: Device, model: Path) -> None:
    x = images(3)
    x[1] *= np.float32(3e4)
    with opened(model, device, batch=2, precision="fp16", kernels="mma") as engine:
        with pytest.raises(InputError, match=r"input 1 of 3 \(counted from 0\): values leave the range of float16"):
            engine.run(Placed(engine.device, x))
        assert engine.second_passes == 0


@pytest.mark.usefixtures("second_passes")
@pytest.mark.parametrize("element_type", ["uint8"])
def test_images_out_of_range_are_run_again(device: Device, model: Path, element_type: str) -> None:
    x = inputs(element_type, 5)
    with opened(model, device, batch=(1, 4), precision="fp16", kernels="mma") as engine:
        expected = engine.run(x)
        assert engine.second_passes == 5
        given = Placed(engine.device, x)
        engine.run(given)  # the first one gets what all runs share
        before = engine.counters
        found = engine.run(given)
        assert engine.second_passes == 15
        launches = {program.batch: len(program.all_steps(element_type)) + 2 for program in engine.plan.programs}
        total = launches[4] + 6 * launches[1]
        assert engine.counters.since(before) == Counters(0, 0, total, 7, 1)
        assert_same_bits(found.numpy(), expected)


def test_a_kernel_that_gave_up(device: Device, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(model, device, batch=2) as engine:
        given = Placed(engine.device, images(2))
        word = engine.executor.returned[:4].view(np.int32)
        synchronize = engine.device.synchronize

        def fail() -> None:
            synchronize()
            word[0] = 1

        monkeypatch.setattr(engine.device, "synchronize", fail)
        with pytest.raises(KernelError, match=r"operator 1 .*gave up"):
            engine.run(given)


def test_what_does_not_fit_the_model(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        with pytest.raises(
            InputError, match=r"input 'input' is float32 \(1, 3, 8, 8\); this model takes float32 \(N, 3,"
        ):
            engine.run(Placed(engine.device, np.zeros((1, 3, 8, 8), np.float32)))
        with pytest.raises(InputError, match=r"is float64 .*; convert it with x\.float\(\) in torch, x\.astype"):
            engine.run(Placed(engine.device, images(1).astype(np.float64)))
        with pytest.raises(InputError, match="stream is for arrays on the GPU, and this input is on the host"):
            engine.run(images(1), stream=1)  # type: ignore[call-overload]
        given = Placed(engine.device, images(1))
    with pytest.raises(InputError, match="the engine is closed"):
        engine.run(given)


def test_an_engine_on_the_cpu_takes_no_array_on_a_gpu(model: Path) -> None:
    with (
        Engine(model, device="cpu") as engine,
        pytest.raises(InputError, match="lies on a GPU, this engine runs on the CPU; build it with device='cuda'"),
    ):
        engine.run(ByInterface(images(1)))
