"""runtime/counting.py and calibration.py: the scales are, to the bit, those of counting on the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, inputs
from tests.support.narrow_vgg import images, pixels
from tests.support.onnx_models import torch_vgg
from vgg16gpu import Engine
from vgg16gpu.compiler.quantization.scheme import Histogram, quantised_inputs
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.pictures.inputs import NamedInput, batched
from vgg16gpu.program.types import DType
from vgg16gpu.runtime.calibration import Calibration, Counting, calibrate, calibration_engine


def named(arrays: Sequence[Any]) -> list[NamedInput]:
    return [NamedInput(str(i), array) for i, array in enumerate(arrays)]


def on_the_host(engine: Engine, inputs: Sequence[NamedInput]) -> dict[str, Histogram]:
    """Every value of every image read, one image after the other."""
    found = {name: Histogram() for name in quantised_inputs(engine.graph)}
    for (item,) in batched(inputs, 1):
        engine.run(item.array[None])
        for names, array in engine.read_values():
            if names[-1] in found:
                found[names[-1]].add(array[:1], names[-1])
    return found


def check(engine: Engine, inputs: Sequence[NamedInput]) -> Calibration:
    made = calibrate(engine, inputs)
    signed = quantised_inputs(engine.graph)
    expected = on_the_host(engine, inputs)
    assert list(made.values) == list(expected)
    for name, histogram in expected.items():
        value, scale = made.values[name], histogram.best_scale(signed=signed[name])
        assert (value.scale, value.largest) == (scale, histogram.largest), name
        assert value.clipped == histogram.clipped_share(scale), name
    assert made.images == len(inputs)
    return made


def test_pixels_and_numbers_and_batches_that_are_not_full(device: Device, model: Path) -> None:
    mixed = [*pixels(3), *images(5), *pixels(1)]
    options = {"device": device.facts.kind, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    with calibration_engine(model, batch=2, **options) as engine:
        check(engine, named(mixed))


def test_an_engine_of_several_sizes_counts_every_image(device: Device, model: Path) -> None:
    """Three images at sizes 2 and 4 could be run as 2 and 1, and what is kept is of the last run."""
    given = named(images(7))
    with calibration_engine(model, device=device.facts.kind, batch=(2, 4)) as engine:
        several = check(engine, given)
    with calibration_engine(model, device=device.facts.kind) as engine:
        assert calibrate(engine, given) == several


def test_values_of_another_element_are_counted_on_the_host() -> None:
    options: Any = {"precision": "fp16", "kernels": "mma", "batch": 2, "keep_values": True}
    with Engine(torch_vgg(size=SIZE).proto(), device="cpu", **options) as engine:
        check(engine, named(inputs("float32", 3)))
        assert DType.F16 in {value.element for _, value in engine.kept_values()}


@pytest.mark.parametrize("value", [3e38])
def test_the_first_value_that_is_not_finite_is_named(device: Device, model: Path, value: float) -> None:
    """In the batch in which it is, as when each was read."""
    good, bad = images(3), np.full_like(images(1), value)
    options = {"device": device.facts.kind, "allow_nonfinite": True}
    messages = []
    for count in (calibrate, on_the_host):
        read: list[int] = []
        given = (read.append(i) or item for i, item in enumerate(named([*good[:1], *bad, *good[1:]])))
        with calibration_engine(model, **options) as engine, pytest.raises(InputError, match="NaN or inf") as refused:
            count(engine, given if count is calibrate else list(given))
        messages.append(str(refused.value))
        assert count is on_the_host or read[-1] < 3
    assert messages[0] == messages[1]


def test_memory_is_given_back(model: Path) -> None:
    with calibration_engine(model, device="cpu") as engine:
        held: set[int] = set()
        allocate, free = engine.device.allocate, engine.device.free

        def allocated(nbytes: int) -> int:
            held.add(address := allocate(nbytes))
            return address

        engine.device.allocate, engine.device.free = allocated, lambda address: (held.remove(address), free(address))
        with Counting(engine, ["input"]) as counting:
            assert len(held) == 1
            with pytest.raises(InputError, match="no values before the first run"):
                counting.add(1)
        assert not held
        engine.device.allocate, engine.device.free = allocate, free
