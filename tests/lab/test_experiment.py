"""experiment.py and record.py: rows beside what was published, ratios, somebody's own variants, files."""

import csv
import json

import pytest

from vgg16gpu.errors import InputError
from vgg16gpu_lab.experiment import Case, CaseExperiment, Choice, experiments, find_row, with_own
from vgg16gpu_lab.experiments import s2
from vgg16gpu_lab.experiments.record import check_folder, content, write
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.problem import Problem

CASES = (
    Case("stride", "256", "direct", "stride=3", Problem(1, 3, 256, 256, 1, 3, 3, 1), "direct-hwc"),
    Case("stride", "24", "direct", "stride=1", Problem(1, 3, 24, 24, 1, 3, 1, 1), "direct-hwc"),
    Case("gemm_partition", "24", "block", "block=64", Problem(1, 3, 24, 24, 1), "gemm-by-block", {"block": 64}),
    Case("stride", "24", "im2col", "", Problem(1, 3, 24, 24, 1), "im2col-vector", scope="total"),
)


def small(rounds=None):
    return CaseExperiment("S2", "title", "teaches", lambda choice: CASES, rounds=rounds)  # noqa: ARG005


@pytest.fixture
def rows(rig):
    said = []
    found = small().run(rig, Choice(), lambda *what: said.append(what))
    assert said[0] == (0, 4, "compiling")
    assert said[4][2].startswith("stride 256")  # small ones first
    assert said[-1][:2] == (4, 4)
    return found


def test_rows_in_the_order_of_the_cases(rows):
    assert [(row.size, row.method) for row in rows] == [(case.size, case.method) for case in CASES]
    first, _, invalid, total = rows
    assert first.theirs == 0.04992
    assert first.ours == 1e3 * first.measurement.seconds()
    assert first.ours_percent > 0
    assert first.theirs_percent == pytest.approx(8.5, abs=0.1)
    assert (invalid.status, invalid.ours, invalid.theirs) == (Status.INVALID, None, None)
    assert "4096 threads" in invalid.remark
    assert total.ours == pytest.approx(1e3 * total.measurement.seconds("total"))


def test_every_experiment_says_how_it_measures(rig):
    assert all(len(experiment.method(rig).split()) > 20 for experiment in experiments())


def test_own_variants_are_put_into_every_table(own):
    (mine,) = own()
    cases = with_own(s2.EXPERIMENT.cases(Choice(quick=True)), (mine,))
    found = [(case.table, case.parameter) for case in cases if case.variant == "mine"]
    strides = [("stride", f"stride={stride}") for stride in (1, 2, 3)]
    expected = [("gemm_memory", ""), ("gemm_partition", ""), *strides, ("layer", "outputs=64")]
    assert sorted(found) == sorted(expected)
    assert with_own(cases, (mine,)) == cases


def test_record(rig, rows, tmp_path):
    folder = tmp_path / "deep" / "results"
    check_folder(folder, ["S2"])
    found = content(small(), rows, rig, Choice(quick=True))
    table, whole = write(folder, "S2", found)
    assert sorted(path.name for path in folder.iterdir()) == ["S2.csv", "S2.json"]
    read = json.loads(whole.read_text())
    assert read["environment"]["device"]["name"] == rig.device.facts.name
    assert "commit" in read["environment"]
    assert read["ceilings"]["flop_per_s"] > 0
    assert read["empty_launch"]["p95_s"] >= read["empty_launch"]["median_s"] > 0
    assert read["options"]["quick"] is True
    assert [row["method"] for row in read["rows"]] == ["direct", "direct", "block", "im2col"]
    assert read["rows"][3]["convert"]["warm"]["samples"] >= 1  # fewer than asked for where the machine is busy
    with table.open() as stream:
        lines = list(csv.DictReader(stream))
    assert float(lines[0]["compute_warm_ms"]) == float(lines[0]["ours"])
    assert (lines[2]["status"], lines[2]["ours"], lines[2]["compute_warm_ms"]) == ("invalid launch", "", "")
    assert find_row(rows, method="block") is rows[2]


def test_folders_that_will_not_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        check_folder(tmp_path / "file", ["S2"])
    (tmp_path / "S2.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        check_folder(tmp_path, ["S2"])
