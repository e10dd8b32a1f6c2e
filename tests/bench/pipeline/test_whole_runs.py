"""Processes that are watched: when rows came, how much memory, and what is said where something is wrong."""

import sys

import pytest

from tests.bench.pipeline.conftest import COUNT, watched, write_rows
from vgg16gpu.bench.pipeline import whole_runs
from vgg16gpu.bench.pipeline.memory import Memory, is_flat
from vgg16gpu.bench.pipeline.watching import count_rows, watch
from vgg16gpu.bench.pipeline.whole_runs import WholeRuns, read_rows, run_whole
from vgg16gpu.errors import Error

REPORT = "print('vgg16gpu: run: batch 2', file=sys.stderr)"
SLOW = f"""
import sys, time
file = open(sys.argv[1], "w", buffering=1)
file.write("input,error,class_1\\na.jpg,,1\\n")
ballast = bytearray(64 << 20)
end = time.process_time() + 0.1
while time.process_time() < end: pass
time.sleep(0.2)
file.write("b.jpg,,3\\n" * 7)
time.sleep(0.1)
{REPORT}
"""


def script(code, output):
    return [sys.executable, "-c", code, str(output)]


def test_rows_are_counted_from_the_first_batch_on(tmp_path):
    """Of two: the second is there with the first, and waits for its turn."""
    output = tmp_path / "rows.csv"
    found = watch(script(SLOW, output), output, {})
    rows = found.rows
    assert (found.count, rows.first, found.told) == (8, 2, {"batch": 2})
    assert rows.per_s == pytest.approx(6 / (rows.to_last_s - rows.to_first_s))
    assert 0.25 < rows.to_last_s - rows.to_first_s < 3
    assert 0 < rows.to_first_s < rows.to_last_s < found.whole_s - 0.05
    assert 0.1 / 6 <= rows.cpu_s_each < 0.5 / 6
    assert 64 << 20 < found.peak_memory_nbytes < 512 << 20


def test_rows_that_come_at_once_have_no_rate(tmp_path):
    output = tmp_path / "rows.csv"
    code = f"import sys, time; open(sys.argv[1], 'w').write('input\\na\\n'); time.sleep(0.1); {REPORT}"
    rows = watch(script(code, output), output, {}).rows
    assert (rows.first, rows.per_s, rows.cpu_s_each) == (1, None, None)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print('vgg16gpu: it is broken', file=sys.stderr); sys.exit(2)",
        "import sys; open(sys.argv[1], 'w').write('input\\na\\n'); print('it is broken', file=sys.stderr)",
    ],
    ids=["a failure", "no report"],
)
def test_a_process_without_rows_or_report(tmp_path, code):
    output = tmp_path / "rows.csv"
    with pytest.raises(Error, match=r"infer ended with \d: it is broken"):
        watch(script(code, output), output, {})


def test_names_may_hold_line_breaks(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('input,error,class_1\n"a\nb.jpg",,1\nc.jpg,,2\n')
    assert count_rows(path) == 2


def run_made_up(work, tmp_path, monkeypatch, contents):
    """`run_whole` where each process writes the next of `contents`: (best classes, errors)."""
    left = list(contents)

    def instead(command, output, _):
        assert command[command.index("infer") + 1] == str(work.wanted.folder)
        assert not output.exists()
        write_rows(output, *left.pop(0))
        return watched()

    monkeypatch.setattr(whole_runs, "watch", instead)
    found = run_whole(work, "fp32", "cpu", tmp_path, lambda _: None)
    assert not left
    return found


def test_the_first_run_does_not_count(work, tmp_path, monkeypatch):
    found = run_made_up(work, tmp_path, monkeypatch, [([9, 9],), ([1, 2],), ([1, 2],)])
    assert len(found.runs) == work.wanted.repeats
    assert found.best == (1, 2)
    assert found.failures == ()


def test_rows_that_differ_are_a_failure(work, tmp_path, monkeypatch):
    found = run_made_up(work, tmp_path, monkeypatch, [([1, 2],), ([1, 2],), ([1, 3],)])
    assert found.failures == ("fp32, decoded by the CPU: the rows of whole runs differ: 2 files of 2 runs",)


def test_a_picture_without_an_answer_is_a_failure(work, tmp_path, monkeypatch):
    found = run_made_up(work, tmp_path, monkeypatch, [([1, -1, 3], {1: "'1.jpg' is empty"})] * 3)
    assert found.failures == ("fp32, decoded by the CPU: 1 of 3 have no answer, the first: '1.jpg' is empty",)
    assert found.best == (1, -1, 3)


def test_the_options_of_a_run_are_ours(work):
    words = list(map(str, whole_runs.options(work.wanted, "fp16", "gpu")))
    assert words[words.index("--precision") + 1] == "fp16"
    assert words[words.index("--device") + 1] == "cpu"
    assert words[words.index("--decode") + 1] == "gpu"
    assert words[words.index("--top") + 1] == "5"
    assert "--batch" not in words


def test_medians_of_the_runs_and_the_best():
    runs = (watched(100.0, 5.0, 0.004), watched(50.0, 9.0, 0.002), watched(80.0, 6.0, 0.003))
    found = WholeRuns("fp32", "cpu", runs, (), ())
    speed = found.speed
    assert (speed.rows_per_s, speed.best_rows_per_s, speed.whole_s, speed.cpu_s_each) == (80.0, 100.0, 6.0, 0.002)
    assert found.median is runs[2]
    assert (found.kind, found.batch) == ("cpu", 2)
    fields = found.fields()
    assert fields["rows_samples_per_s"] == [100.0, 50.0, 80.0]
    assert fields["rows"]["per_s"] == 80.0


def test_runs_without_a_rate():
    found = WholeRuns("fp32", "cpu", (watched(None, 3.0), watched(None, 2.0)), (), ())
    assert (found.speed.rows_per_s, found.speed.best_rows_per_s, found.speed.cpu_s_each) == (None, None, None)
    assert found.median.whole_s in (2.0, 3.0)


@pytest.mark.parametrize(
    ("peaks", "names", "flat"),
    [
        ((100, 104), (0, 0), True),
        ((100, 106), (0, 0), False),
        ((100, 130), (1, 27), True),
        ((100, 130, 131), (0, 0, 0), True),  # the rings were not full
        ((100, 101, 130), (0, 0, 0), False),
        ((100, 130, 90), (1, 2, 3), True),
        ((100, 80), (0, 0), True),
        ((100,), (0,), None),
        ((), (), None),
    ],
)
def test_memory_is_flat_but_for_the_names(peaks, names, flat):
    found = [Memory(10**i, 1000 * peak, 1000 * name) for i, (peak, name) in enumerate(zip(peaks, names, strict=True))]
    assert is_flat(found) is flat


def test_best_classes_are_read_back(tmp_path):
    write_rows(tmp_path / "rows.csv", [3, -1], {1: "why"})
    assert read_rows(tmp_path / "rows.csv") == ((3, -1), ("why",))
    assert COUNT > 0
