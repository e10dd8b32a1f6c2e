"""tools/compiled_table.py: it is read as it was written, it tells what differs, and the shipped one is complete."""

import compiled_table
import kernel_variants
import pytest
from compiled_guard import ARCHS, setting
from compiled_table import Figures, Key, Row, Table, compare, renewed
from kernel_compile import Task, architectures

from vgg16gpu.devices.kernel_source import own_sources

POOL = Key("pool.cu", "pool_f32", "AVERAGE=1", "sm_80")
GEMV = Key("gemv.cu", "gemv", "WEIGHT=0,ROWS=2", "sm_90a")
FIGURES = Figures(56, 128, 0, 0, 559, ("226, FFMA 32, global 12", "9, shared 2"))
SHORT = Figures(20, 0, 0, 0, 90)
TABLE = Table("13.0.88", {1: "first", 2: "wider loads"}, {POOL: Row(SHORT, 1), GEMV: Row(FIGURES, 2)})


def changed(**figures):
    return compare(TABLE.rows, {POOL: SHORT, GEMV: Figures(**{**vars(FIGURES), **figures})})


def test_it_is_read_as_it_was_written(tmp_path):
    compiled_table.write(TABLE, tmp_path / "table.txt")
    assert compiled_table.read(tmp_path / "table.txt") == TABLE
    assert compiled_table.read(tmp_path / "none.txt") == Table()


def test_a_row_is_a_line():
    assert str(TABLE).splitlines()[-2:] == [
        "gemv.cu gemv sm_90a WEIGHT=0,ROWS=2 | 56 registers, 128 B shared, 0 B stack, 0 B spilled, 559 instructions"
        " | 226, FFMA 32, global 12; 9, shared 2 | 2",
        "pool.cu pool_f32 sm_80 AVERAGE=1 | 20 registers, 0 B shared, 0 B stack, 0 B spilled, 90 instructions |  | 1",
    ]


def test_a_line_that_is_not_understood(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(f"{TABLE}<<<<<<< HEAD\n")
    with pytest.raises(ValueError, match=r"table.txt, line 8 is not understood: '<<<<<<< HEAD'"):
        compiled_table.read(path)


def test_nothing_differs():
    assert changed() == {}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"registers": 60}, "registers: was 56, is 60"),
        ({"shared_nbytes": 64}, "bytes of shared memory: was 128, is 64"),
        ({"stack_nbytes": 8}, "bytes of stack: was 0, is 8"),
        ({"spill_nbytes": 8}, "bytes spilled: was 0, is 8"),
        ({"instructions": 560}, "instructions: was 559, is 560"),
        ({"loops": ("227, FFMA 32", "9, shared 2")}, "loop 1: was [226, FFMA 32, global 12], is [227, FFMA 32]"),
        ({"loops": FIGURES.loops[:1]}, "loop 2: was [9, shared 2], is none"),
        ({"loops": (*FIGURES.loops, "4, local 1")}, "loop 3: was none, is [4, local 1]"),
    ],
)
def test_a_figure_that_changed(figures, words):
    assert changed(**figures) == {GEMV: words}


def test_a_kernel_that_is_new_and_one_that_is_gone():
    differences = compare({POOL: TABLE.rows[POOL]}, {GEMV: FIGURES})
    assert differences.keys() == {POOL, GEMV}
    assert "is gone" in differences[POOL]
    assert "is new" in differences[GEMV]


def test_without_a_disassembler_the_rest_is_compared():
    assert changed(instructions=None, loops=()) == {}
    assert changed(instructions=None, loops=(), registers=60) == {GEMV: "registers: was 56, is 60"}


def test_what_differs_has_the_new_reason_and_the_rest_its_own():
    more = Figures(60, 128, 0, 0, 559)
    found = renewed(TABLE, "13.0.88", {GEMV: more}, {GEMV: "registers", POOL: "is gone"}, " deeper\npipeline ")
    assert found.rows == {GEMV: Row(more, 3)}
    assert found.reasons == {**TABLE.reasons, 3: "deeper pipeline"}


def test_the_shipped_table_has_every_kernel_file_and_setting():
    """`python tools/ptxas.py --record --reason "..."` adds what is missing."""
    wanted = {
        (source.name, setting(Task(source, defines, arch)), arch)
        for source in own_sources()
        for arch in architectures(source, ARCHS[:-1])
        for defines in kernel_variants.variants(source)
    }
    table = compiled_table.read()
    recorded = {(key.file, key.setting, key.arch) for key in table.rows}
    assert (wanted - recorded, recorded - wanted) == (set(), set())
    assert {row.reason for row in table.rows.values()} <= table.reasons.keys()
    assert not any(row.figures.spill_nbytes for row in table.rows.values())
    assert all(row.figures.instructions for row in table.rows.values())


def test_the_shipped_table_knows_the_main_loops():
    """A kernel that multiplies on tensor cores does so in a loop that is counted."""
    rows = compiled_table.read().rows
    for name, opcodes in (
        ("conv_wgmma", ("HGMMA", "IGMMA")),
        ("conv_mma", ("HMMA", "IMMA")),
        ("gemv", ("FFMA", "IDP")),
    ):
        loops = [row.figures.loops for key, row in rows.items() if key.kernel == name]
        assert loops
        for found in loops:
            assert any(opcode in loop for loop in found for opcode in opcodes), (name, found)
