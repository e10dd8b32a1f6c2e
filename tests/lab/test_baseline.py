"""baseline.py: numpy on the host. cuDNN is in test_library.py."""

from tests.lab.conftest import LITTLE
from vgg16gpu.lab.baseline import NUMPY, measure_baseline
from vgg16gpu.lab.measure import Status
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.reference import Reference


def test_numpy(device):
    found = measure_baseline(NUMPY, device, Reference(Problem(1, 2, 24, 24, 3, padding=1), 10**6), LITTLE, None)
    assert found.status is Status.RIGHT
    assert found.seconds() > 0
