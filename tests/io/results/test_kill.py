"""What a signal, a full disk and a closed pipe leave: rows, all of them whole, and one line."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.io.results.runs import (
    EVERY_KIND,
    WITH_RESUME,
    answers_of,
    columns_of,
    names_of,
    record_of,
    run,
    scores_of,
    write,
)
from vgg16gpu.errors import ModelError
from vgg16gpu.io.results import open_results, read_scores, record_path
from vgg16gpu.io.results.growing import Appender

ROOT = Path(__file__).resolve().parents[3]
ROWS = 600


TO_STDOUT = """
import sys
from pathlib import Path
from tests.io.results.runs import columns_of, record_of, write
from vgg16gpu.errors import Error
from vgg16gpu.io.results import open_results
try:
    with open_results(Path("-"), columns_of(), record_of(), form=sys.argv[1]) as results:
        write(results, 0, int(sys.argv[2]))
        results.finish()
except Error as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(2)
"""


def start(script, *arguments, **options):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("rows", [0, 17])
def test_an_interrupted_run_leaves_its_rows(tmp_path, kind, rows):
    path = tmp_path / f"a.{kind}"

    def interrupted():
        with open_results(path, columns_of(), record_of()) as results:
            write(results, 0, rows)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    if not rows:
        assert not list(tmp_path.iterdir())
        return
    names, scores = read_scores(path)
    np.testing.assert_array_equal(scores, scores_of(0, rows))
    expected = [name.replace("\udcff\udc80", "\\xff\\x80") if kind == "parquet" else name for name in names_of(rows)]
    assert names in (None, expected)
    expected = {path.name} | ({f"{path.name}.run.json"} if kind in WITH_RESUME else set())
    expected |= {"a.parquet.partial"} if kind == "parquet" else set()
    assert {file.name for file in tmp_path.iterdir()} == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that Python has just opened
@pytest.mark.parametrize("kind", ["csv", "npy"])
def test_a_signal_at_any_moment_leaves_whole_rows(tmp_path, kind):
    """The handler raises wherever Python stands, in the middle of a write, too."""

    class Stopped(BaseException):
        pass

    def stop(*_):
        raise Stopped

    path = tmp_path / f"a.{kind}"
    columns = columns_of()
    blocks = [answers_of(i, i + 3, columns) for i in range(0, 60, 3)]
    expected = scores_of(0, 60)
    found = set()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for attempt in range(40):
            path.unlink(missing_ok=True)
            with contextlib.suppress(Stopped), open_results(path, columns, record_of(1000)) as results:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + attempt * 0.0003)
                for block in blocks * 100:
                    results.write(block)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not path.exists():
                continue
            _, scores = read_scores(path)
            found.add(len(scores))
            for first in range(0, len(scores), 60):
                np.testing.assert_array_equal(scores[first : first + 60], expected[: len(scores) - first])
            if kind != "npy":
                record = json.loads(record_path(path).read_bytes())
                assert (record["rows"], record["bytes"]) == (len(scores), path.stat().st_size)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(found) > 1  # on a busy machine few of them come late


@pytest.fixture
def small_files():
    """A function that limits how large files may be; SIGXFSZ is ignored by Python, so writes fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_full_disk_is_one_line_and_keeps_the_rows(tmp_path, caplog, small_files, kind):
    path = tmp_path / f"a.{kind}"
    run(tmp_path / f"whole.{kind}", ROWS)
    for size in (2000, 2333):
        path.unlink(missing_ok=True)
        small_files(size)
        with pytest.raises(ModelError, match=r"a\.\w+(\.partial)?: cannot be written \(File too large\)") as caught:
            run(path, ROWS, block=7)
        small_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        assert "\n" not in str(caught.value)
        assert not caplog.records
        if kind in ("npz", "parquet"):  # the first is put together at the end, of the second the stream is left
            assert not path.exists()
        else:
            names, scores = read_scores(path)
            assert len(scores) > 5
            np.testing.assert_array_equal(scores, scores_of(0, len(scores)))
            assert f"{len(scores):,} rows" in str(caught.value)
            assert names in (None, names_of(len(scores)))
        if kind in WITH_RESUME:
            run(path, ROWS, resume=True)
            assert path.read_bytes() == (tmp_path / f"whole.{kind}").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_room_for_the_first_row_keeps_the_older_file(tmp_path, small_files, kind):
    path = tmp_path / f"a.{kind}"
    run(path, 10)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    small_files(20)
    with pytest.raises(ModelError, match="cannot be written"):
        run(path, ROWS)
    small_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_standard_output_whose_reader_goes():
    with start(TO_STDOUT, "csv", 5000, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"input,error")
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 2
    assert errors.startswith(b"ModelError: standard output: its reader has closed it after ")
    assert errors.count(b"\n") == 1


def test_standard_output_that_is_full():
    with Path("/dev/full").open("wb") as full:
        process = start(TO_STDOUT, "csv", 40, stdout=full, stderr=subprocess.PIPE, text=True)
        _, errors = process.communicate()
    assert errors == "ModelError: standard output: cannot be written (No space left on device) after 0 rows\n"
    assert process.returncode == 2


def test_a_pipe_that_does_not_wait_is_waited_for():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    appender = Appender(writer)
    child = os.fork()
    if child == 0:
        os.close(writer)
        count = 0
        while data := os.read(reader, 1 << 16):
            count += len(data)
        os._exit(0 if count == 1 << 20 else 1)
    os.close(reader)
    appender.append([b"x" * (1 << 20)])
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    assert appender.rows == 1
