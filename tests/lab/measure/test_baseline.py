"""lab/measure/baseline.py: numpy on the host, and what cuDNN is asked for; what it answers is in test_library*.py."""

from unittest import mock

from tests.lab.conftest import LITTLE
from vgg16gpu_lab.measure import baseline
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32, CUDNN_THREE, NUMPY, measure_baseline
from vgg16gpu_lab.measure.cudnn.base import MissingLibraryError
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.reference import Reference


def test_numpy(device):
    found = measure_baseline(NUMPY, device, Reference(Problem(1, 2, 24, 24, 3, padding=1), 10**6), LITTLE, None)
    assert found.status is Status.RIGHT
    assert found.seconds() > 0


def test_libraries_are_asked_by_name():
    reference, error = Reference(Problem(1, 2, 8, 8, 3), 10**6), MissingLibraryError("none here")
    for name, asked_of, options in (
        (CUDNN, "measure_cudnn", {"tf32": False}),
        (CUDNN_TF32, "measure_cudnn", {"tf32": True}),
        (CUDNN_THREE, "measure_three", {}),
    ):
        with mock.patch.object(baseline, asked_of, side_effect=error) as asked:
            found = measure_baseline(name, mock.sentinel.device, reference, LITTLE, None)
        asked.assert_called_once_with(mock.sentinel.device, reference, LITTLE, None, **options)
        assert (found.status, found.reason) == (Status.MISSING, "none here")
