"""`lab claims` and the records that it reads: which are found, what is written, what is refused."""

import csv
import json

import pytest
from click.testing import CliRunner

from vgg16gpu.cli import cli
from vgg16gpu_lab.claims.records import ABSENT, our_times, read_records
from vgg16gpu_lab.claims.table import CPU_NOTE, NO_FLOOR, claims
from vgg16gpu_lab.claims.times import key

pytestmark = pytest.mark.usefixtures("no_figures")

PLACE = {"date": "2026-01-01T00:00:00+00:00", "device": {"name": "some card", "kind": "cuda"}}


def summary(median_s):
    return {"median_s": median_s, "min_s": 0.9 * median_s, "p95_s": 1.2 * median_s}


def row(method, ours, **changes):
    fields = {"seed": "S1", "table": "methods", "size": "31", "parameter": "", "status": "right", "remark": ""}
    compute = ours and {"warm": summary(1e-3 * ours), "cold": None}
    taken = {"scope": "compute", "compute": compute, "convert": None, "error": 1e-7, "details": {}}
    return {**fields, "method": method, "ours": ours, **taken, **changes}


def record(folder, rows, name="S1", changes=()):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {"experiment": name, "environment": PLACE, "options": {}, "rows": rows}
    path.write_text(json.dumps(content | dict(changes)))
    return path


def climbed(path, **changes):
    rung = {"letter": "B", "status": "measured", "why": "", "error": 1e-6, "times": summary(0.002)}
    missing = {"letter": "C", "status": "missing", "why": "no memory", "error": None, "times": None}
    model = {"path": "some/vgg16.onnx", "input_shape": [1, 3, 244, 244]}
    found = {"model": model, "rungs": [rung, missing], "onnxruntime": summary(0.2), "environment": PLACE}
    path.write_text(json.dumps(found | changes))
    return path


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(cli, ["lab", *map(str, args)])


