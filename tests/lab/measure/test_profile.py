"""lab/measure/profile.py and `lab profile`, with an ncu that is made here and prints what ncu prints in its form."""

import json
import os
import sys

import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu_lab.measure.profile import NO_NCU, READINGS, find_ncu, read_csv

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
VALUES = ("412,345", "35.5", "71.25", "22", "14.37", "49.8", "31.56", "0", "88.1", "n/a")


def lines(launch, kernel, values):
    place = f'"{launch}","7","python","here","{kernel}","1","7","(16, 16, 1)","(64, 64, 1)","0","9.0"'
    named = zip(READINGS, values, strict=True)
    return [f'{place},"Command line profiler metrics","{reading.metric}","x","{value}"' for reading, value in named]


OUTPUT = "\n".join(
    [
        "==PROF== Connected to process 7",
        HEAD,
        *lines(0, "direct_chw_f32(float *, const float *)", VALUES),
        *lines(1, "other", ("1", "80", "20", *["0"] * 7)),
        "==PROF== Disconnected from process 7",
    ]
)


def test_what_ncu_prints_is_read():
    first, second = read_csv(OUTPUT)
    assert (first.kernel, first.grid, first.block) == ("direct_chw_f32", "(64, 64, 1)", "(16, 16, 1)")
    assert first.values["gpu__time_duration.sum"] == 412345
    assert first.values["lts__t_sector_hit_rate.pct"] is None
    assert first.bound == "memory"
    assert second.bound.startswith("the multiprocessors")
    (idle,) = read_csv("\n".join([HEAD, *lines(0, "k", ("1", "59", "10", *["0"] * 7))]))
    assert idle.bound.startswith("latency")
    (silent,) = read_csv("\n".join([HEAD, *lines(0, "k", ["n/a"] * 10)]))
    assert silent.bound.startswith("unknown")
    assert read_csv("nothing\n") == ()
    assert len({reading.metric for reading in READINGS}) == 10


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts an ncu on PATH that prints a text, and runs the target if told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)

    def make(text, *, status=0, runs=True):
        (folder / "output").write_text(text)
        script = folder / "ncu"
        script.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, subprocess, sys\n"
            f"here = pathlib.Path({str(folder)!r})\n"
            "(here / 'arguments').write_text('\\n'.join(sys.argv[1:]))\n"
            "target = sys.argv[sys.argv.index('--metrics') + 2:]\n"
            f"ended = subprocess.call(target) if {runs} else 0\n"
            "print((here / 'output').read_text())\n"
            f"sys.exit(ended or {status})\n"
        )
        script.chmod(0o755)
        return folder / "arguments"

    return make


def profile(*arguments):
    return CliRunner().invoke(cli, ["lab", "profile", *map(str, arguments)])


SMALL = ("--size", 8, "--output-channels", 2, "--device", "cpu")


def test_profile(fake, tmp_path):
    arguments = fake(OUTPUT)
    done = profile("direct-chw", *SMALL, "--output", "profile.json")
    assert done.exit_code == 0, done.output
    assert "direct_chw_f32: grid (64, 64, 1), block (16, 16, 1)" in done.stdout
    assert all(f"  {reading.name}:" in done.stdout for reading in READINGS)
    assert "412 us" in done.stdout
    assert "31.6 sectors" in done.stdout
    assert "Bound by memory." in done.stdout
    given = arguments.read_text().splitlines()
    assert given[given.index("--clock-control") + 1] == "none"
    record = json.loads((tmp_path / "profile.json").read_text())
    assert (record["variant"], record["problem"]["height"]) == ("direct-chw", 8)
    assert record["environment"]["device"]["kind"] == "cpu"
    assert record["kernels"][0]["bound"] == "memory"


def refused(done):
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_what_is_missing_is_said_in_a_line(monkeypatch):
    monkeypatch.setattr("vgg16gpu_lab.measure.profile.find_ncu", lambda: None)
    assert NO_NCU in refused(profile("direct-chw"))
    assert "no variant 'nothing'" in refused(profile("nothing"))


def test_what_ncu_complains_of_is_said(fake):
    fake("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", status=1, runs=False)
    assert "NVreg_RestrictProfilingToAdminUsers" in refused(profile("direct-chw", *SMALL))
    fake("==WARNING== No kernels were profiled.", runs=False)
    assert "gave no readings: ==WARNING== No kernels" in refused(profile("direct-chw", *SMALL))
    fake("")
    assert "needs a GPU of compute capability 9.x" in refused(profile("wgmma-smallest", *SMALL))


def test_where_ncu_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    home = tmp_path / "cuda"
    place = home / "nsight-compute-2025.3" / "ncu"
    place.parent.mkdir(parents=True)
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert find_ncu() == place
    beside = home / "bin" / "ncu"
    beside.parent.mkdir()
    beside.symlink_to(place)
    assert find_ncu() == beside
