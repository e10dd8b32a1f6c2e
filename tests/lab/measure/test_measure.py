"""lab/measure/measure.py: nothing wrong gets a time, nothing endless is waited for, what is timed is said."""

import math
from dataclasses import replace

from tests.lab.conftest import LITTLE
from vgg16gpu.bench.measure.timing import Summary
from vgg16gpu_lab.measure.measure import (
    Flush,
    Measurement,
    Status,
    TimedTrial,
    Times,
    choose_effort,
    flush_nbytes,
    measure,
)
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.reference import Reference

SMALL = Problem(1, 3, 40, 40, 2, padding=1)


def measured(rig, name, effort=LITTLE, flush=None):
    reference = Reference(SMALL, effort.products)
    with TimedTrial(rig.device, rig.variants[name], SMALL, {}, reference.inputs) as trial:
        return measure(trial, reference, effort, flush)


def test_conversion_and_computation_are_timed_apart(rig):
    found = measured(rig, "im2col-vector", replace(LITTLE, seconds=60.0))  # three samples end it, however slow
    assert found.status is Status.RIGHT
    assert found.error <= found.tolerance
    assert found.checked == "all outputs"
    compute, convert = found.compute.warm, found.convert.warm
    assert compute.samples == convert.samples == 3
    assert found.seconds() == compute.median_s > 0
    assert found.seconds("total") == compute.median_s + convert.median_s
    assert found.seconds(cold=True) is None
    assert measured(rig, "direct-chw").convert is None


def test_cold_caches(rig):
    flush = Flush(rig.device)
    launches = rig.device.counters.launches
    found = measured(rig, "direct-chw", replace(LITTLE, seconds=60.0), flush)
    flush.close()
    assert found.seconds(cold=True) == found.compute.cold.median_s > 0
    assert rig.device.counters.launches - launches >= 1 + 2 + 1 + 3 + 2 * 3  # checked, warm-ups, warm, cold + flush
    assert str(flush.nbytes >> 20) in flush.description


def test_what_is_flushed_is_larger_than_the_last_level(tmp_path):
    for index, size in enumerate(("48K", "2048K", "491520K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert flush_nbytes("cpu", tmp_path) > 491520 << 10
    assert flush_nbytes("cpu", tmp_path) % 4096 == 0
    assert flush_nbytes("cpu", tmp_path / "missing") == 64 << 20
    assert flush_nbytes("cuda", tmp_path) == 256 << 20


def test_efforts():
    quick, usual, full = (choose_effort("cpu", quick=q, full=f) for q, f in ((1, 0), (0, 0), (0, 1)))
    assert quick.limit < usual.limit < full.limit == math.inf
    assert (usual.seconds, usual.samples, full.samples) == (0.5, 30, 30)
    assert "until 0.5 s or 30" in usual.description("cpu", "so")
    assert "cold: so" in usual.description("cpu", "so")
    assert "cold: not measured" in quick.description("cuda", "so")


def test_seconds_of_parts():
    one, two = (Times(Summary(value, value, value, 3), Summary(2 * value, value, value, 3)) for value in (1.0, 2.0))
    both = Measurement(Status.RIGHT, compute=one, convert=two)
    assert [both.seconds(), both.seconds("total"), both.seconds("total", cold=True)] == [1.0, 3.0, 6.0]
    assert Measurement(Status.RIGHT, compute=one, convert=Times(two.warm)).seconds("total", cold=True) is None
    assert Measurement(Status.REFUSED).seconds() is None
    estimate = Measurement(Status.ESTIMATED, estimate_s=4.0)
    assert (estimate.seconds("total"), estimate.seconds(cold=True)) == (4.0, None)
    estimate = replace(estimate, estimate_convert_s=2.0)
    assert (estimate.seconds(), estimate.seconds("total")) == (4.0, 6.0)
    assert [status for status in Status if status.is_fault] == [Status.WRONG, Status.FAILED]
