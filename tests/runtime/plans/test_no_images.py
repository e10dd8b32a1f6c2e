"""Batches without images: results have no rows, there and back, on the host and on the device; nothing is launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import CpuForeign, Placed
from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images
from vgg16gpu import Engine, LossEngine
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}
STYLE = {"relu2_2": 10.0}
NONE = np.zeros((0, 3, 48, 48), np.float32)


def as_on_a_card(engine: Any) -> Any:
    """On the cpu device memory of its own stands for a card's."""
    if engine.device.foreign is None:
        engine.device.foreign = CpuForeign(engine.device)
    return engine


@contextmanager
def launching_nothing(engine: Any) -> Iterator[None]:
    """Whoever would launch kernels of the device meanwhile fails."""

    def refuse(*_: object) -> Any:
        raise AssertionError("something is launched")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.device, "bind", refuse)
        patch.setattr(engine.device, "round_trip", refuse)
        yield


def host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.numpy()


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("options", [{}, {"outputs": ["relu1_2", "relu2_2"]}])
def test_an_engine(device: Device, model: Path, where: str, options: dict[str, Any]) -> None:
    with Engine(model, device=device.facts.kind, batch=[1, 2], gradient=True, **options) as engine:
        given: Any = NONE if where == "host" else Placed(as_on_a_card(engine).device, NONE)
        with launching_nothing(engine):
            found: Any = engine.run(given)
            outputs = found if isinstance(found, tuple) else (found,)
            gradient = engine.vjp(given, list(outputs))
        assert [y.shape for y in outputs] == [(0, *y.shape[1:]) for y in engine.program.outputs]
        assert_same_bits(host(gradient), NONE)
        one: Any = images(1) if where == "host" else Placed(engine.device, images(1))
        slopes = engine.run(one)
        assert host(engine.vjp(one, slopes)).any()


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("mean", [False, True])
def test_a_loss(device: Device, model: Path, where: str, mean: bool) -> None:
    with LossEngine(model, LAYERS, STYLE, device=device.facts.kind) as engine:
        as_on_a_card(engine)

        def there(array: Any) -> Any:
            return array if where == "host" else Placed(engine.device, array)

        none = there(NONE)
        with launching_nothing(engine):
            targets = engine.targets(none)
            loss, gradient = engine.value_and_gradient(none, targets, mean=mean)
            assert host(engine.value(none, targets, mean=mean)).shape == (0,)
        assert [host(target).shape for target in targets] == [(0, 2304, 8), (0, 576, 16), (0, 16, 16)]
        assert [shape[0] for shape in engine.target_shapes(NONE.shape)] == [0, 0, 0]
        assert_same_bits(host(loss), np.zeros(0, np.float32))
        assert_same_bits(host(gradient), NONE)
        one = engine.targets(there(images(1)))
        assert host(engine.value(none, one)).shape == (0,)  # one for all of none
        assert host(engine.value(there(images(2)), one)).shape == (2,)
        with pytest.raises(InputError, match=r"the target of 'relu1_2' is float32 \(0, 2304, 8\); for images of shape"):
            engine.value(there(images(2)), targets)
