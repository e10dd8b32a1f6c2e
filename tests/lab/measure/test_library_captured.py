"""Work of other libraries: captured, launched and given back as ours; and the real cuDNN."""

import sys
from types import SimpleNamespace

import pytest

from tests.devices.cuda.test_graph import Bindings
from tests.lab.fake_libraries import STREAM
from tests.lab.measure.conftest import tried
from vgg16gpu.devices.base import Counters
from vgg16gpu.devices.cuda.interop import CudaInterop
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu_lab.measure.cudnn.base import MissingLibraryError
from vgg16gpu_lab.measure.cudnn.library import WORKSPACE_NBYTES
from vgg16gpu_lab.problem import Problem


@pytest.fixture
def held():
    driver = SimpleNamespace(Error=type("Error", (Exception,), {}), Context=SimpleNamespace(pop=lambda: None))
    context = SimpleNamespace(push=lambda: None)
    return SimpleNamespace(driver=driver, context=context, stream=SimpleNamespace(handle=STREAM), sequences=set())


def test_work_of_others_is_captured_launched_and_given_back(held):
    bindings, counters = Bindings(), Counters()
    captured = CudaInterop(held, 0, counters, bindings).capture(lambda: bindings.enqueue("kernel", STREAM))
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
        CudaInterop(held, 0, Counters(), bindings).capture(work)
    assert not bindings.live
    assert not held.sequences


def test_a_capture_needs_cuda_bindings(held):
    with pytest.raises(DeviceError, match="cuda-bindings"):
        CudaInterop(held, 0, Counters()).capture(lambda: None)


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
