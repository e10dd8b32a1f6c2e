"""lab/measure/measure.py: nothing wrong gets a time, nothing endless is waited for, what is timed is said."""

import math
from dataclasses import replace

from tests.lab.conftest import LITTLE
from vgg16gpu_lab.measure.measure import (
    Flush,
    Status,
    TimedTrial,
    choose_effort,
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
    found = measured(rig, "direct-chw", flush=flush)
    flush.close()
    assert found.seconds(cold=True) == found.compute.cold.median_s > 0
    assert rig.device.counters.launches - launches >= 1 + 2 + 1 + 3 + 2 * 3  # checked, warm-ups, warm, cold + flush
    assert str(flush.nbytes >> 20) in flush.description


def test_efforts():
    quick, usual, full = (choose_effort("cpu", quick=q, full=f) for q, f in ((1, 0), (0, 0), (0, 1)))
    assert quick.limit < usual.limit < full.limit == math.inf
    assert (usual.seconds, usual.samples, full.samples) == (0.5, 30, 30)
    assert "until 0.5 s or 30" in usual.description("cpu", "so")
    assert "cold: so" in usual.description("cpu", "so")
    assert "cold: not measured" in quick.description("cuda", "so")
