"""lab/exercises/log.py: sectors, counts and races of logs that are made here."""

import numpy as np

from vgg16gpu_lab.exercises.log import Noted, read_log

X, SHARED = 4096, 0
ARRAYS = {"x": (X, 4096)}


def log(*entries, count=None):
    """Of (block, thread, what, place)."""
    words = np.zeros(1 + 2 * len(entries), np.uint64)
    words[0] = len(entries) if count is None else count
    for at, (block, thread, what, place) in enumerate(entries):
        words[1 + 2 * at], words[2 + 2 * at] = block << 32 | thread << 8 | what, place
    return read_log(words, ARRAYS)


def reads(offsets, block=0, first=0):
    return [(block, first + lane, Noted.READ, X + offset) for lane, offset in enumerate(offsets)]


def test_sectors():
    side_by_side, apart = [4 * lane for lane in range(32)], [128 * lane % 4096 for lane in range(32)]
    assert log(*reads(side_by_side)).sectors(Noted.READ, "x") == 4
    assert log(*reads([offset + 4 for offset in side_by_side])).sectors(Noted.READ, "x") == 5
    assert log(*reads(apart)).sectors(Noted.READ, "x") == 32
    assert log(*reads(side_by_side), *reads(apart)).sectors(Noted.READ, "x") == 18
    two_warps = [*reads(side_by_side), *reads([0] * 32, first=32), *reads([0], block=1)]
    assert log(*two_warps).sectors(Noted.READ, "x") == 2
    assert log().sectors(Noted.READ, "x") == 0


def barrier(thread, line):
    return (0, thread, Noted.BARRIER, line)


def test_races():
    write, read = (0, 0, Noted.WRITE, SHARED), (0, 1, Noted.READ, SHARED)
    assert str(log(write, read).race()) == (
        "thread 0 writes what thread 1 reads, with no barrier between them from the start of the kernel on"
    )
    both = [barrier(0, 7), barrier(1, 7)]
    assert log(write, *both, read).race() is None
    again = log(write, *both, read, write).race()
    assert (again.writer, again.other, again.other_writes, again.line) == (0, 1, False, 7)
    assert log(write, (0, 1, Noted.WRITE, SHARED)).race().other_writes
    assert log(write, (1, 1, Noted.READ, SHARED)).race() is None  # of another block
    assert log(write, (0, 0, Noted.READ, SHARED)).race() is None  # itself
    assert log(read, (0, 2, Noted.READ, SHARED)).race() is None  # nobody writes
    assert log((0, 0, Noted.ATOMIC, SHARED), (0, 1, Noted.ATOMIC, SHARED)).race() is None
    assert log((0, 0, Noted.WRITE, X), (0, 1, Noted.READ, X)).race() is None  # global memory
