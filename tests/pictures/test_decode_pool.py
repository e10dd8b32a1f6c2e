"""Many image files: decoded in processes of their own, in order, and the broken ones put aside by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.errors import Error, InputError
from vgg16gpu.pictures import decode_pool
from vgg16gpu.pictures.decode_pool import (
    AHEAD,
    CHUNK,
    HANDFUL,
    MAX_PROCESSES,
    Reader,
    Unreadable,
    decode_apart,
    useful_processes,
)
from vgg16gpu.pictures.inputs import InputSpec, read_inputs

SPEC = InputSpec((3, 8, 8))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Images, no two alike."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(4)
    for index in range(3 * CHUNK + 1):
        Image.fromarray(random.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(folder / f"{index:02}.png")
    return sorted(map(str, folder.iterdir()))


def broken_file(folder: Path, name: str = "broken.jpg") -> str:
    path = folder / name
    path.write_text("no image")
    return str(path)


def assert_read(found: Any, files: list[str]) -> None:
    expected = list(read_inputs(files, SPEC))
    found = list(found)
    assert [item.name for item in found] == [item.name for item in expected]
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one.array, other.array)


@pytest.mark.parametrize("processes", [0, 2])
def test_images_come_in_order_and_broken_ones_are_put_aside(files: list[str], tmp_path: Path, processes: int) -> None:
    broken = broken_file(tmp_path)
    missing = str(tmp_path / "missing.png")
    several = Reader([*files[:3], broken, *files[3:], missing], SPEC, processes)
    assert_read(several.inputs(), files)
    assert [image.name for image in several.unreadable] == [broken, missing]
    assert "broken.jpg' is not a readable image" in several.unreadable[0].problem
    assert "missing.png' does not exist" in several.unreadable[1].problem
    assert several.decoded == len(files)
    assert several.decode_rate == pytest.approx(len(files) * max(1, processes) / several.decode_seconds)


def test_numbers_are_read_in_their_place_and_must_be_right(files: list[str], tmp_path: Path) -> None:
    numbers = str(tmp_path / "numbers.npy")
    np.save(numbers, np.zeros((2, 3, 8, 8), np.float32))
    mixed = [files[0], numbers, files[1]]
    assert_read(Reader(mixed, SPEC, 0).inputs(), mixed)
    np.save(numbers, np.zeros((2, 3, 8, 9), np.float32))
    inputs = Reader(mixed, SPEC, 0).inputs()
    assert next(inputs).name == files[0]
    with pytest.raises(InputError, match=r"numbers.npy' has shape \(2, 3, 8, 9\)"):
        next(inputs)


def test_without_images_there_is_no_rate(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 8, 8), np.float32))
    numbers = Reader([str(tmp_path / "a.npy")], SPEC, 4)
    assert len(list(numbers.inputs())) == 1
    assert numbers.decode_rate is None


def test_processes_are_for_many_images() -> None:
    assert useful_processes(["a.png"] * HANDFUL) == 0
    assert useful_processes(["a.npy"] * 1000) == 0
    assert useful_processes(["a.png"] * (HANDFUL + 1)) == 2
    assert useful_processes(["a.JPG"] * 1000) == MAX_PROCESSES


def test_few_chunks_are_on_their_way(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be larger than memory."""
    from concurrent import futures

    submitted: list[Any] = []

    class Pool:
        def __init__(self, *_: Any) -> None: ...

        def submit(self, work: Any, chunk: Any, spec: Any) -> Any:
            submitted.append(chunk)
            future: futures.Future[Any] = futures.Future()
            future.set_result(work(chunk, spec))
            return future

        def shutdown(self, **_: Any) -> None:
            submitted.append("end")

    monkeypatch.setattr(futures, "ProcessPoolExecutor", Pool)
    images = decode_apart(files * 10, SPEC, 1)
    next(images)
    assert len(submitted) == AHEAD
    images.close()  # type: ignore[attr-defined]
    assert submitted[-1] == "end"


def test_a_process_that_dies_is_told_of(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "decode", _die)
    with pytest.raises(Error, match=r"a process that decodes images has ended before its time .* --workers 1"):
        list(decode_apart(files, SPEC, 1))


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_put_aside_says_why(tmp_path: Path) -> None:
    wide = InputSpec((4, 8, 8))
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    images = Reader([str(tmp_path / "a.png")], wide, 0)
    assert list(images.inputs()) == []
    (found,) = images.unreadable
    assert isinstance(found, Unreadable)
    assert "the model takes 4 channels" in found.problem
