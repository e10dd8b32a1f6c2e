"""`Engine.vjp` on arrays that lie on the device: the host's bits, nothing copied, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, Placed, images, opened, pixels, read
from tests.support.kernel_harness import assert_same_bits, normal, seeded
from tests.support.onnx_models import torch_vgg
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, KernelError

STREAM = 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg(size=SIZE).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


def slopes(engine: Any, x: Any) -> list[Any]:
    y = engine.run(x)
    random = seeded("slopes")
    return [normal(random, *part.shape) for part in (y if isinstance(y, tuple) else (y,))]


@pytest.mark.parametrize("outputs", [None, ["flatten", "relu0"]], ids=str)
def test_the_same_bits_as_from_the_host(device: Device, model: Path, outputs: Any) -> None:
    with opened(model, device, batch=(1, 4), outputs=outputs, gradient=True) as engine:
        engine.run(Placed(engine.device, images(1)))  # what all runs on the device share is there
        for count in (5, 1, 3, 3):
            x = images(count)
            given = slopes(engine, x)
            expected = engine.vjp(x, given)
            placed, there = [Placed(engine.device, y) for y in given], Placed(engine.device, x)
            before = engine.counters
            found = engine.vjp(there, placed if outputs else placed[0])
            after = engine.counters.since(before)
            assert (after.copies_in, after.copies_out, after.allocations) == (0, 0, 1)
            assert found.shape == x.shape
            assert_same_bits(found.numpy(), expected)
        nothing = engine.vjp(Placed(engine.device, images(1)[:0]), [Placed(engine.device, y[:0]) for y in given])
        assert nothing.shape == (0, *x.shape[1:])


@pytest.mark.parametrize("precision", ["fp16"])
def test_of_which_nobody_waits(device: Device, model: Path, precision: str) -> None:
    options: Any = {"batch": (1, 4), "outputs": ["flatten", "relu0"], "gradient": True, "precision": precision}
    with opened(model, device, **options) as engine:
        x = images(5)
        placed, there = [Placed(engine.device, y) for y in slopes(engine, x)], Placed(engine.device, x)
        expected = engine.vjp(there, placed).numpy()
        out = Placed(engine.device, np.zeros(x.shape, np.float16))
        for _ in range(3):
            found = engine.vjp(there, placed, stream=STREAM, wait=False)
            engine.check()
            assert_same_bits(found.numpy(), expected)
            del found
            assert engine.vjp(there, placed, stream=STREAM, wait=False, out=out) is out
        engine.check()
        assert_same_bits(read(engine, out), expected.astype(np.float16))
        before = engine.counters
        for _ in range(3):
            engine.vjp(there, placed, stream=STREAM, wait=False)
            engine.vjp(there, placed, stream=STREAM, wait=False, out=out)
        done = engine.counters.since(before)
        assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
        assert done.launches > 0


def test_a_kernel_that_gave_up(device: Device, model: Path) -> None:
    with opened(model, device, gradient=True) as engine:
        x = images(1)
        given, there = [Placed(engine.device, y) for y in slopes(engine, x)], Placed(engine.device, x)
        engine.vjp(there, given, stream=STREAM, wait=False)
        engine.device.copy_in(engine._pending.found, np.array([3], np.uint32))
        with pytest.raises(KernelError, match=r"operator 3 of a run with wait=False: .*gave up"):
            engine.vjp(x, slopes(engine, x))
        engine.check()


def test_what_is_wrong_is_said(device: Device, model: Path) -> None:
    x = images(2)
    with opened(model, device) as engine, pytest.raises(InputError, match="build it with gradient=True"):
        engine.vjp(Placed(engine.device, x), Placed(engine.device, x))
    with opened(model, device, gradient=True) as engine:
        (given,) = slopes(engine, x)
        place = Placed(engine.device, x)
        with pytest.raises(InputError, match="a gradient of an output on the host; bring it there, too"):
            engine.vjp(place, given)
        with pytest.raises(InputError, match="wait=False is for arrays on the GPU"):
            engine.vjp(x, given, wait=False)  # type: ignore[call-overload]
        with pytest.raises(InputError, match="say on which stream"):
            engine.vjp(place, Placed(engine.device, given), wait=False)
        with pytest.raises(InputError, match=r"has shape \(2, .*\); for this input it is \(2, 3, 16, 16\)"):
            engine.vjp(place, Placed(engine.device, given), out=Placed(engine.device, given))
        with pytest.raises(InputError, match=r"the gradient of output '.*' is float32 \(1, "):
            engine.vjp(place, Placed(engine.device, given[:1]))
        with pytest.raises(InputError, match="2 gradients are given; the model has 1 outputs"):
            engine.vjp(place, [Placed(engine.device, given)] * 2)
        with pytest.raises(InputError, match="without a gradient; give float32"):
            engine.vjp(Placed(engine.device, pixels(2)), Placed(engine.device, given))
        assert_same_bits(engine.vjp(place, Placed(engine.device, given)).numpy(), engine.vjp(x, given))
