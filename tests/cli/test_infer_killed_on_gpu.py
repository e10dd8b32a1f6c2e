"""`infer` on a GPU, where processes decode: killed at any moment it leaves none of them, and goes on."""

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.ended import begun, ended
from tests.support.picture_files import jpeg
from vgg16gpu.runtime.answers.folder import MANY

COUNT = 2 * MANY
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
CHILD = b"vgg16gpu.pictures.loading.child"
MARK = "VGG16GPU_TESTED_RUN"

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("many")
    for number in range(COUNT):
        (path / f"{number:04}.jpg").write_bytes(jpeg(36, 48, channels=1, seed=number % 50))
    (path / "0100.jpg").write_bytes(b"\xff\xd8\xff no picture")
    return path


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "rows.csv"
    code, out, err = run(folder, path)
    assert code == 1, err
    assert json.loads(out)["rates"]["decode_threads"] > 1
    return path.read_bytes()


def command(folder, path, *options):
    words = ("infer", folder, "--model", "digits", "--device", "cuda", "--workers", "6", "--output", path, *options)
    return ("-m", "vgg16gpu", *words)


def run(folder, path, *options):
    """Its exit code, and what it wrote to stdout and stderr."""
    child = begun(*command(folder, path, "--json", *options))
    out, err = ended(child, 120)
    return child.returncode, out, err


def children(mark):
    """Processes that decode for a run with this in its environment, by number."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                CHILD in (path / "cmdline").read_bytes()
                and f"{MARK}={mark}".encode() in (path / "environ").read_bytes()
            ):
                found.add(int(path.name))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_was_killed_goes_on(folder, whole, tmp_path, seed):
    chance, number, path = random.Random(seed), SIGNALS[seed % 3], tmp_path / "rows.csv"
    child = begun(*command(folder, path), environ={**os.environ, MARK: str(path)})
    enough, deadline = chance.randrange(-20_000, len(whole)), time.monotonic() + 60
    while child.poll() is None and time.monotonic() < deadline:
        if children(path) and (enough < 0 or (path.exists() and path.stat().st_size > enough)):
            child.send_signal(number)
            break
        time.sleep(0.001)
    _, err = ended(child)
    if number != signal.SIGKILL and child.returncode != 1:  # 1: it was through before the signal came
        assert child.returncode == 128 + number, err
    deadline = time.monotonic() + 20
    while children(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    code, _, err = run(folder, path, "--resume")
    assert code == 1, err
    assert path.read_bytes() == whole
