"""pictures/loading/processes.py: what processes load is what threads load, whatever happens to them."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing, list_files
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.pictures.loading.processes import ProcessLoader
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.pictures.slots import BufferPool, ordinary

SPEC = InputSpec((3, 16, 16), preprocess=Preprocess.named("unit"))
NBYTES = 30_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of many sizes, some broken, with names of all kinds; one larger than a slot."""
    path = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    for i in range(60):
        pixels = chance.integers(0, 256, (*chance.integers(16, 90, 2), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{i:02}.{'jpg' if i % 3 else 'png'}")
    Image.fromarray(np.full((200, 210, 3), 90, np.uint8)).save(path / "07 large\n\U0001f600.jpg")
    (path / "05x.jpg").write_text("no picture")
    whole = (path / "11.jpg").read_bytes()
    (path / "11 cut.jpg").write_bytes(whole[: len(whole) // 2])
    (path / os.fsdecode(b"12 \xff.jpg")).write_bytes(whole)
    return path


def collect(loader, *, prompt=True):
    """{(file, sample): name and bytes, or problem}; slots go back at once."""
    loader.start()
    loader.ring.pin(ordinary if type(loader) is Loader else lambda _: loader.ring.memory, takes_pictures=True)
    found, ends = {}, {}
    answered = 0
    for slot in loader:
        if slot is not None:
            for row in slot.rows:
                nbytes = 3 * (row.height * row.width or 16 * 16)
                content = slot.buffer[row.offset : row.offset + (row.nbytes or nbytes)].tobytes()
                assert (row.file, row.sample) not in found
                found[row.file, row.sample] = row.name, row[4:], content
            for failure in slot.failures:
                found[failure.file, failure.sample] = failure.name, failure.problem
            ends.update(slot.ends)
            loader.ring.give_back(slot)
        if slot is None or prompt:
            while answered in ends:
                answered += 1
            loader.answered(answered)
    loader.close()
    return found


def by_processes(folder, slots=9, room_nbytes=0, **options):
    ring = SharedBufferPool(NBYTES, slots, None, room_nbytes)
    return ProcessLoader(list_files([folder]), SPEC, ring, 6, **options)


@pytest.mark.parametrize(
    ("window", "prompt", "room_nbytes"),
    [
        pytest.param(4096, True, 0, marks=pytest.mark.slow(reason="whole files in a small window stand for it")),
        (9, False, 1 << 20),
    ],
)
def test_they_load_what_threads_load(folder, window, prompt, room_nbytes):
    before = threading.enumerate()
    loader = by_processes(folder, window=window, room_nbytes=room_nbytes)
    found = collect(loader, prompt=prompt)
    # Before a ring of ordinary memory is pinned pictures are resized in it; here none are.
    ring = BufferPool(NBYTES, 6, None, room_nbytes)
    ring.pin(ordinary, takes_pictures=True)
    assert found == collect(Loader(list_files([folder]), SPEC, ring, 2))
    assert len(found) == len(list_files([folder]).files)
    assert sum(isinstance(each[1], str) for each in found.values()) >= 1
    assert loader.decoded == sum(not isinstance(each[1], str) for each in found.values())
    assert loader.threads == 6
    assert loader.seconds.reading > 0
    assert not any("vgg16gpu-decode" in thread.name for thread in {*threading.enumerate()}.difference(before))
    assert all(child.poll() == 0 for child in loader._children)


@pytest.mark.slow(reason="1,500 files; a ring that is full is in make test")
def test_numbers_that_fill_a_small_pipe_wait_for_nobody(folder, monkeypatch):
    """As a user's pipes are small once he has many of them (pipe-user-pages-soft)."""

    def small():
        ends = pipe()
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, 4096)
        return ends

    pipe = os.pipe
    monkeypatch.setattr(os, "pipe", small)
    ring = SharedBufferPool(NBYTES, 7, None)
    loader = ProcessLoader(Listing((str(folder / "00.png"),) * 1500), SPEC, ring, 6)
    assert len(collect(loader)) == 1500


@pytest.mark.slow(reason="a process of its own")
def test_descriptors_beyond_those_of_select(folder):
    program = """\
        import os, sys
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        from vgg16gpu.io.preprocessing import Preprocess
        from vgg16gpu.pictures.inputs import InputSpec
        from vgg16gpu.pictures.listing import list_files
        from vgg16gpu.pictures.loading.processes import ProcessLoader
        from vgg16gpu.pictures.loading.shared import SharedBufferPool
        spec = InputSpec((3, 16, 16), preprocess=Preprocess.named("unit"))
        loader = ProcessLoader(list_files([sys.argv[1]]), spec, SharedBufferPool(30_000, 9, None), 6, window=20)
        loader.start()
        answered = count = 0
        for slot in loader:
            if slot is None:
                loader.answered(answered)
                continue
            count += len(slot.rows) + len(slot.failures)
            answered += len(slot.ends)
            loader.ring.give_back(slot)
        loader.close()
        print(count)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(folder)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == str(len(list_files([folder]).files)).encode(), done.stderr.decode()


def test_closing_in_the_middle_leaves_nothing(folder):
    before, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        loader = by_processes(folder, slots=7)
        loader.start()
        next(iter(loader))
        loader.close()
        loader.close()
        assert all(child.poll() is not None for child in loader._children)
        del loader
    assert threading.active_count() == before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_process_that_dies_is_told(folder):
    loader = by_processes(folder, window=10)
    loader.start()
    slots = iter(loader)
    next(slots)
    loader._children[0].send_signal(signal.SIGSEGV)
    with pytest.raises(InputError, match=r"ended by SIGSEGV.*--resume goes on"):
        list(slots)
    loader.close()


def test_what_is_asked_for_again_comes_again(folder):
    loader = by_processes(folder, takes_back=True)
    loader.start()
    found, asked, ends = [], False, {}
    for slot in loader:
        if slot is None:
            loader.answered(len(ends))
            continue
        found += [(row.name, slot.buffer[row.offset : row.offset + 8].tobytes()) for row in slot.rows]
        ends.update(slot.ends)
        rows = list(slot.rows)
        loader.ring.give_back(slot)
        if rows and not asked:
            loader.again(rows)
            asked = len(rows)
    loader.close()
    assert asked
    assert len(found) == len(set(found)) + asked


def test_they_end_with_the_process_that_started_them(folder):
    program = f"""
        import sys, time
        from tests.pictures.loading.test_processes import by_processes
        loader = by_processes({str(folder)!r}, slots=7)
        loader.start()
        loader.has_row()
        print(*(child.pid for child in loader._children), flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        children = [int(word) for word in process.stdout.readline().split()]
        assert len(children) == 2
        process.kill()
    deadline = time.monotonic() + 20
    while any(not is_gone(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid):
    """Whether a process has ended, whoever has not asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
