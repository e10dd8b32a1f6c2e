"""Which plans stay on a device: the order, the bound in bytes, what is refused, and that all of it comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.plans.conftest import CUT, Card
from vgg16gpu import Engine
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import DeviceError, InputError

A, B, C = (16, 16), (24, 24), (32, 40)


def image(sides: tuple[int, int], count: int = 1) -> Any:
    return np.ones((count, 3, *sides), np.float32)


def open_engine(model: Model, card: Card, **options: Any) -> Engine:
    return Engine(model, device=Opened(card, "a test"), outputs=[CUT], **options)


def needs(model: Model, cpu: CpuDevice, *sizes: tuple[int, int]) -> int:
    """Bytes that an engine has on the device once it knows these sizes, the model's own among them."""
    with open_engine(model, Card(cpu)) as engine:
        for sides in sizes:
            engine.run(image(sides))
        return engine.sizes.nbytes


def test_what_was_used_longest_ago_goes_first(whole: Model, cpu: CpuDevice) -> None:
    bound = needs(whole, cpu, A, B)
    with open_engine(whole, Card(cpu), memory=bound) as engine:
        for sides in (A, B, (48, 48), A):
            engine.run(image(sides))
        assert engine.sizes.planned == (B, (48, 48), A)
        assert (engine.sizes.made, engine.sizes.dropped) == (3, 0)
        assert engine.sizes.nbytes == bound
        engine.run(image(C))
        assert engine.sizes.planned[-1] == C
        assert B not in engine.sizes.planned
        assert engine.sizes.nbytes <= bound
        dropped = engine.sizes.dropped
        assert dropped >= 1
        engine.run(image(B))  # planned again
        assert engine.sizes.planned[-1] == B
        assert engine.sizes.made == 5
        assert engine.sizes.dropped == engine.sizes.made - len(engine.sizes.planned) >= dropped


def test_half_of_what_is_free_is_the_bound_if_none_is_given(whole: Model, cpu: CpuDevice) -> None:
    both = needs(whole, cpu, A)
    for free, planned in ((2 * both, ((48, 48), A)), (2 * both - 2, (A,))):
        with open_engine(whole, Card(cpu, free)) as engine:
            engine.run(image(A))
            assert engine.sizes.planned == planned


def test_a_size_beyond_the_memory_is_refused_in_one_line_and_drops_nothing(whole: Model, cpu: CpuDevice) -> None:
    free = 4 * needs(whole, cpu, A)
    card = Card(cpu, free)
    with open_engine(whole, card, batch=(1, 2)) as engine:
        engine.run(image(A))
        before, used = engine.sizes, set(card.used)
        with pytest.raises(DeviceError) as refused:
            engine.run(image((800, 640)))
        message = str(refused.value)
        for words in (r"size 800x640 (height x width) in batches of 2 needs", f"{free / 1e6:.0f} MB are free in all"):
            assert words in message
        assert "\n" not in message
        assert (engine.sizes, card.used) == (before, used)
        assert np.isfinite(engine.run(image(A))).all()
    assert not card.used


def test_what_others_have_taken_meanwhile_is_made_room_for(whole: Model, cpu: CpuDevice) -> None:
    class Full(Card):
        fails = False

        def allocate(self, nbytes: int) -> Any:
            if self.fails and len(self.used) > 6:
                raise DeviceError("not enough memory")
            return super().allocate(nbytes)

    card = Full(cpu)
    with open_engine(whole, card) as engine:
        engine.run(image(A))
        engine.run(image(B))
        card.fails = True
        engine.run(image(C))
        assert engine.sizes.planned == (C,)


def test_a_size_with_a_stream_under_way_stays(whole: Model, cpu: CpuDevice) -> None:
    with open_engine(whole, Card(cpu), memory=1) as engine:
        expected = np.asarray(engine.run(image(A)))
        found = engine.stream([image(A)] * 5)
        next(found)
        engine.run(image(B))
        assert engine.sizes.planned == (A, B)
        for y in found:
            assert (np.asarray(y) == expected).all()
        engine.run(image(C))
        assert engine.sizes.planned == (C,)


@pytest.mark.parametrize("memory", [0, -1, True, 1.5, "1 GB"])
def test_a_bound_is_a_number_of_bytes(whole: Model, memory: Any) -> None:
    with pytest.raises(InputError, match=r"memory .*: give a number of bytes"):
        Engine(whole, device="cpu", memory=memory)
