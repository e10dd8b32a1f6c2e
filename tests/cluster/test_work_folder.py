"""cluster/work_folder.py: a process's own folder stays while it works, whoever tidies up, and goes when it is gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vgg16gpu.cluster import work_folder as module
from vgg16gpu.cluster.job import JobFolder
from vgg16gpu.cluster.work_folder import WorkFolder
from vgg16gpu.errors import ModelError

ROOT = Path(__file__).resolve().parents[2]


def test_those_that_work_are_spared(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    first, second = WorkFolder(job.temporary), WorkFolder(job.temporary)
    assert first.path != second.path
    first.rows("part-00000.parquet").write_text("rows")
    second.close()
    second.close()
    job.tidy()
    assert first.rows("part-00000.parquet").read_text() == "rows"
    first.close()
    assert list(job.temporary.iterdir()) == []
    job.tidy()
    assert not job.temporary.exists()


DIE = """
import os, signal, sys
from pathlib import Path
from vgg16gpu.cluster.work_folder import WorkFolder
WorkFolder(Path(sys.argv[1])).rows("part-00000.parquet").write_text("rows")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_removed(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    subprocess.run([sys.executable, "-c", DIE, str(job.temporary)], cwd=ROOT, check=False)
    assert len(list(job.temporary.rglob("part-*"))) == 1
    (job.temporary / "begun").mkdir()  # by one that was killed even earlier
    job.tidy()
    assert not job.temporary.exists()


def test_without_locks_nothing_of_others_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lock", lambda _: False)
    job = JobFolder(tmp_path)
    work = WorkFolder(job.temporary)
    job.tidy()
    assert work.path.exists()
    work.close()


@pytest.mark.slow(reason="300 folders; those that work are spared in make test")
def test_who_begins_while_others_tidy_up_finds_a_folder(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    over = threading.Event()

    def tidy() -> None:
        while not over.is_set():
            job.tidy()

    threads = [threading.Thread(target=tidy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i in range(300):
            work = WorkFolder(job.temporary)
            work.rows("rows").write_text(str(i))
            assert work.rows("rows").read_text() == str(i)
            work.close()
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"file: cannot be written \(.*\); name a folder that can"):
        WorkFolder(tmp_path / "file")


def test_who_is_first_has_the_name(tmp_path: Path) -> None:
    """Rows of two processes are the same; the sizes that the job has written down stay."""
    job = JobFolder(tmp_path)
    for text in ("first", "second"):
        (tmp_path / text).write_text(text)
        job.publish(3, tmp_path / text)
    assert job.part(3).read_text() == "first"
