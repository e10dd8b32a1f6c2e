"""trial.py: a bias reaches who takes it and is refused by who does not; what a kernel may only read stays as it was."""

import numpy as np
import pytest

from vgg16gpu_lab.measure.baseline import NUMPY
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem

SMALL = Problem(2, 3, 9, 7, 5, padding=1)
BIASED = Problem(2, 3, 9, 7, 5, padding=1, bias=True)
ADDS_IT = (
    ("const float* __restrict__ weight,", "const float* __restrict__ weight, const float* __restrict__ bias,"),
    ("float sum = 0.f;", "float sum = bias[blockIdx.z % OC];"),
)
TAKES_IT = (
    ("launches=launches,", "launches=launches, takes_bias=True,"),
    ("places.weight,", "places.weight, places.bias,"),
)


def test_who_takes_no_bias_refuses(rig):
    with pytest.raises(RefusedError, match="direct-hwc: it adds no bias"):
        Trial(rig.device, rig.variants["direct-hwc"], BIASED)
    assert rig.baseline(NUMPY, BIASED).status is Status.REFUSED


def test_who_takes_a_bias_adds_it(device, own):
    (mine,) = own(*ADDS_IT, module=TAKES_IT)
    with Trial(device, mine, BIASED) as trial:
        assert trial.error() < 1e-6
        assert trial.trespass() == ""
        assert not np.array_equal(trial.bias, np.zeros(5))
    with Trial(device, mine, BIASED, bias=np.zeros(5, np.float32)) as trial:
        assert trial.error(SMALL.expected(trial.x, trial.weight)) < 1e-6


def test_what_is_written_into_what_it_reads_is_named(device, own):
    changes = (("const float* __restrict__ x", "float* __restrict__ x"),)
    changes += (("float sum =", "if (i == 0 && j == 0) x[0] = bias[0] + 7.f; float sum ="),)
    (mine,) = own(*ADDS_IT, *changes, module=TAKES_IT)
    with Trial(device, mine, BIASED) as trial:
        assert trial.trespass() == ""
        trial.run()
        assert trial.trespass() == "into x"
