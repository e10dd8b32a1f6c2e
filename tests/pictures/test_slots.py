"""pictures/slots.py: a ring that is bounded, first of ordinary memory, then of pinned."""

import threading

import numpy as np
import pytest

from vgg16gpu.pictures.slots import BufferPool, Closed, SampleRow


def pinned(nbytes):
    return np.zeros(nbytes, np.uint8)


def test_early_slots_are_used_once_and_pinned_ones_again():
    ring = BufferPool(64, 2)
    early = [ring.take(), ring.take()]
    assert not any(slot.is_pinned for slot in early)
    ring.pin(pinned, takes_pictures=True)
    assert ring.takes_pictures
    for slot in early:
        ring.give_back(slot)
    slots = [ring.take(), ring.take()]
    assert all(slot.is_pinned and len(slot.buffer) == 64 for slot in slots)
    assert not np.shares_memory(slots[0].buffer, slots[1].buffer)
    slots[0].rows.append(SampleRow(0, 0, "a", 0))
    slots[0].used = 9
    ring.give_back(slots[0])
    again = ring.take()
    assert again is slots[0]
    assert again.is_empty
    assert again.used == 0


@pytest.mark.parametrize("pins", [False, True])
def test_who_takes_too_many_waits(pins):
    ring = BufferPool(16, 1)
    if pins:
        ring.pin(pinned, takes_pictures=False)
    first, found = ring.take(), []
    waiting = threading.Thread(target=lambda: found.append(ring.take()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    if pins:
        ring.give_back(first)
    else:
        ring.pin(pinned, takes_pictures=False)  # one of ordinary memory does not come back
    waiting.join(5)
    assert found[0].is_pinned


def test_closing_wakes_who_waits_and_refuses_who_comes():
    ring = BufferPool(16, 1)
    ring.take()
    caught = []

    def take():
        try:
            ring.take()
        except Closed:
            caught.append(True)

    waiting = threading.Thread(target=take)
    waiting.start()
    ring.close()
    waiting.join(5)
    assert caught == [True]
    with pytest.raises(Closed):
        ring.take()
