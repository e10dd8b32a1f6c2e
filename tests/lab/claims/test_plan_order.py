"""lab/claims/records.py: which of a library's plans a verdict is about."""

import copy

import pytest

from vgg16gpu_lab.claims.records import in_planes

PLANS = [
    {"order": "NHWC", "median_s": 2e-3, "samples": 30, "setup_s": 0.01, "error": 0.0},
    {"order": "NCHW", "median_s": 4e-3, "samples": 30, "setup_s": 0.02, "error": 1e-7},
    {"order": "NCHW", "median_s": 3e-3, "samples": 20, "setup_s": 0.03, "error": 2e-7},
    {"order": "NCHW", "median_s": None, "samples": 0, "setup_s": 0.01, "error": None},  # refused when it was run
]
ROW = {
    "seed": "S1",
    "table": "methods",
    "size": "511",
    "method": "cudnn",
    "parameter": "",
    "scope": "kernel",
    "problem": {"channels": 3, "outputs": 1},
    "ours": 2.0,
    "ours_percent": 12.0,
    "error": 0.0,
    "status": "",
    "remark": "",
    "convert": None,
    "compute": {"warm": {"median_s": 2e-3, "min_s": 1.9e-3, "p95_s": 2.1e-3, "samples": 30}},
    "details": {"order": "NHWC", "setup_s": 0.01, "plans": PLANS},
}


def changed(**parts):
    return {**copy.deepcopy(ROW), **parts}


def test_the_best_plan_for_planes_counts():
    found = in_planes(ROW)
    assert found["ours"] == pytest.approx(3.0)
    assert found["ours_percent"] == pytest.approx(8.0)
    assert found["error"] == 2e-7
    assert found["compute"]["warm"] == {"median_s": 3e-3, "samples": 20}
    assert found["details"]["setup_s"] == 0.03
    assert ROW["ours"] == 2.0  # the record itself stays


def test_what_is_in_planes_already_stays():
    for row in (
        changed(problem={"channels": 1, "outputs": 1}),  # both orders are one
        changed(details={**ROW["details"], "order": "NCHW"}),
        changed(details={}),  # no library's
        changed(compute=None),
        changed(scope="setup"),
    ):
        assert in_planes(row) is row


def test_without_a_plan_for_planes_there_is_no_time():
    found = in_planes(changed(details={**ROW["details"], "plans": [PLANS[0], PLANS[3]]}))
    assert found["ours"] is None
    assert found["compute"] is None
    assert found["status"] == "refused"
    assert "NCHW" in found["remark"]
