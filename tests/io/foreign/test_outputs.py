"""io/foreign/outputs.py: an output is none of the files that are read, and one run at a time writes it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.io.results.runs import EVERY_KIND, columns_of, record_of, run, scores_of, write
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer, check_outputs, folder_writer
from vgg16gpu.io.foreign import outputs
from vgg16gpu.io.foreign.outputs import OutputLock, refuse_read_files, temporary_path
from vgg16gpu.io.results import open_results, read_scores

ROOT = Path(__file__).resolve().parents[3]


def links_to(path: Path) -> list[Path]:
    """Names of one file: itself, by another folder, a link, a link to that, a hard link, a link to that."""
    folder = path.parent / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(path)
    (folder / "far").symlink_to("link")
    os.link(path, folder / "hard")
    (folder / "to-hard").symlink_to(folder / "hard")
    (path.parent / "elsewhere").symlink_to(path.parent, target_is_directory=True)
    names = [folder / name for name in ("link", "far", "hard", "to-hard")]
    return [path, folder / ".." / path.name, path.parent / "elsewhere" / path.name, *names]


def test_whatever_it_is_called_a_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("content")
    names = links_to(path)
    for output in names:
        for read in names:
            with pytest.raises(InputError, match=r"^--output '.*' is the list.*name another file$"):
                refuse_read_files([("--output", output)], [("an input", tmp_path / "b"), ("the list", read)])
            with pytest.raises(InputError, match="is the list"):
                check_outputs({"--plot": None, "--output": output}, [("the list", str(read))])
    copy = tmp_path / "copy"
    copy.write_text("content")
    refuse_read_files([("--output", tmp_path / "new"), ("--plot", copy)], [("the list", name) for name in names])
    refuse_read_files([("--output", path)], [("an input", "a\0b"), ("an input", "-"), ("an input", tmp_path / "none")])


def test_names_that_nobody_else_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers count their processes from 1 each."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    names = {temporary_path(tmp_path / "a.csv") for _ in range(1000)}
    assert len(names) == 1000
    for name in ("a" * 251 + ".csv", "ö" * 120 + ".csv", os.fsdecode(b"\xff" * 250)):
        for path in (temporary_path(tmp_path / name), OutputLock(tmp_path / name, "a")._path):
            path.touch()
            assert len(os.fsencode(path.name)) <= 255


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_two_processes_with_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """On a file system without locks, in two containers: the last file stays, and none is a mixture of both."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(outputs, "lock", lambda _: False)
    path = tmp_path / f"a.{kind}"
    columns = columns_of()
    first, second = (open_results(path, columns, record_of(20)) for _ in range(2))
    write(first, 0, 3)
    write(second, 0, 20, block=2)
    second.finish()
    second.close()
    whole = path.read_bytes()
    try:
        write(first, 3, 20)
        first.finish()
    except Exception as error:  # the file of rows is another one by now
        assert "removed or replaced" in str(error) or "cannot be written" in str(error)  # noqa: PT017
    finally:
        try:
            first.close()
        except Exception:
            assert kind in ("csv", "jsonl", "parquet")
    assert path.read_bytes() == whole
    assert read_scores(path)[1].tobytes() == scores_of(0, 20).tobytes()


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("link", [True, False])
def test_one_run_at_a_time(tmp_path: Path, kind: str, link: bool) -> None:
    path, other = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    if link:
        other.symlink_to(path)
    else:
        other = path
    columns = columns_of()
    with open_results(path, columns, record_of(20)) as first:
        for rows in (0, 5):
            write(first, 0, rows)
            with pytest.raises(InputError, match=rf"b?a?\.{kind}' is being written by another run; wait for its end"):
                open_results(other, columns, record_of(20))
        write(first, 5, 20)
        first.finish()
        with pytest.raises(InputError, match="is being written by another run"):
            open_results(other, columns, record_of(20))
    whole = path.read_bytes()
    run(other, 20)
    assert path.read_bytes() == whole
    assert not list(tmp_path.glob(".*"))


HOLD = """
import sys, time
from pathlib import Path
from vgg16gpu.io.foreign.outputs import OutputLock
held = OutputLock(Path(sys.argv[1]), "it")
print("held", flush=True)
time.sleep(60)
"""


def test_a_process_that_is_killed_has_no_right_any_more(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a.csv")], stdout=subprocess.PIPE, cwd=ROOT
    ) as held:
        assert held.stdout is not None
        held.stdout.readline()
        with pytest.raises(InputError, match="being written by another run"):
            OutputLock(tmp_path / "a.csv", "a.csv")
        held.kill()
        held.wait()
    lock = OutputLock(tmp_path / "a.csv", "a.csv")
    lock.release()
    lock.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_goes_while_somebody_waits_for_it_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that come as a third ends: one has the file that is there, the other is told."""
    path = tmp_path / ".a.csv.lock"
    flock = fcntl.flock
    gone = []

    def flock_late(descriptor: int, how: int) -> None:
        if not gone:
            gone.append(path.unlink())  # whoever had it removes it between opening and locking
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    first = OutputLock(tmp_path / "a.csv", "a.csv")
    assert path.exists()
    with pytest.raises(InputError):
        OutputLock(tmp_path / "a.csv", "a.csv")
    first.release()


@pytest.mark.parametrize("there", ["a link", "a folder", "a pipe"])
def test_a_lock_is_a_file(tmp_path: Path, there: str) -> None:
    path = tmp_path / ".a.csv.lock"
    if there == "a link":
        path.symlink_to(tmp_path / "victim")
    elif there == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    if there == "a pipe":
        OutputLock(tmp_path / "a.csv", "a.csv").release()
    else:
        with pytest.raises(InputError, match=r"'a\.csv' cannot be written: .*\.a\.csv\.lock"):
            OutputLock(tmp_path / "a.csv", "a.csv")
    assert not (tmp_path / "victim").exists()


def test_a_name_in_the_way_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that somebody has put where a temporary file would be."""
    (tmp_path / "victim").write_text("old")
    (tmp_path / "temporary").symlink_to(tmp_path / "victim")
    monkeypatch.setattr("vgg16gpu.io.files.temporary_path", lambda _: tmp_path / "temporary")
    with pytest.raises(Exception, match="cannot be written"), atomic_writer(tmp_path / "a") as stream:
        stream.write(b"new")
    (tmp_path / "temporary").symlink_to(tmp_path / "victim")
    with pytest.raises(Exception, match="cannot be written"), folder_writer(tmp_path / "b"):
        pass
    assert (tmp_path / "victim").read_text() == "old"
