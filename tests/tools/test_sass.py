"""tools/sass.py: the loops of recorded code, and what is counted as one."""

from pathlib import Path

import pytest
import sass

# From nvdisasm, for sm_80. Where m is at most 0 the inner loop falls away, so nvcc wrote the outer one twice.
#   for (int i = 0; i < n; ++i) {
#     s[threadIdx.x] = a[i];
#     while (*flag == i) {}                                    // volatile
#     float sum = 0;
#     for (int k = 0; k < m; ++k) sum = fmaf(s[k], s[k+1], sum);
#     b[i] = sum;
#   }
NEST = Path(__file__).parents[1] / "fixtures" / "nest.sass"


def code(*lines):
    """The kernel `k` of some lines, a label or an instruction each."""
    text = (
        line if line.startswith(".L") else f"        /*{number * 16:04x}*/   {line} ;"
        for number, line in enumerate(lines)
    )
    return sass.read("//----- .text.k -----\nk:\n.text.k:\n" + "\n".join(text))["k"]


def loops(*lines):
    return [str(loop) for loop in code(*lines).loops]


def test_nested_loops_of_real_code():
    """The wait is part of the loop around it; the inner loop is not."""
    nest = sass.read(NEST.read_text())["nest"]
    assert nest.instructions == 54
    assert list(map(str, nest.loops)) == [
        "15, barrier 1, global 2",
        "18, barrier 1, global 2, shared 1",
        "7, FFMA 1, shared 2",
    ]


def test_a_loop_of_one_block():
    assert loops("MOV R1, R2", ".L_x_0:", "FFMA R1, R2, R3, R1", "LDS R2, [R4]", "@P0 BRA `(.L_x_0)", "EXIT") == [
        "3, FFMA 1, shared 1"
    ]


def test_code_without_a_loop():
    found = code("FFMA R1, R2, R3, R1", "@P0 BRA `(.L_x_0)", "STG.E [R2.64], R1", ".L_x_0:", "EXIT", "NOP")
    assert found == sass.Code(4, ())


@pytest.mark.parametrize("wait", ["SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR8], R6", "LDG.E.STRONG.SYS R3, [R4.64]"])
def test_a_loop_that_only_waits_is_none(wait):
    assert loops(".L_x_0:", wait, "@!P0 BRA `(.L_x_0)", "EXIT") == []


def test_what_other_blocks_wrote_is_data():
    assert loops(".L_x_0:", "LDG.E.64.STRONG.GPU R2, [R4.64]", "@!P0 BRA `(.L_x_0)", "EXIT") == ["2, global 1"]


def test_threads_that_take_turns_are_no_loop():
    body = (".L_x_1:", "@P0 ELECT P1, URZ, PT", "UTMALDG.2D [UR8], [UR6]", "@P0 BRA.U.ANY `(.L_x_1)")
    assert loops(*body, "EXIT") == []
    assert loops(".L_x_0:", *body, "@P2 BRA `(.L_x_0)", "EXIT") == ["4, global 1"]


def test_code_that_lies_elsewhere_and_comes_back_is_no_loop():
    assert loops("BRA.DIV ~URZ, `(.L_x_1)", "LDG.E R1, [R2.64]", ".L_x_0:", "EXIT", ".L_x_1:", "BRA `(.L_x_0)") == []


def test_a_branch_to_several_places():
    table = 'BRX R4 -0x20  (*"BRANCH_TARGETS .L_x_0,.L_x_1"*)'
    assert loops(".L_x_0:", "LDS R2, [R4]", table, "STS [R4], R2", ".L_x_1:", "EXIT") == ["2, shared 1"]


def test_two_ways_back_are_one_loop():
    body = (".L_x_0:", "LDS R2, [R4]", "@P0 BRA `(.L_x_0)", "STS [R4], R2", "@P1 BRA `(.L_x_0)")
    assert loops(*body, "EXIT") == ["4, shared 2"]


def test_a_move_through_the_tensor_cores_way_is_no_product():
    assert loops(".L_x_0:", "HFMA2.MMA R5, -RZ, RZ, 0, 0", "@P0 BRA `(.L_x_0)", "EXIT") == []


def test_every_kernel_has_its_own_code():
    second = NEST.read_text().replace("nest", "other")
    assert set(sass.read(NEST.read_text() + second)) == {"nest", "other"}


def test_output_that_is_no_code():
    with pytest.raises(ValueError, match="no code"):
        sass.read("nvdisasm fatal: nothing")
