"""tools/compiled_guard.py: what `make ptxas` says of the table, and when it is written."""

from dataclasses import replace

import compiled_table
import pytest
from compiled_guard import Guard, figures
from compiled_table import Figures, Key, Row, Table
from kernel_compile import Compiled, Task
from sass import Code, Loop

from vgg16gpu.devices.cuda.ptxas import Usage
from vgg16gpu.devices.kernel_source import kernel_dir, source_path

POOL = Key("pool.cu", "pool_f32", "AVERAGE=1", "sm_80")
GEMV = Key("gemv.cu", "gemv", "default", "sm_90a")
FIGURES = Figures(56, 128, 0, 0, 559, ("226, FFMA 32",))
FOUND = {POOL: FIGURES, GEMV: FIGURES}
MORE = {POOL: FIGURES, GEMV: replace(FIGURES, registers=60)}
TABLE = Table("13.0.88", {1: "first"}, {key: Row(FIGURES, 1) for key in FOUND})
ALL = ("sm_80", "sm_90")


@pytest.fixture
def guard(tmp_path):
    compiled_table.write(TABLE, tmp_path / "compiled.txt")
    return Guard(TABLE, "13.0.88", None, ALL, tmp_path / "compiled.txt")


def test_all_is_as_recorded(guard, capsys):
    assert guard.check(FOUND, counted=True) == 0
    assert "2 kernels are as compiled.txt has them" in capsys.readouterr().out


def test_a_difference_fails_and_says_what_to_do(guard, capsys):
    assert guard.check(MORE, counted=True) == 1
    told = capsys.readouterr().out
    assert "gemv.cu gemv sm_90a default: registers: was 56, is 60" in told
    assert 'python tools/ptxas.py --record --reason "' in told
    assert "pool.cu" not in told


def test_a_kernel_that_is_gone_fails(guard, capsys):
    assert guard.check({POOL: FIGURES}, counted=True) == 1
    assert "gemv.cu gemv sm_90a default: is gone" in capsys.readouterr().out


def test_what_was_not_compiled_is_not_missed(guard):
    assert replace(guard, names={"pool.cu"}).check({POOL: FIGURES}, counted=True) == 0
    assert replace(guard, archs=("sm_80",)).check({POOL: FIGURES}, counted=True) == 0
    assert replace(guard, archs=("sm_90a",)).check({GEMV: FIGURES}, counted=True) == 0
    assert replace(guard, archs=("sm_75",)).check({}, counted=True) == 0


def test_another_nvcc_is_not_compared(guard, capsys):
    assert replace(guard, nvcc="12.8.93").check(MORE, counted=True) == 0
    assert (
        capsys.readouterr().out == "compiled.txt is of nvcc 13.0.88, this is nvcc 12.8.93: only spills were checked.\n"
    )


def test_a_missing_disassembler_is_told(guard, capsys):
    uncounted = {key: replace(found, instructions=None, loops=()) for key, found in FOUND.items()}
    assert guard.check(uncounted, counted=False) == 0
    assert "pip install nvidia-cuda-nvdisasm" in capsys.readouterr().out


def test_recording_needs_a_reason_where_something_changed(guard, capsys):
    assert guard.record(MORE, " ") == 2
    assert "--record needs the reason" in capsys.readouterr().err
    assert compiled_table.read(guard.path) == TABLE


def test_the_reason_stays_beside_what_changed(guard):
    assert guard.record(MORE, "deeper pipeline") == 0
    table = compiled_table.read(guard.path)
    assert table.reasons == {1: "first", 2: "deeper pipeline"}
    assert table.rows == {POOL: Row(FIGURES, 1), GEMV: Row(MORE[GEMV], 2)}


def test_recording_what_is_recorded_writes_nothing(guard):
    guard.path.unlink()
    assert guard.record(FOUND, "") == 0
    assert not guard.path.exists()


def test_recording_a_file_leaves_the_others(guard):
    assert replace(guard, names={"gemv.cu"}).record({GEMV: MORE[GEMV]}, "deeper pipeline") == 0
    assert compiled_table.read(guard.path).rows.keys() == FOUND.keys()


def test_a_part_of_another_nvccs_is_not_recorded(guard, capsys):
    other = replace(guard, nvcc="13.1.2", names={"gemv.cu"})
    assert other.record({GEMV: MORE[GEMV]}, "new nvcc") == 2
    assert "record all, without FILE and --arch" in capsys.readouterr().err
    assert replace(other, names=None).record(MORE, "new nvcc") == 0
    assert compiled_table.read(guard.path).nvcc == "13.1.2"


def test_figures_are_of_what_ships(tmp_path):
    code = {"gemv": Code(559, (Loop(226, (("FFMA", 32),)),))}
    task = Task(source_path("gemv.cu"), (("ROWS", 2), ("SPLIT_K", 4)), "sm_90a")
    gemv = Compiled(task, (Usage("gemv", "sm_90a", 56, 128, 0, 0),), code)
    others = [
        replace(gemv, task=replace(task, source=kernel_dir() / "lab" / "gemv.cu")),
        replace(gemv, task=replace(task, source=tmp_path / "gemv.cu")),
        replace(gemv, task=replace(task, arch="sm_100")),
    ]
    assert figures([gemv, *others]) == {Key("gemv.cu", "gemv", "ROWS=2,SPLIT_K=4", "sm_90a"): FIGURES}
