"""lab/measure/usage.py: what kernels take, and what a multiprocessor has room for."""

import json

import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu.devices.base import KernelResources
from vgg16gpu.devices.cuda.compiler import find_nvcc
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu_lab.measure import usage
from vgg16gpu_lab.measure.usage import LIMITS, usages
from vgg16gpu_lab.variants import variants

HOPPER = LIMITS[9, 0]


@pytest.fixture
def no_card(monkeypatch):
    def refuse(name):
        raise DeviceError(f"no {name}")

    monkeypatch.setattr(usage, "open_device", refuse)


def chosen(*names):
    return [variant for variant in variants() if variant.name in names]


@pytest.mark.usefixtures("no_card")
def test_as_nvcc_says():
    if find_nvcc() is None:
        pytest.skip("no nvcc")
    found = usages(chosen("tiled-shared"))
    assert (found.capability, found.card) == ((9, 0), "")
    (tile,) = found.kernels
    assert (tile.variant, tile.source, tile.block) == ("tiled-shared", "lab/tiled_shared.cu", (16, 16, 1))
    assert tile.shared_nbytes == 4 * 18**2
    assert 16 <= tile.registers <= 64
    assert tile.occupancy == tile.resident_blocks * 256 / 2048
    assert found.content["kernels"][0]["block"] == (16, 16, 1)


@pytest.mark.usefixtures("no_card")
def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'no licence' >&2\nexit 1\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(usage, "find_nvcc", lambda: nvcc)
    with pytest.raises(KernelError, match="no licence"):
        usages(chosen("direct-chw"))


@pytest.mark.usefixtures("no_card")
def test_the_list(monkeypatch):
    def compiled(kernels, *_):
        return dict.fromkeys(kernels, KernelResources(40, 1024, 8))

    monkeypatch.setattr(usage, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(usage, "nvcc_release", lambda _: "13.0.88")
    monkeypatch.setattr(usage, "_compiled", compiled)
    shown = CliRunner().invoke(cli, ["lab", "list", "--kernels"]).stdout
    assert "compute capability 9.0, nvcc 13.0.88" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if "│" in line)
    (row,) = (line for line in shown.splitlines() if "direct_chw_f32 " in line)
    assert [cell.strip() for cell in row.split("│")][1:-1] == [
        "direct_chw_f32", "40", "1024", "6", "75 %", "registers",
    ]  # fmt: skip
    assert "direct_chw_f32<3>: 8 bytes of each thread" in shown
    found = json.loads(CliRunner().invoke(cli, ["lab", "list", "--kernels", "--json"]).stdout)
    assert {taken["variant"] for taken in found["kernels"]} == {variant.name for variant in variants()}
    monkeypatch.setattr(usage, "find_nvcc", lambda: None)
    refused = CliRunner().invoke(cli, ["lab", "list", "--kernels"])
    assert refused.exit_code == 2
    assert "no GPU and no nvcc" in refused.stderr


@pytest.mark.gpu
def test_as_the_card_says():
    found = usages(variants())
    assert found.card
    names = {variant.name for variant in variants() if found.capability == (9, 0) or not variant.hopper}
    assert {taken.variant for taken in found.kernels} == names
    assert all(taken.registers > 0 and taken.resident_blocks > 0 for taken in found.kernels)
