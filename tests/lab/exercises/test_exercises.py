"""The exercises: every solution passes, every start fails, and so does what computes right without the idea."""

from dataclasses import replace

import numpy as np
import pytest

from vgg16gpu.errors import DeviceError
from vgg16gpu_lab.exercises.bench import Outcome
from vgg16gpu_lab.exercises.exercise import NAMES, exercise
from vgg16gpu_lab.exercises.judge import check, judge
from vgg16gpu_lab.exercises.log import read_log

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What `judge` sets in a process of its own."""
    monkeypatch.setenv("VGG16GPU_SANITIZE", "poison")
    monkeypatch.setenv("VGG16GPU_ORDER", "forward")


def wrong(verdict):
    assert not verdict.problem, verdict.problem
    return [finding.what for finding in verdict.findings if not finding.ok]


FAILS = {
    "coalesce": ["sectors a read of x", "sectors a write of y"],
    "barrier": ["no race in shared memory"],
    "tile": ["reads of x an output and channel", "reads of shared memory an output and channel"],
    "split": ["PARTS, the blocks that share a sum", "products of the busiest thread"],
    "register-tile": ["reads of shared memory a product"],
    "mma-sync": ["instructions, counted by threads", "words read for an instruction, by a thread"],
}


@pytest.mark.slow(reason="test_cli.py checks one; test_every_judge_has_its_demands has those of all")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_the_solution_passes_and_the_start_fails(device, name):
    found = exercise(name)
    solved = judge(found, found.solution, device)
    assert not wrong(solved)
    assert solved.passed
    started = judge(found, found.start, device)
    assert not started.passed
    assert [what for what in wrong(started) if "right answer" not in what] == FAILS[name]
    assert started.findings[0].ok or name == "barrier"  # every other start computes the right answer


def edited(tmp_path, name, *changes):
    """The solution with pairs of texts exchanged."""
    text = exercise(name).solution.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / f"{name}.cu"
    path.write_text(text)
    return path


CHEATS = {
    "coalesce, read past the counters and written behind y": (
        "coalesce",
        [
            ("x[h * columns + w]", "reinterpret_cast<const float*>(x)[h * columns + w]"),
            ("i >= rows || j >= columns", "i > rows || j >= columns"),
        ],
        "values of x that are read",
    ),
    "barrier, one in every turn": ("barrier", [("sum = fmaf", "__syncthreads(), sum = fmaf")], "barriers a channel"),
    "barrier, the other one missing": (
        "barrier",
        [("    __syncthreads();  // the tile is complete\n", "")],
        "no race in shared memory",
    ),
    "tile, not counted": ("tile", [("__shared__ Counted<float>", "__shared__ float")], "reads of shared memory"),
    "tile, read from memory all the same": (
        "tile",
        [
            (
                "tile[threadIdx.y + p][threadIdx.x + q], filter",
                "tile[threadIdx.y + p][threadIdx.x + q] + 0.f * x[0], filter",
            )
        ],
        "reads of x an output",
    ),
    "split, all of it in every part": (
        "split",
        [("int k = first; k < end;", "int k = 0; k < length;"), ("= sum;\n}\n\n", "= sum / PARTS;\n}\n\n")],
        "products of the busiest thread",
    ),
    "register tile, read for every product": (
        "register-tile",
        [("fmaf(ra[i], rb[j],", "fmaf(as[ty + i * BLOCK][k], bs[k][tx + j * BLOCK],")],
        "reads of shared memory a product",
    ),
    "mma, called for nothing": (
        "mma-sync",
        [
            ("multiply_16x8x16(sum, fa, fb);", "float none[4] = {}; multiply_16x8x16(none, fa, fb);"),
            (
                "  for (int i = 0; i < 4; i++) y[",
                "  for (int k = 0; k < words; k++) for (int i = 0; i < 4; i++) {\n"
                "    const unsigned va = a[(m + i / 2 * 8) * words + k], vb = b[(n + i % 2) * words + k];\n"
                "    sum[i] = fmaf(low(va), low(vb), fmaf(high(va), high(vb), sum[i]));\n  }\n"
                "  for (int i = 0; i < 4; i++) y[",
            ),
        ],
        "words read for an instruction",
    ),
}


@pytest.mark.first_case(reason="test_every_judge_has_its_demands has the demands of all")
@pytest.mark.parametrize("case", CHEATS)
def test_the_check_is_not_fooled(tmp_path, case):
    name, changes, noticed = CHEATS[case]
    verdict = judge(exercise(name), edited(tmp_path, name, *changes), "cpu")
    assert any(what.startswith(noticed) for what in wrong(verdict)), verdict
    if name == "coalesce":
        assert "behind y" in verdict.findings[0].found


class Told:
    """A bench whose kernels compute what they should and do it with these entries of the log."""

    def __init__(self, log, error=0.0, trespass=""):
        self.outcome = Outcome(error, trespass, log)

    def number(self, _name, least, _most):
        return least

    def run(self, case):
        log = replace(self.outcome.log, arrays=dict.fromkeys((*case.given, "y"), (0, 0)))
        return replace(self.outcome, log=log)


NOTHING = read_log(np.zeros(1, np.uint64), {})


def test_every_judge_has_its_demands():
    """Ask that a right answer without notes lacks what each exercise is about."""
    for name, lacks in {
        "coalesce": {"values of x that are read", "values of y that are written"},
        "barrier": {"reads of shared memory an output"},
        "tile": {"values of x that are read", "reads of shared memory an output and channel"},
        "split": {"PARTS, the blocks that share a sum", "values of w that are read"},
        "register-tile": {"values a block writes to shared memory"},
        "mma-sync": {"instructions, counted by threads"},
    }.items():
        found = list(exercise(name).judge(Told(NOTHING)))
        assert found[0].ok, name
        assert {each.what for each in found if not each.ok} == lacks, name
    for outcome, words in (
        (Told(NOTHING, error=0.5), "error 5.0e-01"),
        (Told(NOTHING, error=np.nan), "outputs that nobody wrote"),
        (Told(NOTHING, trespass="behind y"), "it writes behind y"),
        (Told(replace(NOTHING, complete=False)), "more than can be counted"),
    ):
        answer = next(iter(exercise("coalesce").judge(outcome)))
        assert not answer.ok
        assert words in answer.found


def test_a_device_that_is_not_there_is_no_verdict():
    with pytest.raises(DeviceError, match="cuda:77"):
        check(exercise("coalesce").solution, "cuda:77")


def test_what_cannot_be_run_says_why(tmp_path, monkeypatch):
    for name, old, new, said in (
        ("split", "#define PARTS 32", "#define PARTS 9999", "#define PARTS is 9999"),
        ("split", "#define PARTS 32", "constexpr int PARTS = 32;", "#define PARTS is not there"),
        ("coalesce", "float sum = 0.f;", "float sum = 0.f", "does not compile"),
    ):
        assert said in judge(exercise(name), edited(tmp_path, name, (old, new)), "cpu").problem
    path = edited(tmp_path, "coalesce", ("y[i * columns + j] = sum", "y[1ll << 40] = sum"))
    assert "far outside of its arrays" in check(path, "cpu").problem
    path = edited(tmp_path, "coalesce", ("float sum = 0.f;", "float sum = 0.f;\n  for (;;) sum += filter[0];"))
    monkeypatch.setattr("vgg16gpu_lab.exercises.judge.SECONDS", 1.0)
    assert "did not end within 1 s" in check(path, "cpu").problem
