"""rig.py: what becomes of variants that are wrong, refuse, cannot be launched, do not compile, or take too long."""

import re
from dataclasses import replace
from unittest import mock

import pytest

from tests.lab.conftest import LITTLE
from vgg16gpu.errors import KernelError
from vgg16gpu_lab.measure import bench_rig as module
from vgg16gpu_lab.measure.bench_rig import BenchRig, BrokenDeviceError
from vgg16gpu_lab.measure.measure import Measurement, Status
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variants import variants

SMALL = Problem(1, 2, 24, 24, 3, padding=1)


@pytest.fixture
def outcome(device, own):
    """What becomes of the template with these changes."""

    def measure(*changes, module=(), parameters=()):
        rig = BenchRig(device, own(*changes, module=module), LITTLE)
        return rig.measure("mine", dict(parameters), SMALL)

    return measure


def test_a_right_one_is_measured_once(rig):
    found = rig.measure("direct-chw", {"block": 8}, SMALL)
    assert found.status is Status.RIGHT
    assert rig.measure("direct-chw", {"block": 8}, SMALL) is found
    assert rig.measure("direct-chw", {"block": 16}, SMALL) is not found
    assert rig.percent(SMALL, found.seconds()) > 0


def test_a_wrong_one_gets_no_time(outcome):
    found = outcome(("weight[(((long long)o * C + c)", "weight[(((long long)o * C)"))  # forgets the channel
    assert found.status is Status.WRONG
    assert found.compute is None
    assert found.seconds() is None
    assert found.error > 0.1
    assert "allowed is 1e-05: no time" in found.reason


def test_one_that_does_not_compile(outcome):
    found = outcome(("float sum = 0.f;", "float sum = nonsense;"))
    assert found.status is Status.FAILED
    assert re.search(r"mine\.cu does not compile( for sm_\w+ with \S+)?$", found.reason)
    assert "nonsense" in found.output
    assert found.output.count("\n") > 1
    assert "\n" not in found.reason


def test_what_would_take_too_long_is_scaled_from_a_smaller_problem(device, monkeypatch):
    small, large = (Problem(1, 2, size, size, 3, padding=1) for size in (24, 240))
    rig = BenchRig(device, variants(), LITTLE)
    monkeypatch.setattr(module, "_TRUSTED_SECONDS", 0.0)
    first = rig.measure("direct-chw", {}, small)
    found = rig.measure("direct-chw", {}, large, replace(LITTLE, limit=99 * first.seconds()))
    assert found.status is Status.ESTIMATED
    assert found.seconds() == pytest.approx(100 * first.seconds())
    assert "1x2x24x24" in found.reason
    monkeypatch.setattr(module, "_TRUSTED_SECONDS", 2 * first.seconds())  # too short a run tells nothing
    assert rig.measure("direct-chw", {}, large, replace(LITTLE, limit=98 * first.seconds())).status is Status.RIGHT


def test_a_broken_device_ends_it_by_name(rig):
    with (
        mock.patch.object(rig.device, "allocate", side_effect=KernelError("illegal address")),
        mock.patch.object(rig.device, "synchronize", side_effect=KernelError("illegal address")),
        pytest.raises(BrokenDeviceError, match="direct-chw broke the device: illegal address"),
    ):
        rig.measure("direct-chw", {}, SMALL)
    with pytest.raises(BrokenDeviceError, match="direct-chw broke"):
        rig.measure("direct-rows", {}, SMALL)
    with pytest.raises(BrokenDeviceError, match="direct-chw broke"):
        rig.baseline("numpy", SMALL)


def test_what_cuda_would_reject_is_not_compiled(rig, monkeypatch):
    """A block of 4096 threads: compilers warn of it, and nobody has asked them."""
    built = []
    monkeypatch.setattr(rig.device, "build", built.extend)
    work = [(name, {}, SMALL) for name in ("direct-chw", "im2col-vector", "nonesuch")]
    rig.build([("tiled-shared", {"tile": 64}, SMALL), *work])
    assert {kernel.source for kernel in built} == {"lab/direct_chw.cu", "lab/im2col.cu", "lab/im2col_vector.cu"}


def test_each_setting_has_one_dry_run_and_is_not_run_before(device):
    """Those that are compiled together are tried together, others when they are measured."""
    asked = []

    def dry_run(variant, cases):
        asked.append((variant.name, [(problem.channels, dict(given)) for problem, given in cases]))
        return [Measurement(Status.WRONG, "misses") if given.get("block") == 8 else None for _, given in cases]

    rig = BenchRig(device, variants(), LITTLE, {"direct-chw": dry_run})
    problems = [Problem(1, channels, 8, width, 1) for channels, width in ((1, 8), (1, 9), (2, 9))]
    work = [("direct-chw", {"block": block}, problem) for problem in problems[:2] for block in (8, 16)]
    with mock.patch.object(device, "build", wraps=device.build) as build:
        rig.build([*work, ("direct-hwc", {}, problems[0])])
        assert len(build.call_args.args[0]) == 2
        rig.build([("direct-chw", {"block": 8}, problems[0])])
        assert not build.call_args.args[0]  # what must not be run need not be compiled
    found = [rig.measure("direct-chw", {"block": block}, problem) for problem in problems for block in (8, 16)]
    rig.close()
    assert [one.status for one in found] == [Status.WRONG, Status.RIGHT] * 3
    assert {one.reason for one in found[::2]} == {"misses"}
    both = [(1, {"block": 8}), (1, {"block": 16})]
    assert asked == [("direct-chw", both), *(("direct-chw", [(2, {"block": block})]) for block in (8, 16))]
