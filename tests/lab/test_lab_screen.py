"""cli/lab/screen.py: tables that fit a terminal, their remarks and a compiler's words below them."""

import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.timing import Summary
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu_lab.cli import screen as lab_screen
from vgg16gpu_lab.experiment import Row, experiments
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Measurement, Status, Times
from vgg16gpu_lab.variants import variants

FACTS = DeviceFacts("cpu", "a processor", 2, (0, 0), 49152, 1 << 30, 1 << 30)
SAMPLE = Times(Summary(1.234e-3, 1.3e-3, 1.2e-3, 30), Summary(2.5e-3, 2.9e-3, 2.2e-3, 30))
COMPILER = (
    "mine.cu: In function 'void mine(float*, const float*, const float*, int, int, int, int, int, int, int, int)':\n"
    "mine.cu:14:15: error: 'nonsense' was not declared in this scope\n"
    "   14 |   float sum = nonsense;\n"
    "      |               ^~~~~~~~"
)
REASON = "a run would take longer than 45 s: that of 1x3x511x511, scaled by FLOP (--full runs it)"


def row(method, status=Status.RIGHT, reason="", output="", **more):
    times = SAMPLE if status is Status.RIGHT else None
    found = Measurement(status, reason, 9.8e-8, 1e-5, "all outputs", times, times, output=output)
    ours = 1.234 if times else None
    return Row("S2", "layer", "1024", method, "block=16 outputs=64", ours, 0.34, measurement=found, **more)


ROWS = (
    row("gemm-register", note="not theirs: a true register tile", ours_percent=29.1, theirs_percent=3.25),
    row("mine", Status.FAILED, "mine.cu does not compile", COMPILER),
    row("mine block=8", Status.FAILED, "mine.cu does not compile", COMPILER),
    row("shared", Status.INVALID, "a block of 64x64x1 is 4096 threads, at most 1024 can be launched"),
    row("by_row", Status.ESTIMATED, REASON),
)


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a function prints in a terminal of so many columns."""

    def lines(width, function, *arguments):
        monkeypatch.setattr(lab_screen, "console", lambda: Console(width=width, highlight=False))
        function(*arguments)
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.fixture
def rig():
    opened = BenchRig(SimpleNamespace(facts=FACTS), [], None)
    opened.__dict__["ceilings"] = Ceilings(1e11, 1e10, 1, "", {})
    return opened


def rows_of(rig):
    experiment = SimpleNamespace(name="S2", title="Title", teaches="A sentence.", method=lambda _: "As usual")
    return lab_screen.print_rows, experiment, ROWS, rig


def words(lines):
    """Of tables."""
    found = [line for line in lines if re.search("[│┃]", line)]
    return {word for line in found for word in re.split("[│┃ ]+", line)}


def test_no_word_is_split_and_no_table_is_too_wide(printed, rig):
    for shown in (rows_of(rig), (lab_screen.print_list, experiments(), variants())):
        lines = printed(80, *shown)
        assert max(len(line) for line in lines if re.search("[│┃]", line)) <= 80
        assert words(lines) <= words(printed(1000, *shown))
