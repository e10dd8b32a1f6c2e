"""lab/measure/baseline.py: numpy on the host, and what cuDNN is asked for; what it answers is in test_library*.py."""

from unittest import mock

import pytest

from tests.lab.conftest import LITTLE
from vgg16gpu_lab.measure import baseline
from vgg16gpu_lab.measure.baseline import BASELINES, CUDNN, CUDNN_TF32, CUDNN_THREE, NUMPY, measure_baseline
from vgg16gpu_lab.measure.cudnn.base import MissingLibraryError
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.reference import Reference


def test_numpy(device):
    found = measure_baseline(NUMPY, device, Reference(Problem(1, 2, 24, 24, 3, padding=1), 10**6), LITTLE, None)
    assert found.status is Status.RIGHT
    assert found.seconds() > 0


@pytest.mark.parametrize(("name", "tf32"), [(CUDNN, False), (CUDNN_TF32, True)])
def test_tf32_is_asked_for_by_name(name, tf32):
    reference = Reference(Problem(1, 2, 8, 8, 3), 10**6)
    with mock.patch.object(baseline, "measure_cudnn", side_effect=MissingLibraryError("none here")) as asked:
        found = measure_baseline(name, mock.sentinel.device, reference, LITTLE, None)
    assert asked.call_args.kwargs == {"tf32": tf32}
    assert (found.status, found.reason) == (Status.MISSING, "none here")


def test_three_calls_are_asked_for_by_name():
    reference = Reference(Problem(1, 2, 8, 8, 3), 10**6)
    with mock.patch.object(baseline, "measure_three", side_effect=MissingLibraryError("none here")) as asked:
        found = measure_baseline(CUDNN_THREE, mock.sentinel.device, reference, LITTLE, None)
    assert asked.call_args.args == (mock.sentinel.device, reference, LITTLE, None)
    assert (found.status, found.reason) == (Status.MISSING, "none here")


@pytest.mark.parametrize("name", BASELINES)
def test_a_bias_is_refused(name):
    found = measure_baseline(name, mock.sentinel.device, Reference(Problem(1, 2, 8, 8, 3, bias=True), 1), LITTLE, None)
    assert (found.status, "no bias" in found.reason) == (Status.REFUSED, True)
