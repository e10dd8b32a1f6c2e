"""checks/onnxruntime_oracle.py: the answer in some rows is the answer, and what is wrong in them is seen."""

import numpy as np

from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.reference import Reference


def test_a_large_one_is_compared_at_its_edges_and_elsewhere():
    problem = Problem(1, 2, 400, 30, 3, padding=1)
    reference = Reference(problem, 10**5)
    rows = reference.rows
    assert not reference.is_whole
    assert len(set(rows)) == len(rows) == 61  # 10**5 products
    assert set(range(8)) | set(range(392, 400)) <= set(rows)
    y = problem.expected(*reference.inputs).astype(np.float32)
    assert reference.error(y) < 1e-7
    y[0, 2, 399, 29] += 1
    assert reference.error(y) > 1e-3


def test_what_was_not_written_is_an_error_in_any_row():
    problem = Problem(1, 1, 400, 30, 1, padding=1)
    reference = Reference(problem, 1)
    y = problem.expected(*reference.inputs).astype(np.float32)
    (row,) = np.setdiff1d(np.arange(400), reference.rows)[:1]
    y[0, 0, row, 3] = np.nan
    assert np.isnan(reference.error(y))
