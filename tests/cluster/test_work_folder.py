"""cluster/work_folder.py: a process's own folder stays while it works, whoever tidies up, and goes when it is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.cluster import job as module
from vgg16gpu.cluster.job import JobFolder, WorkFolder
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
from vgg16gpu.cluster.job import WorkFolder
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


@pytest.mark.parametrize("moment", ["made", "opened"])
def test_a_folder_that_is_tidied_away_as_it_begins_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """By another process: once the folder is made, or its lock is opened and not held yet."""
    job, made = JobFolder(tmp_path), list[Path]()
    mkdir, hold = Path.mkdir, module.lock

    def remove(path: Path) -> None:
        made.append(path)
        if len(made) == 1:
            shutil.rmtree(path)

    def make(path: Path, *given: Any, **options: Any) -> None:
        mkdir(path, *given, **options)
        if path.parent == job.temporary:
            remove(path)

    def lock_late(descriptor: int) -> bool:
        remove(next(job.temporary.iterdir()))
        return hold(descriptor)

    monkeypatch.setattr(*((Path, "mkdir", make) if moment == "made" else (module, "lock", lock_late)))
    work = WorkFolder(job.temporary)
    monkeypatch.undo()
    assert len(made) > 1
    work.rows("rows").write_text("rows")
    work.close()


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
