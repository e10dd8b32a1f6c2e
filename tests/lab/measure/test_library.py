"""library.py: every plan of cuDNN is listed with its time or with why it has none; what is missing is said."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.devices.cuda.test_graph import Bindings
from tests.lab.conftest import LITTLE
from tests.lab.fake_libraries import (
    STREAM,
    Engine,
    FakeCudnn,
    FakeForeign,
    FakeTorch,
    crashing,
    partly,
    right,
    rounded,
)
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Counters
from vgg16gpu.devices.cuda.foreign import CudaForeign
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.lab.experiments import s1
from vgg16gpu.lab.measure.baseline import CUDNN, measure_baseline
from vgg16gpu.lab.measure.cudnn import frontend as library_frontend
from vgg16gpu.lab.measure.cudnn.base import MissingLibraryError, Request, told
from vgg16gpu.lab.measure.cudnn.frontend import Frontend, strides
from vgg16gpu.lab.measure.cudnn.library import WORKSPACE_NBYTES, measure_cudnn
from vgg16gpu.lab.measure.measure import Measurement, Status
from vgg16gpu.lab.measure.stand import BrokenDeviceError, Stand
from vgg16gpu.lab.measure.trial import Trial
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.reference import Reference
from vgg16gpu.lab.variants import variants

PROBLEM = Problem(2, 3, 17, 13, 4, 3, 2, 1)
RIGHT = Engine("eng0_k1=0")


@pytest.fixture
def host():
    """A cpu device that claims to be a card."""
    device, _ = open_device("cpu")
    device.foreign = FakeForeign()
    yield device
    assert not device.foreign.live, "a CUDA graph is not given back"
    device.close()


@pytest.fixture
def front_end(host, monkeypatch):
    """Puts a fake front end with these engines in the place of the real one; torch is not installed."""
    monkeypatch.setitem(sys.modules, "torch", None)

    def put(*engines):
        module = FakeCudnn(host.foreign, engines)
        monkeypatch.setitem(sys.modules, "cudnn", module)
        monkeypatch.setattr(library_frontend, "time", SimpleNamespace(perf_counter=lambda: module.clock))
        monkeypatch.setattr(library_frontend, "_loaded", set())
        return module

    return put


@pytest.fixture
def torch(host, monkeypatch):
    module = FakeTorch(host.foreign)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def tried(device, problem=PROBLEM, effort=LITTLE, flush=None, **options):
    return measure_cudnn(device, Reference(problem, effort.products), effort, flush, **options)


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


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_the_fastest_of_both_orders_is_the_best(host, front_end, order):
    front_end(Engine("eng0", orders=(order,)), Engine("eng1", seconds=0.005))
    best = tried(host).best
    assert (best.name, best.order) == ("eng0", order)


def test_the_best_is_measured_in_full_the_others_shortly(host, front_end):
    front_end(RIGHT, Engine("eng1", seconds=0.005))
    flushed = []
    found = by_name(tried(host, effort=replace(LITTLE, seconds=10.0, samples=9), flush=lambda: flushed.append(1)))
    assert (found["eng0_k1=0"].times.warm.samples, found["eng1"].times.warm.samples) == (9, 5)
    assert found["eng0_k1=0"].times.cold.samples == 9
    assert found["eng1"].times.cold is None
    assert len(flushed) == 2 * 9  # of the best in each order


def test_tf32_where_it_is_asked_for(host, front_end):
    front_end(RIGHT, Engine("eng2_tensor_core", rounded, notes=("TENSOR_CORE",)))
    plans = by_name(tried(host, tf32=True))
    assert 1e-4 < plans["eng2_tensor_core"].error < 2e-3
    assert plans["eng2_tensor_core"].times is not None


def test_set_up_is_the_handle_the_graph_and_the_plan_itself(host, front_end):
    front_end(RIGHT, Engine("eng1"))
    plans = tried(host).plans
    assert {plan.setup_s for plan in plans} == {1.0 + 2.0 + 4.0}


def test_libraries_are_loaded_before_the_first_set_up(host, front_end):
    module = front_end(RIGHT)
    for _ in range(2):
        tried(host)
    assert module.built == [("NCHW", RIGHT.name), *[("NCHW", RIGHT.name), ("NHWC", RIGHT.name)] * 2]


def test_a_plan_that_cannot_be_captured_is_timed_with_its_calls(host, front_end):
    front_end(Engine("eng0", can_capture=False))
    best = tried(host).best
    assert (best.captured, best.error < 1e-6) == (False, True)
    front_end(RIGHT)
    host.foreign.captures = False
    assert not tried(host).best.captured


def test_no_plan_at_all(host, front_end):
    module = front_end(RIGHT)
    tried(host)
    module.plan_error = "No valid engine configs"
    found = tried(host)
    assert found.best is None
    assert found.reason == "no plan of cuDNN 9.12.34 does it: No valid engine configs"
    baseline = measure_baseline(CUDNN, host, Reference(PROBLEM, 10**6), LITTLE, None)
    assert (baseline.status, baseline.reason) == (Status.REFUSED, found.reason)
    assert len(baseline.details["plans"]) == 2


def test_random_problems_are_right_in_both_orders(host, front_end):
    front_end(RIGHT)
    random = np.random.default_rng(5)
    for _ in range(8):
        batch, channels, outputs, kernel, stride = (int(n) for n in random.integers(1, 5, 5))
        height, width = (int(n) for n in random.integers(kernel, 20, 2))
        problem = Problem(batch, channels, height, width, outputs, kernel, stride, int(random.integers(0, 4)))
        assert [plan.reason for plan in tried(host, problem).plans] == ["", ""]


def test_memory_is_given_back(host, front_end):
    front_end(RIGHT, Engine("eng1", workspace=1 << 20))
    allocated, freed = [], []
    allocate, free = host.allocate, host.free
    host.allocate = lambda nbytes: allocated.append(allocate(nbytes)) or allocated[-1]
    host.free = lambda address: freed.append(address) or free(address)
    tried(host)
    assert sorted(allocated) == sorted(freed)
    assert len(allocated) == 3 * 4


def test_without_room_nothing_is_left_behind(host, front_end):
    module = front_end(RIGHT)
    tried(host)

    def allocate(nbytes):
        raise DeviceError(f"no {nbytes} bytes")

    host.allocate = allocate
    with pytest.raises(DeviceError, match="no 5304 bytes"):
        tried(host)
    assert not module.handles


def test_strides():
    assert strides((2, 3, 5, 7), "NCHW") == (105, 35, 7, 1)
    assert strides((2, 3, 5, 7), "NHWC") == (105, 1, 21, 3)


def test_a_librarys_error_is_one_line():
    assert told(RuntimeError("a\n b")) == "a b"
    assert told(RuntimeError()) == "RuntimeError"
    assert len(told(RuntimeError("x" * 999))) == 240


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


def test_torch_is_judged_as_the_front_end_is(host, torch):
    torch.compute = rounded
    assert all("no time" in plan.reason for plan in tried(host).plans)
    assert tried(host, tf32=True).best.error > 1e-4
    assert torch.calls[-1] == ("channels_last", True)
    torch.compute, torch.workspace = right, WORKSPACE_NBYTES + 2 * 10**6
    assert {plan.reason for plan in tried(host).plans} == {"workspace of 502 MB, at most 500 MB"}


def test_torch_that_cannot_capture(host, torch):
    torch.captures = False
    assert [(plan.captured, plan.reason) for plan in tried(host).plans] == [(False, "")] * 2


def test_torch_without_memory(host, torch, monkeypatch):
    work = torch.conv2d

    def conv2d(x, *arguments, **options):
        if x.array.shape == PROBLEM.x_shape:
            raise RuntimeError("CUDA out of memory")
        return work(x, *arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    assert {plan.reason for plan in tried(host).plans} == {"CUDA out of memory"}
    assert not torch.backends.cudnn.benchmark


# What is missing


def missing(device):
    with pytest.raises(MissingLibraryError) as raised:
        tried(device)
    return str(raised.value)


def test_neither_is_installed(host, monkeypatch):
    for name in ("cudnn", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    text = missing(host)
    assert "nvidia-cudnn-frontend is not installed: pip install 'vgg16gpu[cudnn]'" in text
    assert "torch is not installed" in text
    found = measure_baseline(CUDNN, host, Reference(PROBLEM, 10**6), LITTLE, None)
    assert (found.status, found.reason) == (Status.MISSING, text)


def test_no_library_behind_the_package(host, front_end, monkeypatch):
    module = front_end(RIGHT)

    def absent():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(module, "backend_version", absent)
    text = missing(host)
    assert "does not find cuDNN (Unable to find symbol cudnnGetVersion): install nvidia-cudnn-cu13" in text


def test_a_package_that_the_front_end_needs(host, front_end, monkeypatch):
    module = front_end(RIGHT)

    def absent():
        raise ModuleNotFoundError("No module named 'cutlass'", name="cutlass")

    monkeypatch.setattr(module, "backend_version", absent)
    assert "needs a package that is not here: No module named 'cutlass'" in missing(host)


def test_a_library_that_does_not_start(host, front_end, monkeypatch):
    module = front_end(RIGHT)

    def fails():
        raise RuntimeError("cudnnHandle Create failed")

    monkeypatch.setattr(module, "create_handle", fails)
    assert "cuDNN 9.12.34 does not start: cudnnHandle Create failed" in missing(host)
    front_end(Engine("eng0", builds=False))
    assert "has no plan that works: CUDNN_STATUS_NOT_SUPPORTED: eng0" in missing(host)


def test_torch_without_cuda(host, torch):
    torch.available = False
    assert "torch is installed without CUDA" in missing(host)


def test_on_a_processor():
    device, _ = open_device("cpu")
    assert missing(device) == "cuDNN needs an NVIDIA GPU"
    device.close()


# In experiments


@pytest.fixture
def stand(host):
    opened = Stand(host, variants(), LITTLE)
    yield opened
    opened.close()


def test_a_stand_measures_cudnn(stand, front_end):
    front_end(RIGHT)
    found = stand.baseline(CUDNN, PROBLEM)
    assert found.status is Status.RIGHT
    assert (found.checked, found.tolerance) == ("all outputs", 1e-5)
    assert found.details["plan"] == RIGHT.name
    assert found.details["setup_s"] == 7.0
    assert found.seconds("setup") == 7.0 + found.seconds()
    assert found.seconds("total") == found.seconds()
    assert found.seconds("setup", cold=True) is None
    assert json.loads(json.dumps(found.details))["plans"][0]["samples"] == 3
    assert stand.baseline(CUDNN, PROBLEM) is found


def test_only_libraries_have_a_set_up():
    assert Measurement(Status.RIGHT).seconds("setup") is None
    scopes = {method: scope for method, variant, scope in s1.METHODS if variant == CUDNN}
    assert scopes == {"cudnn": "compute", "cudnn_setup": "setup"}


def test_a_stand_without_room(stand, front_end):
    front_end(RIGHT)
    allocate = stand.device.allocate
    stand.device.allocate = lambda nbytes: allocate(nbytes) if nbytes < 5000 else no_room(nbytes)
    found = stand.baseline(CUDNN, PROBLEM)
    assert (found.status, found.reason) == (Status.NO_ROOM, "no 5304 bytes")


def no_room(nbytes):
    raise DeviceError(f"no {nbytes} bytes")


def test_a_plan_that_breaks_the_device_ends_it_by_name(stand, front_end):
    def breaks(*_):
        stand.device.synchronize = broken
        broken()

    def broken():
        raise KernelError("illegal address")

    front_end(Engine("eng0", breaks))
    with pytest.raises(BrokenDeviceError, match="cudnn broke the device: illegal address"):
        stand.baseline(CUDNN, PROBLEM)


# Captured work of others


@pytest.fixture
def held():
    driver = SimpleNamespace(Error=type("Error", (Exception,), {}), Context=SimpleNamespace(pop=lambda: None))
    context = SimpleNamespace(push=lambda: None)
    return SimpleNamespace(driver=driver, context=context, stream=SimpleNamespace(handle=STREAM), sequences=set())


def test_work_of_others_is_captured_launched_and_given_back(held):
    bindings, counters = Bindings(), Counters()
    captured = CudaForeign(held, 0, counters, bindings).capture(lambda: bindings.enqueue("kernel"))
    captured()
    assert (bindings.launched, counters.launches, len(held.sequences)) == ([("executable", STREAM)], 1, 1)
    captured.close()
    captured.close()
    assert not bindings.live
    assert not held.sequences
    with pytest.raises(KernelError, match="given back"):
        captured()


def test_what_raises_in_a_capture_leaves_nothing(held):
    bindings = Bindings()

    def work():
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
        CudaForeign(held, 0, Counters(), bindings).capture(work)
    assert not bindings.live
    assert not held.sequences


def test_a_capture_needs_cuda_bindings(held):
    with pytest.raises(DeviceError, match="cuda-bindings"):
        CudaForeign(held, 0, Counters()).capture(lambda: None)


@pytest.mark.gpu
def test_a_capture_on_a_gpu(gpu):
    if not gpu.uses_graphs:
        pytest.skip("cuda-bindings is not installed, or does not go with the driver")
    ones, found = np.ones(1024, np.float32), np.empty(1024, np.float32)
    address = gpu.allocate(ones.nbytes)

    def fails():
        gpu.zero(address, ones.nbytes)
        raise ValueError("no")

    gpu.copy_in(address, ones)
    with pytest.raises(ValueError, match="no"):
        gpu.foreign.capture(fails)
    captured = gpu.foreign.capture(lambda: gpu.zero(address, ones.nbytes))
    gpu.copy_out(found, address)
    gpu.synchronize()
    assert (found == 1).all()
    captured()
    gpu.copy_out(found, address)
    gpu.synchronize()
    assert (found == 0).all()
    captured.close()
    gpu.free(address)


# The real ones


@pytest.fixture(params=["cudnn", "torch"])
def real(gpu, request, monkeypatch):
    """A GPU with one of the two ways to cuDNN."""
    pytest.importorskip(request.param)
    if request.param == "torch":
        monkeypatch.setitem(sys.modules, "cudnn", None)
    try:
        through = tried(gpu, Problem(1, 1, 8, 8, 1)).through
    except MissingLibraryError as error:
        pytest.skip(str(error))
    if request.param == "cudnn" and not through.startswith("nvidia"):
        pytest.skip("the front end does not work here")
    return gpu


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 3, 255, 255, 1, 3, 1, 1),
        Problem(1, 3, 63, 63, 64, 3, 3, 1),
        Problem(2, 7, 33, 29, 5, 5, 2, 3),
        Problem(1, 64, 56, 56, 64, 3, 1, 1),
        Problem(1, 6, 192, 128, 6, 6),
    ],
    ids=str,
)
def test_the_real_cudnn(real, problem):
    found = tried(real, problem)
    assert found.best is not None, found.reason
    assert all(plan.error <= found.tolerance for plan in found.plans if plan.times)
    assert all(plan.reason for plan in found.plans if plan.times is None)
    assert found.best.setup_s > 0
    assert found.best.workspace_nbytes <= WORKSPACE_NBYTES


@pytest.mark.gpu
def test_the_real_cudnn_with_tf32(real):
    """Where there are tensor cores for it, it is seen in the error: that is what keeps it out otherwise."""
    problem = Problem(1, 64, 56, 56, 64, 3, 1, 1)
    strict, rounded_ = (tried(real, problem, tf32=tf32) for tf32 in (False, True))
    assert max(plan.error for plan in strict.plans if plan.times) < 1e-5
    if real.facts.compute_capability >= (8, 0):
        assert max(plan.error for plan in rounded_.plans if plan.times) > 5e-5


@pytest.mark.gpu
def test_our_kernels_run_beside_the_real_cudnn(real):
    problem = Problem(1, 3, 64, 64, 4, 3, 1, 1)
    variant = next(variant for variant in variants() if variant.name == "direct-chw")
    with Trial(real, variant, problem) as trial:
        assert trial.error() < variant.tolerance
        assert tried(real, problem).best is not None
        assert trial.error() < variant.tolerance


def test_requests_reach_the_session(host, front_end):
    front_end(Engine("eng0", workspace=2000))
    with Frontend(host, host.foreign).session(PROBLEM, PROBLEM.random(), "NCHW", Request(1999, tf32=False)) as session:
        assert session.candidates[0].reason.startswith("workspace of")
