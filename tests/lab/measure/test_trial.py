"""trial.py: a bias reaches who takes it and is refused by who does not; what a kernel may only read stays as it was."""

import numpy as np
import pytest

from vgg16gpu_lab.measure.baseline import NUMPY
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.measure.trial import RefusedError, Trial
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.reference import Reference, expected_rows
from vgg16gpu_lab.variant import gaps, places

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


def test_the_answer_with_a_bias():
    x, weight = BIASED.random()
    bias = BIASED.random_bias()
    assert SMALL.random_bias() is None
    assert bias.shape == (5,)
    with_bias, without = BIASED.expected(x, weight, bias), SMALL.expected(x, weight)
    assert np.allclose(with_bias[:, 3] - without[:, 3], bias[3])
    rows = np.arange(0, 9, 3)
    assert np.allclose(expected_rows(BIASED, x, weight, rows, bias), with_bias[:, :, rows])
    assert BIASED.nbytes == SMALL.nbytes + 4 * 5
    reference = Reference(BIASED, 10**9)
    assert np.array_equal(reference.bias, bias)
    assert reference.error(with_bias.astype(np.float32)) < 1e-6
    assert reference.error(without.astype(np.float32)) > 0.1


def test_it_has_a_place_of_its_own():
    found, total = places(BIASED, 100)
    assert total - found.bias.offset >= 4 * 5 + 256
    assert gaps(BIASED, 100)["behind bias"] == (found.bias.offset + 20, total - found.bias.offset - 20)


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


INTO = {
    "x": ("const float* __restrict__ x", "float* __restrict__ x", "x[0] = 7.f;"),
    "weight": ("const float* __restrict__ weight", "float* __restrict__ weight", "weight[0] = 7.f;"),
    "bias": ("const float* __restrict__ bias", "float* __restrict__ bias", "bias[0] = 7.f;"),
}


@pytest.mark.parametrize("name", INTO)
def test_what_is_written_into_what_it_reads_is_named(device, own, name):
    old, new, write = INTO[name]
    (mine,) = own(*ADDS_IT, (old, new), ("float sum =", f"if (i == 0 && j == 0) {write} float sum ="), module=TAKES_IT)
    with Trial(device, mine, BIASED) as trial:
        assert trial.trespass() == ""
        trial.run()
        assert trial.trespass() == f"into {name}"
