"""SIGKILL at every line that touches files: FILE is the older one or the new one, and --resume never mixes them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import vgg16gpu
from tests.io.results.runs import EVERY_KIND, WITH_RESUME, columns_of, record_of, run
from tests.support import selection
from vgg16gpu.errors import InputError
from vgg16gpu.io.results import RunRecord, record_path

IO = Path(vgg16gpu.__file__).parent / "io"
NO_FILES = ("shown.py", "columns.py", "csv_rows.py", "jsonl_rows.py", "arrow_form.py", "number_texts.py", "scan.py")
TRACED = {str(path) for path in IO.rglob("*.py") if path.name not in NO_FILES}
ROWS = 6
STEP = 23 if selection.choice() == selection.REPRESENTATIVE else 1  # lines between two kills
OLD, NEW = record_of(ROWS, model="old"), record_of(ROWS, model="new")


def killed_at(line: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed at the `line`th of the TRACED lines; whether there are so many."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL)
        return status != 0
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "call" and frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def writing(path: Path, record: RunRecord, **options: Any) -> Callable[[], object]:
    return lambda: run(path, ROWS, columns_of(), record, block=3, **options)


def made(folder: Path, kind: str, record: RunRecord) -> bytes:
    """The file of an undisturbed run."""
    path = folder / f"undisturbed-{record.model}.{kind}"
    run(path, ROWS, columns_of(), record, block=3)
    return path.read_bytes()


def renew(folder: Path) -> Path:
    """An empty folder."""
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
    folder.mkdir(exist_ok=True)
    return folder


def cases() -> Iterator[Any]:
    """Every kind, over a file of another run and of the same; a few of them always."""
    for kind in EVERY_KIND:
        for same in (False, True):
            always = not same and kind in ("csv", "npz")
            marks = () if always else pytest.mark.slow(reason="more of the same")
            yield pytest.param(kind, same, marks=marks, id=f"{kind}-{'same' if same else 'other'}")


@pytest.mark.parametrize(("kind", "same"), list(cases()))
def test_an_older_file_stays_until_the_new_one_is_there(tmp_path: Path, kind: str, same: bool) -> None:
    """`same`: the older file is of the same run, so that --resume may go on in it."""
    new = made(tmp_path, kind, NEW)
    path = tmp_path / "place" / f"a.{kind}"
    line, found, seen = 0, set(), set()
    while True:
        renew(path.parent)
        run(path, ROWS, columns_of(), NEW if same else OLD, stop=3)
        stale = path.read_bytes()
        goes_on = killed_at(line, writing(path, NEW))
        content = path.read_bytes()
        if content == stale:
            found.add("old")
        elif kind in ("csv", "jsonl"):
            assert new.startswith(content), line
            assert content.count(b"\n") > 1, line
            found.add("new")
        else:
            assert content == new, line
            found.add("new")
        left = tuple(file.read_bytes() for file in sorted(path.parent.iterdir()))
        if kind in WITH_RESUME and left not in seen:
            seen.add(left)
            check_resume(path, stale, new)
        if not goes_on:
            break
        line += STEP if kind in ("csv", "jsonl") else 3 * STEP
    assert found == {"old", "new"}
    assert line > 50
    assert not list(path.parent.glob(".*"))


def check_resume(path: Path, stale: bytes, new: bytes) -> None:
    """It gives the new file, or refuses what is not its own."""
    try:
        run(path, ROWS, columns_of(), NEW, resume=True)
    except InputError as error:
        assert "of another run" in str(error)  # noqa: PT017
        assert path.read_bytes() == stale
        assert b"old" in record_path(path).read_bytes() or path.suffix == ".parquet"
    else:
        assert path.read_bytes() == new


@pytest.mark.slow(reason="every line in turn; kills over an older file are in make test")
def test_a_record_that_replaces_rows_of_the_same_run(tmp_path: Path) -> None:
    """The kill comes between the two names: rows of the older file are not this run's, and are computed."""
    path = tmp_path / "a.csv"
    run(path, ROWS, columns_of(), OLD)
    old = path.read_bytes()
    line = 0
    while b'"replaces"' not in record_path(path).read_bytes():
        killed_at(line, writing(path, NEW))
        line += 1
    assert path.read_bytes() == old
    with pytest.raises(InputError, match="model was 'new' and is 'old'"):
        run(path, ROWS, columns_of(), OLD, resume=True)
    assert run(path, ROWS, columns_of(), NEW, resume=True) == 0
    assert path.read_bytes() == made(tmp_path, "csv", NEW)
    assert b"replaces" not in record_path(path).read_bytes()
