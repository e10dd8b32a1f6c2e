"""library.py: every plan of cuDNN is listed with its time or with why it has none."""

import json
from dataclasses import replace

import pytest

from tests.lab.conftest import LITTLE
from tests.lab.fake_libraries import Engine, crashing, partly, rounded
from tests.lab.measure.conftest import PROBLEM, RIGHT, tried
from vgg16gpu.errors import KernelError
from vgg16gpu_lab.measure.baseline import CUDNN
from vgg16gpu_lab.measure.bench_rig import BenchRig, BrokenDeviceError
from vgg16gpu_lab.measure.cudnn.library import WORKSPACE_NBYTES
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.variants import variants


def by_name(result, order="NCHW"):
    return {plan.name: plan for plan in result.plans if plan.order == order}


def test_every_plan_is_listed_with_its_time_or_why_it_has_none(host, front_end):
    module = front_end(
        Engine("eng1_slow", seconds=0.01),
        RIGHT,
        RIGHT,  # as another heuristic names it
        Engine("eng2_tensor_core", rounded, notes=("TENSOR_CORE",)),
        Engine("eng3_winograd", notes=("WINOGRAD",), workspace=4096, seconds=0.01),
        Engine("eng4_big", workspace=WORKSPACE_NBYTES + 10**6),
        Engine("eng5_unsupported", builds=False),
        Engine("eng6_crashes", crashing),
        Engine("eng7_leaves_out", partly),
        Engine("eng8_rounds", rounded),
    )
    found = tried(host)
    assert (found.version, found.through) == ("9.12.34", "nvidia-cudnn-frontend 1.99.0")
    for order in ("NCHW", "NHWC"):
        plans = by_name(found, order)
        assert {name: plan.times is not None for name, plan in plans.items()} == {
            name: name in ("eng0_k1=0", "eng1_slow", "eng3_winograd")
            for name in dict.fromkeys(engine.name for engine in module.engines)
        }
        assert "not allowed without TF32" in plans["eng2_tensor_core"].reason
        assert plans["eng4_big"].reason == "workspace of 501 MB, at most 500 MB"
        assert plans["eng5_unsupported"].reason == "CUDNN_STATUS_NOT_SUPPORTED: eng5_unsupported"
        assert plans["eng6_crashes"].reason == "CUDNN_STATUS_EXECUTION_FAILED at execute"
        assert 1e-4 < plans["eng8_rounds"].error < 1e-3
        assert all("allowed is 1e-05: no time" in plans[name].reason for name in ("eng7_leaves_out", "eng8_rounds"))
        assert plans["eng7_leaves_out"].error > 0.1
        assert plans["eng3_winograd"].workspace_nbytes == 4096
        assert all(plan.error < 1e-6 for plan in plans.values() if plan.times)
    assert len(found.plans) == 2 * (len(module.engines) - 1)
    assert (found.best.name, found.best.captured, found.reason) == ("eng0_k1=0", True, "")
    assert not module.handles


def test_the_best_is_measured_in_full_the_others_shortly(host, front_end):
    front_end(RIGHT, Engine("eng1", seconds=0.005))
    flushed = []
    found = by_name(tried(host, effort=replace(LITTLE, seconds=10.0, samples=9), flush=lambda: flushed.append(1)))
    assert found["eng0_k1=0"].times.warm.samples == 9
    assert found["eng1"].times.warm.samples <= 5
    assert found["eng0_k1=0"].times.cold.samples == 9
    assert found["eng1"].times.cold is None
    assert len(flushed) == 2 * 9  # of the best in each order


def test_tf32_where_it_is_asked_for(host, front_end):
    front_end(RIGHT, Engine("eng2_tensor_core", rounded, notes=("TENSOR_CORE",)))
    plans = by_name(tried(host, tf32=True))
    assert 1e-4 < plans["eng2_tensor_core"].error < 2e-3
    assert plans["eng2_tensor_core"].times is not None


def test_a_plan_that_cannot_be_captured_is_timed_with_its_calls(host, front_end):
    front_end(Engine("eng0", can_capture=False))
    best = tried(host).best
    assert (best.captured, best.error < 1e-6) == (False, True)
    front_end(RIGHT)
    host.foreign.captures = False
    assert not tried(host).best.captured


# Through torch


def test_torchs_choice(host, torch):
    found = tried(host)
    assert (found.version, found.through) == ("9.10.2", "torch 2.99.0+cu130")
    assert [(plan.name, plan.order, plan.captured) for plan in found.plans] == [
        ("torch's choice, contiguous", "NCHW", True),
        ("torch's choice, channels_last", "NHWC", True),
    ]
    assert all(plan.error < 1e-6 and plan.setup_s >= 0 and plan.workspace_nbytes == 0 for plan in found.plans)
    assert set(torch.calls) == {("contiguous", False), ("channels_last", False)}
    assert "nvidia-cudnn-frontend is not installed: pip install 'vgg16gpu[cudnn]'" in found.notes
    switches = torch.backends.cudnn
    assert (switches.benchmark, switches.benchmark_limit, switches.allow_tf32) == (False, 10, True)


def test_torch_that_cannot_capture_or_has_no_memory(host, torch, monkeypatch):
    torch.captures = False
    assert [(plan.captured, plan.reason) for plan in tried(host).plans] == [(False, "")] * 2
    work = torch.conv2d

    def conv2d(x, *arguments, **options):
        if x.array.shape == PROBLEM.x_shape:
            raise RuntimeError("CUDA out of memory")
        return work(x, *arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    assert {plan.reason for plan in tried(host).plans} == {"CUDA out of memory"}
    assert not torch.backends.cudnn.benchmark


# In experiments


@pytest.fixture
def rig(host):
    opened = BenchRig(host, variants(), replace(LITTLE, seconds=10.0))
    yield opened
    opened.close()


def test_a_rig_measures_cudnn(rig, front_end):
    front_end(RIGHT)
    found = rig.baseline(CUDNN, PROBLEM)
    assert found.status is Status.RIGHT
    assert (found.checked, found.tolerance) == ("all outputs", 1e-5)
    assert found.details["plan"] == RIGHT.name
    assert found.details["setup_s"] == 7.0
    assert found.seconds("setup") == 7.0 + found.seconds()
    assert found.seconds("total") == found.seconds()
    assert found.seconds("setup", cold=True) is None
    assert json.loads(json.dumps(found.details))["plans"][0]["samples"] == 3
    assert rig.baseline(CUDNN, PROBLEM) is found


def test_a_plan_that_breaks_the_device_ends_it_by_name(rig, front_end):
    def breaks(*_):
        rig.device.synchronize = broken
        broken()

    def broken():
        raise KernelError("illegal address")

    front_end(Engine("eng0", breaks))
    with pytest.raises(BrokenDeviceError, match="cudnn broke the device: illegal address"):
        rig.baseline(CUDNN, PROBLEM)
