"""cli/lab/command.py: what is chosen, printed, written, and the exit codes."""

import json

import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu_lab.claims.table import CPU_NOTE
from vgg16gpu_lab.measure.bench_rig import BenchRig, BrokenDeviceError
from vgg16gpu_lab.variants import variants

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(cli, ["lab", *map(str, args)])

    return invoke


def refused(result):
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_list(lab):
    result = lab("list")
    assert result.exit_code == 0
    found = json.loads(lab("list", "--json").stdout)
    assert [variant["name"] for variant in found["variants"]] == [variant.name for variant in variants()]
    for name in ("S1", "S2", "S4", *(variant["name"] for variant in found["variants"])):
        assert name in result.stdout


def test_run_an_experiment(lab, tmp_path):
    result = lab("run", "s2", "--device", "cpu", "--quick", "--size", "32", "--strides", "2", "--blocks", "8,64")
    assert result.exit_code == 0, result.output
    for text in ("gemm_partition", "(times of a CPU)", "cudnn", "Quadro M4000", "INVALID LAUNCH"):
        assert text in result.stdout
    assert "0 pictures" in result.stdout
    assert "no figure here" in result.stdout
    found = json.loads((tmp_path / "lab-results" / "S2.json").read_text())
    assert {row["parameter"] for row in found["rows"] if row["table"] == "stride"} == {"stride=2"}
    assert (tmp_path / "lab-results" / "S2.csv").is_file()
    (taken,) = json.loads(lab("claims", "--json").stdout)["records"]  # which reads what was written
    assert (taken["kind"], taken["quick"], taken["floor_ms"] > 0) == ("cpu", True, True)
    assert CPU_NOTE in lab("claims").stdout


SHAPE = {"channels": 2, "outputs": 5, "kernel": 5, "padding": 0, "batch": 2}


def test_run_variants_by_name(lab):
    shape = [part for name, value in SHAPE.items() for part in (f"--{name}", value)]
    options = ("--device", "cpu", "--quick", "--json", "--size", "24", "--strides", "2", "--blocks", "8,16")
    result = lab("run", "direct-chw", "winograd", *options, *shape)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["results"]
    methods = [row["method"] for row in found["rows"]]
    assert methods == ["direct-chw block=8", "direct-chw block=16", "winograd", "cudnn"]
    assert found["rows"][0]["problem"] == {**SHAPE, "height": 24, "width": 24, "stride": 2, "bias": False}
    assert found["rows"][2]["status"] == "refused"


def test_own_kernels_from_new_to_run(lab, tmp_path):
    assert lab("new", "mine").exit_code == 0
    assert "is there already" in refused(lab("new", "mine"))
    assert "mine" in lab("list", "--dir", "lab").stdout
    options = ("--device", "cpu", "--quick", "--size", "24", "--strides", "1", "--dir", "lab", "--json")
    result = lab("run", "mine", "direct-chw", *options)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["results"]
    assert [row["status"] for row in found["rows"] if row["variant"] == "mine"] == ["right"]
    assert found["options"]["own"] == ["mine"]
    (tmp_path / "lab" / "mine.cu").unlink()  # wrong ones: tests/lab/broken
    assert lab("run", "mine", *options).exit_code == 1


def test_what_was_right_before_the_device_broke_is_1(lab, monkeypatch):
    measure = BenchRig._measure

    def breaks_later(rig, name, *rest):
        if name == "direct-rows":
            rig.broken = f"{name} broke the device"
            raise BrokenDeviceError(rig.broken)
        return measure(rig, name, *rest)

    monkeypatch.setattr(BenchRig, "_measure", breaks_later)
    names = ("direct-chw", "direct-rows")
    result = lab("run", *names, "--device", "cpu", "--quick", "--json", "--size", "32", "--strides", "1")
    assert result.exit_code == 1, result.output
    assert "direct-rows broke the device" in result.stderr
    statuses = {row["variant"]: row["status"] for row in json.loads(result.stdout)["results"][0]["rows"]}
    assert statuses["direct-chw"] == "right"
    assert statuses["direct-rows"] == "failed"


def test_wrong_usage(lab):
    for command, words in (
        ("run direct-chv", "did you mean direct-chw"),
        ("run qqq", "`vgg16gpu lab list` has the names"),
        ("run", "say what to run: S1"),
        ("run S1 --quick --full", "exclude each other"),
        ("run S1 --kernel 3", "for variants by name"),
        ("run S1 --image 14", "are for S3"),
        ("run S1 --dir nowhere", "is no folder"),
        ("run S1 --size 0", "is not a size"),
        ("new ../x", "no name for a variant"),
        ("run S3 S5 --strides 2", "--strides is not for S3, S5"),
    ):
        assert words in refused(lab(*command.split())), command
    assert lab("new", "mine").exit_code == 0
    assert "yours needs --dir lab" in refused(lab("run", "mine"))
