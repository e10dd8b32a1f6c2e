"""`lab run` gives a kernel with a mistake no time, says what is wrong, and ends with exit code 1."""

from __future__ import annotations

import json
import os
import re

import pytest
from click.testing import CliRunner

from tests.lab.broken.kernels import BROKEN
from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.cli import cli
from vgg16gpu.devices.cpu import sanitize
from vgg16gpu.errors import DeviceError
from vgg16gpu_lab.measure import bench_rig
from vgg16gpu_lab.measure.dry_run import dry_run

ON_A_GPU = (  # the four of the reviews, and what a GPU alone would not show, or in another way
    "a row and a column too many",
    "no guard",
    "does not compile",
    "never ends",
    "far outside",
    "beside, through fmaxf",
    "beside, thrown away",
    "barrier missing",
)
IN_MAKE_TEST = {"a row and a column too many": True, "does not compile": False, "beside, thrown away": True}  # quick
NIGHTLY = pytest.mark.slow(reason="a write, a read, no compiling are in make test; test_dry_run.py has a right setting")
CASES = [
    pytest.param(name, quick, marks=() if IN_MAKE_TEST.get(name) is quick else NIGHTLY)
    for name in BROKEN
    for quick in (True, False)
]
OPTIONS = ("--dir", "lab", "--size", "16", "--channels", "2", "--output-channels", "3")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    if "VGG16GPU_SANITIZE" in os.environ:
        pytest.skip("the kernels are run under a sanitizer already")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_rig, "measure_ceilings", lambda _: Ceilings(1e9, 1e9, 1, "", {}))
    monkeypatch.setattr(dry_run, "SECONDS", 6.0)


@pytest.fixture
def lab(tmp_path):
    """Runs the kernel of `lab new` in a comparison: exit code, its rows, what was printed."""
    assert CliRunner().invoke(cli, ["lab", "new", "mine"]).exit_code == 0

    def run(device, *options):
        result = CliRunner().invoke(cli, ["lab", "run", "mine", "--device", device, *OPTIONS, *options])
        assert "Traceback" not in result.output, result.output
        rows = json.loads((tmp_path / "lab-results" / "comparison.json").read_text())["rows"]
        return result.exit_code, [row for row in rows if row["variant"] == "mine"], result.output

    return run


def needs_the_sanitizer():
    try:
        sanitize.environment("address")
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.first_case(reason="all wrong kernels run nightly")
@pytest.mark.parametrize(("name", "quick"), CASES)
def test_a_broken_kernel_is_refused_and_named(lab, tmp_path, name, quick):
    broken = BROKEN[name]
    if "sanitizer" in broken.said:
        needs_the_sanitizer()
    broken.write(tmp_path / "lab" / "mine.cu")
    code, rows, printed = lab("cpu", *broken.options, *(["--quick"] if quick else []))
    assert code == 1, printed
    assert rows
    for row in rows:
        if broken.right and any(word in f"{row['method']} {row['parameter']}" for word in broken.right):
            assert (row["status"], row["remark"]) == ("right", "")
            assert row["ours"] > 0
        else:
            assert row["status"] in ("wrong", "failed"), row
            assert row["ours"] is None
            assert re.search(broken.said, row["remark"]), row["remark"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_broken_kernel_is_refused_on_a_gpu(lab, tmp_path, name):
    """And the GPU is as good as before. What a kernel reads and does not use shows under a sanitizer alone."""
    if "sanitizer" in BROKEN[name].said:
        needs_the_sanitizer()
    assert CliRunner().invoke(cli, ["lab", "new", "right"]).exit_code == 0
    BROKEN[name].write(tmp_path / "lab" / "mine.cu")
    code, rows, printed = lab("cuda", "right", "--quick", *BROKEN[name].options)
    assert code == 1, printed
    for row in rows:
        assert row["status"] in ("wrong", "failed"), row
        assert row["ours"] is None
        assert re.search(f"^dry run on an output of|{BROKEN[name].said}", row["remark"]), row["remark"]
    found = json.loads((tmp_path / "lab-results" / "comparison.json").read_text())["rows"]
    assert {row["status"] for row in found if row["variant"] == "right"} == {"right"}
