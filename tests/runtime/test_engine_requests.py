"""What an engine is asked: names, several values, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_harness import assert_same_bits
from tests.support.narrow_vgg import images, run
from vgg16gpu import Engine
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError, InputError, ModelError
from vgg16gpu.zoo.digits import heldout


@pytest.fixture(scope="module")
def engine(models: dict[str, Path]) -> Iterator[Engine]:
    with closing(Engine(models["vgg16-48"], device="cpu", batch=2)) as opened:
        yield opened


ACCEPTED = r"this model takes float32 \(N, 3, 48, 48\) or uint8 \(N, 48, 48, 3\)"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((1, 3, 48, 47), np.float32), rf"input 'input' is float32 \(1, 3, 48, 47\); {ACCEPTED}"),
        (np.zeros((3, 48, 48), np.float32), ACCEPTED),
        (np.zeros((1, 48, 48, 3), np.float32), ACCEPTED),
        (np.zeros((1, 3, 48, 48), np.uint8), ACCEPTED),
        (np.zeros((1, 3, 48, 48)), rf"is float64 .*; {ACCEPTED}"),
        (np.float32(1), ACCEPTED),
        ({"data": np.zeros((1, 3, 48, 48), np.float32)}, r"inputs \['data'\]: this model has one input, 'input'"),
        ({}, r"inputs \[\]: this model has one input, 'input'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(engine: Engine, x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine.run(x)


def test_nan_and_infinity_are_refused_by_number(device: Device, model: Path) -> None:
    x = images(5)
    with Engine(model, device=device.facts.kind, batch=2) as engine:
        for bad in (np.nan, np.inf, -np.inf):
            x[2, 0, 0, 0] = x[4, 2, 47, 47] = bad
            with pytest.raises(InputError, match=r"input 2, 4 of 5 \(counted from 0\) holds NaN or Inf; .*allow"):
                engine.run(x)
        assert np.isfinite(run(engine, images(5))).all()


def test_values_are_there_only_if_kept(engine: Engine) -> None:
    with pytest.raises(InputError, match="keep_values=True"):
        next(iter(engine.read_values()))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "fp64"}, ModelError, "precision 'fp64' is not supported; accepted: fp32"),
        ({"batch": 0}, InputError, "batch 0: give one size, or several, each between 1 and 65535"),
        ({"batch": []}, InputError, "batch"),
        ({"batch": [1, 65536]}, InputError, "batch"),
        ({"size": 64}, ModelError, "image size is fixed to 48x48"),
        ({"outputs": ["nonesuch"]}, ModelError, "nonesuch"),
        ({"mean": (0.5,)}, InputError, "give one finite number for each of 3 channels"),
        ({"mean": (10**400,) * 3}, InputError, "give one finite number for each of 3 channels"),
        ({"size": 10**5000}, ModelError, "is too large; give at most 2147483647 pixels"),
        ({"std": (1, 1, 0)}, InputError, "std above zero"),
        ({"device": "tpu"}, DeviceError, "unknown device 'tpu'; accepted: auto, cpu, cuda"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(
    model: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine(model, **{"device": "cpu", **options})


# ---- What an array may be


def test_byte_order_does_not_matter(model: Path) -> None:
    x = images(2)
    with Engine(model, device="cpu", batch=2) as engine:
        assert_same_bits(run(engine, x.astype(">f4")), run(engine, x))


def test_half_precision_is_widened(model: Path) -> None:
    x = images(2).astype(np.float16)
    with Engine(model, device="cpu", batch=2) as engine:
        expected = run(engine, x.astype(np.float32))
        assert_same_bits(run(engine, x), expected)
        assert_same_bits(run(engine, x.astype(">f2")), expected)
        assert_same_bits(next(engine.stream([x])), expected)
        x[1, 0, 0, 0] = np.inf
        with pytest.raises(InputError, match="input 1 of 2"):
            engine.run(x)


def test_what_is_no_plain_array_is_refused(model: Path) -> None:
    with Engine(model, device="cpu") as engine:
        with pytest.raises(InputError, match=r"masked array.*x\.filled"):
            engine.run(np.ma.masked_invalid(images(1)))
        with pytest.raises(InputError, match="is not an array"):
            engine.run([[1, 2], [3]])
        with pytest.raises(InputError, match=r"float64.*convert it with x\.astype\(np\.float32\)"):
            engine.run(images(1).astype(np.float64))
        with pytest.raises(InputError, match="this model has one input, 'input'"):
            engine.run({"foo": images(1), 1: images(1)})


def test_values_are_of_the_batch_that_ran_last(model: Path) -> None:
    x = images(3)
    with Engine(model, device="cpu", batch=(1, 2), keep_values=True) as engine:
        with pytest.raises(InputError, match="before the first run"):
            next(engine.read_values())
        engine.run(x[:2])
        engine.run(x[2:])
        last = {names[-1]: array for names, array in engine.read_values()}
        assert_same_bits(last["output"], run(engine, x[2:]))
        assert_same_bits(last["input"], x[2:])


def test_the_device_is_closed_even_if_freeing_fails(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model, device="cpu")
    closed = []
    monkeypatch.setattr(engine.device, "free", lambda _: (_ for _ in ()).throw(DeviceError("no such memory")))
    monkeypatch.setattr(engine.device, "close", lambda: closed.append(True))
    with pytest.raises(DeviceError, match="no such memory"):
        engine.close()
    assert closed == [True]
    engine.close()


def test_an_unknown_kind_of_device_is_refused(model: Path) -> None:
    for device in (None, 0):
        with pytest.raises(DeviceError, match=f"unknown device {device}; accepted: auto"):
            Engine(model, device=device)


def test_it_says_what_it_is_and_calling_it_is_running_it() -> None:
    x = heldout()[1][:2]
    with Engine("digits", device="cpu", batch=(1, 2), precision="fp16") as engine:
        text = repr(engine)
        for part in ("Engine(", "digits.onnx on ", ", fp16, batch 1, 2;", "(N, 1, 32, 32) -> output: float32 (N, 10))"):
            assert part in text
        assert "closed" not in text
        assert_same_bits(engine(x), engine.run(x))
    assert ", closed;" in repr(engine)
