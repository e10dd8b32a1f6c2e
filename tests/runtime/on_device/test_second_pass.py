"""Second passes behind runs with wait=False: images out of range have the bits of a run that waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, Placed, images, opened, read
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import Model, random_input, torch_vgg
from tests.support.second_passes import plan_float16_with_second_passes
from vgg16gpu import Engine
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError

LAYERS = ["relu0", "relu1", "pool2", "relu3", "output"]  # one more than one launch of the verdict takes
STREAM = 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg((64, 6, "M", 64, "M"), SIZE, hidden=9).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_float16_with_second_passes(monkeypatch)


@contextmanager
def engine_of(model: Path, device: Device, **options: Any) -> Iterator[Engine]:
    with opened(model, device, **{"precision": "fp16", "kernels": "mma", "outputs": LAYERS, **options}) as engine:
        assert [program.batch for program in engine.plan.second_passes] == [
            program.batch for program in engine.plan.programs
        ]
        yield engine


def strange(count: int, *chosen: int) -> Any:
    """Images, of which some leave the range of float16."""
    x = images(count)
    x[list(chosen)] *= np.float32(3e4)
    return x


def numbers(found: Any) -> list[Any]:
    return [y.numpy().astype(np.float32) for y in (found if isinstance(found, tuple) else (found,))]


def later(engine: Any, x: Any, **options: Any) -> Any:
    return engine.run(x, stream=STREAM, wait=False, **options)


def assert_all_same(found: Any, expected: Any, rows: Any = slice(None)) -> None:
    for y, right in zip(numbers(found), numbers(expected), strict=True):
        assert np.isfinite(right[rows]).all()
        assert_same_bits(y[rows].copy(), right[rows].copy())


def test_fewer_images_than_the_batch(device: Device, model: Path) -> None:
    """Ask that nothing of an earlier batch is read; each way of the engine has the bits of a run that waits."""
    count = 2
    with engine_of(model, device, batch=4) as engine:
        later(engine, Placed(engine.device, strange(4, 0, 1, 2, 3)))
        engine.check()
        given = Placed(engine.device, strange(count, count - 1))
        found = later(engine, given)
        engine.check()
        assert engine.second_passes == 5
        assert_all_same(found, engine.run(given))


def test_rows_of_nan_beside_rows_that_were_run_again(device: Device, model: Path) -> None:
    x = strange(4, 1, 3)
    x[2, 0, 0, 0] = x[3, 0, 0, 0] = np.nan
    with engine_of(model, device, batch=4) as engine:
        expected = engine.run(Placed(engine.device, strange(4, 1)))
        found = later(engine, Placed(engine.device, x))
        with pytest.raises(InputError, match=r"image 2 \(counted from 0; the first such\) holds NaN or Inf"):
            engine.check()
        assert engine.second_passes == 2  # one each
        assert_all_same(found, expected, [0, 1])
        assert all(np.isnan(y[[2, 3]]).all() for y in numbers(found))


def test_what_has_no_row_for_each_image_is_replaced_as_a_whole(device: Device, tmp_path: Path) -> None:
    made = Model((1, 64, 13, 11))
    made.node("Transpose", [made.conv("input", "c", 64, 5)], "t", perm=[0, 2, 3, 1])
    made.node("Reshape", ["t", made.constant("shape", np.array([-1, 5]))], "y")
    path = made.save(tmp_path / "model.onnx")
    with engine_of(path, device, outputs=["c", "y"]) as engine:
        for factor in (1, 1e5):
            given = Placed(engine.device, random_input((1, 64, 13, 11)) * np.float32(factor))
            expected, again = engine.run(given), engine.second_passes
            found = later(engine, given)
            engine.check()
            assert engine.second_passes == 2 * again == (0 if factor == 1 else 2)
            assert_all_same(found, expected)


def test_a_stream_that_captures_finds_all_kernels_loaded(
    device: Device, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one run that was waited for."""
    if device.facts.kind == "cuda":
        pytest.skip("the card's own captures are tested with torch")
    with engine_of(model, device, batch=2) as engine:
        foreign: Any = engine.device.foreign
        given = Placed(engine.device, strange(2, 1))
        expected = engine.run(given)
        out = tuple(Placed(engine.device, np.zeros(y.shape, np.float32)) for y in expected)
        loaded, built = set(engine.device._kernels), set[Any]()  # type: ignore[attr-defined]
        monkeypatch.setattr(engine.device, "build", built.update)
        foreign.capturing = True
        before = engine.counters
        later(engine, given, out=out)
        names = {kernel.name for kernel in built}
        assert {"take_dense", "settle", "conv_direct_f32"} <= names <= {kernel.name for kernel in loaded}
        assert built <= loaded
        done = engine.counters.since(before)
        assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
        foreign.capturing = False
        engine.check()
        for y, right in zip(out, numbers(expected), strict=True):
            assert_same_bits(read(engine, y), right)
