"""lab/measure/cudnn/three.py: three calls of cuDNN, each with a handle and a result of its own, are one time."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from tests.lab.conftest import LITTLE
from tests.lab.fake_libraries import Engine
from tests.lab.measure.conftest import PROBLEM, RIGHT
from vgg16gpu.errors import DeviceError
from vgg16gpu_lab.measure.baseline import CUDNN_THREE, measure_baseline
from vgg16gpu_lab.measure.cudnn.base import Candidate
from vgg16gpu_lab.measure.cudnn.three import CALLS, Together, measure_three
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.reference import Reference


def three(device):
    return measure_three(device, Reference(PROBLEM, LITTLE.products), LITTLE, None)


def test_three_calls_are_one_time(host, front_end):
    seconds = 0.02
    module = front_end(Engine("eng1_slow", seconds=4 * seconds), Engine("eng0", seconds=seconds))
    found = three(host)
    (plan,) = found.plans
    assert (plan.name, plan.order, plan.captured, plan.reason) == ("eng0", "NCHW", True, "")
    assert CALLS * seconds <= plan.median_s < 2 * CALLS * seconds
    assert plan.error < 1e-6
    assert plan.setup_s == CALLS * 7.0
    assert (found.details["calls"], found.details["heuristics"]) == (3, ["A", "B", "FALLBACK"])
    assert module.built[-3:] == [("NCHW", "eng0")] * 3  # the plan alone
    assert not module.handles


def test_all_results_are_looked_at():
    reference = Reference(PROBLEM, 10**6)
    factors = [1.0] * CALLS
    together = Together([told_session(reference, factors, i) for i in range(CALLS)], reference)
    assert reference.error(together.y()) < 1e-6
    for place, wrong in product(range(CALLS), (2.0, np.nan)):
        factors[:] = [1.0] * CALLS
        factors[place] = wrong
        assert not reference.error(together.y()) < 0.1
    fails = {"run": None, "reason": "no room"}
    sessions = [told_session(reference, factors, i, **(fails if i == 1 else {})) for i in range(CALLS)]
    (candidate,) = Together(sessions, reference).candidates
    assert (candidate.run, candidate.reason) == (None, "no room")


def told_session(reference, factors, index, **options):
    """A session whose result is so many times the right one."""
    candidate = Candidate("eng0", options.pop("run", lambda: None), **options)
    y = reference.expected.astype(np.float32)
    return SimpleNamespace(candidates=[candidate], y=lambda: y * np.float32(factors[index]))


def test_no_plan_is_a_refusal(host, front_end):
    module = front_end(RIGHT)
    three(host)
    module.plan_error = "No valid engine configs"
    found = measure_baseline(CUDNN_THREE, host, Reference(PROBLEM, 10**6), LITTLE, None)
    assert (found.status, "No valid engine configs" in found.reason) == (Status.REFUSED, True)


def test_memory_is_given_back(host, front_end):
    front_end(Engine("eng1", workspace=1 << 20))
    allocated, freed = [], []
    allocate, free = host.allocate, host.free
    host.allocate = lambda nbytes: allocated.append(allocate(nbytes)) or allocated[-1]
    host.free = lambda address: freed.append(address) or free(address)
    three(host)
    assert sorted(allocated) == sorted(freed)
    assert len(allocated) == 4 + 4 + CALLS * 3  # the first of all, the one that chooses, and those that share its x
    room = iter(range(6))

    def full(nbytes):
        if next(room, None) is None:
            raise DeviceError(f"no {nbytes} bytes")
        return allocate(nbytes)

    host.allocate = full
    with pytest.raises(DeviceError, match="bytes"):
        three(host)


def test_through_torch(host, torch):
    found = three(host)
    assert (len(found.plans), found.best.error < 1e-6, found.heuristics) == (1, True, ("torch's benchmark",))
    assert not torch.backends.cudnn.benchmark
