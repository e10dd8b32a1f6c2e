"""Runs with wait=False: nothing is waited for, copied or allocated, and what was wrong is said later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.foreign_arrays import SIZE, Placed, images, opened
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from vgg16gpu.devices.base import Counters, Device
from vgg16gpu.errors import InputError, KernelError
from vgg16gpu.runtime.on_device import pending
from vgg16gpu.runtime.on_device.views import StridedView

LAYERS = ["relu0", "relu1", "pool2", "relu3", "output"]  # one more than one launch of the verdict takes
STREAM = 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg((64, 6, "M", 64, "M"), SIZE, hidden=9).save(tmp_path_factory.mktemp("models") / "vgg.onnx")


def numbers(found: Any) -> list[Any]:
    return [y.numpy() for y in found]


def later(engine: Any, x: Any, **options: Any) -> Any:
    return engine.run(x, stream=STREAM, wait=False, **options)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_same_bits_as_of_a_run_that_waits(device: Device, model: Path, count: int) -> None:
    with opened(model, device, batch=(1, 4), precision="fp16", kernels="mma", outputs=LAYERS) as engine:
        given = Placed(engine.device, images(4)[:count])
        for form in (None, "stored", "float16 channels_last"):
            expected = numbers(engine.run(given, form=form))
            for _ in range(3):
                found = later(engine, given, form=form)
                engine.check()
                for y, right in zip(numbers(found), expected, strict=True):
                    assert_same_bits(y.astype(np.float32), right.astype(np.float32))


def test_nothing_is_waited_for_copied_or_allocated(device: Device, model: Path) -> None:
    with opened(model, device, batch=2, outputs=LAYERS) as engine:
        given = [Placed(engine.device, images(2)), Placed(engine.device, 2 * images(2))]
        for _ in range(3):
            kept = [later(engine, x, form="stored") for x in given]
        engine.check()
        places = {y.row_address(0) for found in kept for y in found}
        assert len(places) == 2 * len(LAYERS)  # all alive at once
        del kept
        before = engine.counters
        for _ in range(5):
            kept = [later(engine, x, form="stored") for x in given]
            assert {y.row_address(0) for found in kept for y in found} == places
            del kept
        done = engine.counters.since(before)
        assert (done.copies_in, done.copies_out, done.synchronisations, done.allocations) == (0, 0, 0, 0)
        assert done.launches > 0
        engine.check()
        assert engine.counters.since(before).synchronisations == 1
        engine.check()  # nothing has been enqueued since
        assert engine.counters.since(before).synchronisations == 1


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("alternates", [False, True])
def test_a_loop_binds_nothing(
    device: Device, model: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, alternates: bool
) -> None:
    """Where results go before the next come, and where they are kept until these are there: then places alternate."""
    with opened(model, device, batch=2, outputs=LAYERS) as engine:
        given = Placed(engine.device, images(2))
        outs = [tuple(engine.run(given, form="stored")) for _ in range(2)]  # memory that an allocator hands out

        def loop(count: int) -> None:
            for i in range(count):
                engine.run(given, stream=STREAM, out=outs[i % 2 if alternates else 0], wait=waits)

        loop(6)  # the first time step by step, the second as one
        bound: list[int] = []
        monkeypatch.setattr(engine.device, "bind", lambda steps, *_, **__: bound.append(len(steps)))
        before = engine.counters
        loop(1)
        once = engine.counters.since(before).launches
        loop(9)
        assert engine.counters.since(before).launches == 10 * once
        assert engine.counters.since(before).allocations == 0
        assert bound == []


def test_places_are_taken_as_they_are(device: Device, model: Path) -> None:
    """What a binding of another library can make of its arrays by itself."""
    with opened(model, device, batch=2, outputs=LAYERS) as engine:
        given = Placed(engine.device, images(2))
        address = given.__cuda_array_interface__["data"][0]
        x = StridedView(address, (2, 3, SIZE, SIZE), (3 * SIZE * SIZE, SIZE * SIZE, SIZE, 1), "float32")
        expected, out = numbers(engine.run(given)), engine.run(given, form="stored")
        later(engine, x, out=tuple(replace(y.view, owner=None) for y in out))
        engine.check()
        assert all(map(np.array_equal, numbers(out), expected))


def test_the_callers_stream_waits_for_the_results(model: Path, device: Device) -> None:
    if device.facts.kind == "cuda":
        pytest.skip("the card's own streams are tested with torch")
    with opened(model, device) as engine:
        foreign: Any = engine.device.foreign
        given = Placed(engine.device, images(1))
        engine.run(given, stream=0x55)
        assert (foreign.followed, foreign.led) == ([0x55], [])
        engine.run(given, stream=0x66, wait=False)
        assert (foreign.followed, foreign.led) == ([0x55, 0x66], [0x66])
    with opened(model, device, gradient=True) as engine:
        foreign = engine.device.foreign
        slopes = Placed(engine.device, engine.run(images(1)))
        engine.vjp(given, slopes, stream=0x77, wait=False)
        assert (foreign.followed, foreign.led) == ([0x77], [0x77])


def test_rows_of_images_with_nan_are_nan_and_the_check_says_so(device: Device, model: Path) -> None:
    x = images(5)
    x[2, 0, 0, 0], x[4, 2, 5, 5] = np.nan, np.inf
    with opened(model, device, batch=2, outputs=LAYERS) as engine:
        right = numbers(engine.run(Placed(engine.device, images(5)), form="stored"))
        found = later(engine, Placed(engine.device, x), form="stored")
        with pytest.raises(InputError, match=r"image 2 \(counted from 0; the first such\) holds NaN or Inf"):
            engine.check()
        for y, wanted in zip(numbers(found), right, strict=True):
            assert np.isnan(y[[2, 4]]).all()
            assert_same_bits(y[[0, 1, 3]].copy(), wanted[[0, 1, 3]].copy())
        engine.check()  # it is forgotten
        later(engine, Placed(engine.device, x))
        with pytest.raises(InputError, match="image 2 "):
            engine.run(images(1))  # the next run that waits says it, too
        engine.run(images(1))


def test_a_kernel_that_gave_up(device: Device, model: Path) -> None:
    with opened(model, device, batch=2) as engine:
        found = later(engine, Placed(engine.device, images(2)))
        engine.device.copy_in(engine._pending.found, np.array([3], np.uint32))
        with pytest.raises(KernelError, match=r"operator 3 of a run with wait=False: .*gave up"):
            engine.check()
        assert len(found) == 2


def test_while_the_stream_captures(model: Path, device: Device) -> None:
    """Launch by launch, into memory of the caller, and only once all is there."""
    if device.facts.kind == "cuda":
        pytest.skip("the card's own captures are tested with torch")
    with opened(model, device, batch=2, outputs=LAYERS) as engine:
        foreign: Any = engine.device.foreign
        given = Placed(engine.device, images(2))
        shapes = [y.shape for y in engine.program.outputs]
        out = tuple(Placed(engine.device, np.zeros(shape, np.float32)) for shape in shapes)
        refused = r"captures a CUDA graph, .* give out=.*, and run once before"
        foreign.capturing = True
        with pytest.raises(InputError, match=refused):
            later(engine, given, out=out)  # nothing has run yet
        foreign.capturing = False
        engine.run(given)
        foreign.capturing = True
        with pytest.raises(InputError, match=refused):
            later(engine, given)
        foreign.capturing = False
        later(engine, given, out=out)
        foreign.capturing = True
        before = engine.counters
        later(engine, given, out=out)
        steps = len(engine.program.all_steps())
        assert engine.counters.since(before) == Counters(0, 0, engine.counters.since(before).launches, 0, 0)
        assert engine.counters.since(before).launches >= steps
        with pytest.raises(InputError, match="captures"):
            later(engine, given, form="stored")
        engine.device.copy_in(engine._pending.found, np.array([0, 0xFFFFFFFF - 1], np.uint32))  # as a replay would
        for _ in range(2):
            with pytest.raises(InputError, match="image 1 "):
                engine.check()
            engine.check()
            engine.device.copy_in(engine._pending.found, np.array([0, 0xFFFFFFFF - 1], np.uint32))


def test_what_does_not_go_together(device: Device, model: Path) -> None:
    with opened(model, device) as engine:
        with pytest.raises(InputError, match=r"wait=False returns before the work is done; say on which stream"):
            engine.run(Placed(engine.device, images(1)), wait=False)
        with pytest.raises(InputError, match="wait=False is for arrays on the GPU"):
            engine.run(images(1), wait=False)  # type: ignore[call-overload]
        engine.check()


class Anywhere:
    """Memory for results that nobody computes. made: bytes of all that was asked for."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def memory(self, nbytes: int) -> Any:
        self.made.append(nbytes)
        return SimpleNamespace(address=nbytes, read=None)


def test_of_sizes_that_came_once_nothing_is_left_beyond_the_bound(device: Device) -> None:
    given, foreign = pending.AsyncStatus(device), Anywhere()
    memory: Any = given.memory  # of whatever makes it
    given._bound = 10_000
    held: Any = []
    for nbytes in range(1000, 1500):
        held = memory(foreign, 0, nbytes)  # the one before it is let go
        spare = sum(size * len(free) for (_, size), free in given._free.items())
        assert spare == given._spare <= 10_000 + nbytes
        assert len(given._free) <= 11
    assert foreign.made == list(range(1000, 1500))
    del held
    again = [memory(foreign, 0, 1499), memory(foreign, 0, 1498), memory(foreign, 1, 1497)]
    assert foreign.made[500:] == [1497]  # of another stream
    assert all(given._free.values())
    given.close()
    del again