def test_a_table_and_both_files(lab, tmp_path):
    record(tmp_path / "lab-results", [row("direct", 1.0), row("im2col_gemm_only", 2.0)])
    climbed(tmp_path / "ladder.json")
    result = lab("claims", "--ladder", "ladder.json")
    assert result.exit_code == 0, result.output
    for text in (
        "S1: some card",
        "ladder of vgg16.onnx, 1x3x244x244: some card",
        "S5.10",
        "(3.1)",
        "our question",
        "HOLDS",
        "DOES NOT",
        "CANNOT TELL",
        "Written:",
    ):
        assert text in result.stdout
    assert CPU_NOTE not in result.stdout
    found = json.loads((tmp_path / "lab-results" / "claims.json").read_text())
    assert [record["experiment"] for record in found["records"]] == ["S1", "ladder"]
    assert [record["model"] for record in found["records"]] == ["", "vgg16.onnx, 1x3x244x244"]
    rows = {claim["number"]: claim for claim in found["claims"]}
    assert len(rows) == len(claims())
    assert (rows["S1.1"]["verdict"], rows["S1.1"]["theirs_verdict"]) == ("does not", "does not")
    assert rows["S1.1"]["ours"].startswith("0.5x (31: 2 against 1 ms)")
    assert (rows["S1.1"]["section"], rows["S1.1"]["kind"]) == ("3.1", "said")
    assert (rows["S1.1"]["holds"], rows["S1.1"]["cases"], rows["S1.1"]["theirs_holds"]) == (0, 1, 2)
    assert (rows["S5.3"]["verdict"], rows["S5.3"]["ours"]) == ("does not", "0.01x (200 against 2 ms)")
    assert rows["S5.4"]["ours"].startswith("no row device serial 1d of table causes in the record")
    assert found["counts"]["ours"]["holds"] == sum(claim["verdict"] == "holds" for claim in rows.values())
    with (tmp_path / "lab-results" / "claims.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert lines == [{name: str(value) for name, value in claim.items()} for claim in found["claims"]]
    assert list(lines[0]) == list(found["claims"][0])
    assert NO_FLOOR in " ".join(result.stdout.split())
    again = lab("claims", "--ladder", "ladder.json", "--json")  # claims.json is no record
    assert json.loads(again.stdout) == found


def test_without_records_the_published_tables_are_judged(lab, tmp_path):
    result = lab("claims")
    assert result.exit_code == 0
    assert "By theirs: 25 holds, 22 does not" in result.stdout
    assert NO_FLOOR not in result.stdout
    assert "no records" in result.stderr
    assert not list(tmp_path.iterdir())


def refused(result):
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_what_is_refused(lab, tmp_path):
    assert "is no folder" in refused(lab("claims", "--records", "nowhere"))
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "other.json").write_text('{"rows": [], "experiment": "comparison"}')
    (folder / "list.json").write_text("[]")
    assert "holds no record" in refused(lab("claims", "--records", folder))
    assert "is no record of" in refused(lab("claims", "--records", folder, "--ladder", folder / "list.json"))
    assert "cannot be read" in refused(lab("claims", "--records", folder, "--ladder", folder / "gone.json"))
    record(folder, [row("direct", 1.0)])
    climbed(folder / "ladder.json")
    other = climbed(tmp_path / "ladder-2.json")
    assert "two records of ladder" in refused(lab("claims", "--records", folder, "--ladder", other))
    assert "a record of S1, not of `ladder" in refused(
        lab("claims", "--records", folder, "--ladder", folder / "S1.json")
    )
    (folder / "S2.json").write_text('{"schema": 99, "rows": [], "experiment": "S2"}')
    assert "has schema 99, this version reads 1" in refused(lab("claims", "--records", folder))
    (folder / "S2.json").write_text("{")
    assert "S2.json' is not JSON" in refused(lab("claims", "--records", folder))
    (folder / "S2.json").unlink()
    for changes in ({"rows": [{"seed": "S1"}]}, {"rows": 3}, {"environment": None}):
        record(folder, [row("direct", 1.0)], changes=changes)
        assert "another version" in refused(lab("claims", "--records", folder))


def test_the_numbers_of_a_record(tmp_path):
    measured = {"tolerance": 1e-5, "compute": {"warm": {**summary(1e-3), "samples": 7}}}
    library = row("cudnn", 1.0, variant="cudnn", details={"setup_s": 0.25}, **measured)
    setup = row("cudnn_setup", 251.0, scope="setup")
    both = row("im2col_gemm", 3.0, scope="total", convert={"warm": summary(0.002), "cold": None})
    record(tmp_path, [library, setup, both, row("direct", None, status="wrong", remark="error 1", error=None)])
    climbed(tmp_path / "ladder.json")
    times = our_times(read_records(tmp_path))
    found = times[key("S1", "methods", 31, "cudnn")]
    assert (found.variant, found.tolerance, found.samples, found.precision) == ("cudnn", 1e-5, 7, "fp32")
    assert found.setup_ms == 250
    assert times[key("S1", "methods", 31, "direct")].remark == "error 1"
    assert times[key("S1", "methods", 31, "cudnn")].spread == pytest.approx((0.9, 1.2))
    assert times[key("S1", "methods", 31, "im2col_gemm")].spread == pytest.approx((0.9 * 5, 1.2 * 5))
    assert times[key("S1", "methods", 31, "cudnn_setup")].spread is None
    assert times[key("S1", "methods", 31, "direct")].spread is None
    assert times[key("S5", "ladder", "", "B")].value == 2
    assert times[key("S5", "ladder", "", "B")].spread == pytest.approx((1.8, 2.4))
    assert times[key("S5", "ladder", "", "onnxruntime")].value == 200
    assert times[key("S5", "ladder", "", "Z")].remark == "no row Z of table ladder in the record"
    assert times[key("S2", "stride", 256, "direct")].remark == ABSENT
    assert times[key("S1", "methods", 63, "direct")].remark == ABSENT
