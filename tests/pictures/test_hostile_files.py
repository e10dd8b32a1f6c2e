"""Hostile names and contents, some 500: each gives pixels, one line that names it, or is counted; nothing hangs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.hostile_files import bombs, make_hostile
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.content import read_file
from vgg16gpu.pictures.images import fitted
from vgg16gpu.pictures.inputs import InputSpec, samples
from vgg16gpu.pictures.listing import HIDDEN, NO_FILE, NO_TARGET, SEEN, list_files

PREPROCESS = Preprocess.named("unit")
SPEC = InputSpec((3, 8, 8))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    folder = tmp_path_factory.mktemp("hostile") / "pictures"
    folder.mkdir()
    yield folder, make_hostile(folder)
    (folder / "locked").chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _warnings_are_no_errors() -> Iterator[None]:
    """As for users: Pillow warns of damaged metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def outcome(path: str, *, numbers: bool = False) -> np.ndarray | str:
    """Pixels, or the line that says why there are none."""
    try:
        if numbers:
            return next(array for _, array in samples(path, SPEC))
        return fitted(read_file(path), path, 3, 8, 8, PREPROCESS)
    except InputError as error:
        return str(error)


def test_a_folder_of_them(hostile):
    folder, count = hostile
    listing = list_files([folder])
    assert count >= 500
    assert len(listing.files) + sum(listing.left_out.values()) == count
    expected = {HIDDEN: 4, SEEN: 3, NO_FILE: 6, NO_TARGET: 4}
    assert {reason: listing.left_out[reason] for reason in expected} == expected
    assert "\n" not in listing.line()
    read = 0
    for path in listing.files:
        found = outcome(path)
        if isinstance(found, str):
            assert found.startswith(f"'{path}' "), found
            assert "\n" not in found.removeprefix(f"'{path}' ")
        else:
            assert found.shape == (8, 8, 3)
            read += 1
    assert 100 < read < len(listing.files) - 100
    assert not (folder / "harmed").exists()
    assert not Path("harmed").exists()


def test_all_of_them_in_a_list(hostile, tmp_path):
    folder, _ = hostile
    things = [os.fsencode(path) for path in folder.iterdir() if path.name not in ("here", "parent", "beside")]
    things = [path for path in things if b"\0" not in path]
    (tmp_path / "list").write_bytes(b"\0".join(things) + b"\0")
    listing = list_files([], str(tmp_path / "list"), recursive=False)
    taken = set(map(os.fsencode, listing.files))
    folders = {b".git", b"locked"}  # of a folder comes what is in it
    assert {path.rpartition(b"/")[2] for path in set(things) - taken} <= folders
    for path in listing.numbers:
        outcome(path, numbers=True)


# In a process of its own, as memory is counted for processes.
JUDGE = """
import json, resource, sys, time
from tests.pictures.test_hostile_files import outcome
from tests.support.picture_files import every_kind
before, found = None, {}
for path in sys.argv[1:]:
    started = time.process_time()
    result = outcome(path)
    found[path] = result if isinstance(result, str) else "", time.process_time() - started
    before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10]))
"""


def test_bombs_take_neither_memory_nor_time(tmp_path):
    (tmp_path / "0.bmp").write_bytes(b"")
    for name, content in bombs().items():
        (tmp_path / name.decode()).write_bytes(content)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run([sys.executable, "-c", JUDGE, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, peak = json.loads(done.stdout)
    refused = {Path(path).name: message for path, (message, _) in found.items() if message}
    assert {"bomb.png", "bomb.tif", "bomb.webp", "bomb.jpg", "bomb.bmp"} <= set(refused)
    said = {
        "bomb-scans.jpg": "has more scans than",
        "bomb-strips.tif": "is in 1,000,000 pieces",
        "bomb.gif": "pixels, at most",
    }
    for name, what in said.items():
        assert what in refused[name], refused[name]
    assert {path: seconds for path, (_, seconds) in found.items() if seconds > 10} == {}
    assert peak < 300 << 20


def test_folders_deeper_than_a_path_may_be_long(tmp_path):
    """What is below is counted as one: the system gives nobody its files by name."""
    top = tmp_path / "deep"
    top.mkdir()
    place = os.open(top, os.O_RDONLY)
    try:
        for _ in range(30):
            os.mkdir("x" * 200, dir_fd=place)
            below = os.open("x" * 200, os.O_RDONLY, dir_fd=place)
            os.close(place)
            place = below
        with pytest.raises(InputError, match=r"has no images .*; 1 file left out: 1 not readable"):
            list_files([top])
    finally:
        os.close(place)
        with contextlib.suppress(OSError):
            shutil.rmtree(top)
