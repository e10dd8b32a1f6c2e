"""Which records a page shows, how it knows them, and how it says so."""

import json

import pytest

from tests.lab.report.parsed import Page
from tests.lab.report.records import DEVICE, ENVIRONMENT, HOSTILE, bench, lab, ladder, others, pipeline, profile, usage
from vgg16gpu.errors import InputError
from vgg16gpu_lab.experiments.record import write
from vgg16gpu_lab.report import folder as folders
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.kinds import Kind, kind_of
from vgg16gpu_lab.report.sections.claims import claims
from vgg16gpu_lab.report.sections.promises import promises
from vgg16gpu_lab.report.sections.which import which

MADE = others()
EVERY = [
    (Kind.BENCHMARK, bench()),
    (Kind.PIPELINE, pipeline()),
    (Kind.LADDER, ladder()),
    (Kind.LAB, lab()),
    (Kind.USAGE, usage()),
    (Kind.PROFILE, profile()),
    (Kind.CONFORMANCE, MADE["conformance-made"]),
    (Kind.TESTS, MADE["tests-made"]),
    (Kind.TESTS, MADE["sanitize-made"]),
    (Kind.FUZZ, MADE["fuzz-made"]),
    (Kind.STRESS, MADE["stress-made"]),
    (Kind.TESTBENCH, MADE["testbench-made"]),
]
OLD_BENCH = {key: value for key, value in bench().items() if key != "records"} | {"schema": 1}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def text_of(results):
    """What the page says of them at its top."""
    return Page(which(results)).sections[""]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_every_kind_is_known_by_its_content(here):
    for kind, content in EVERY:
        put(here / "whatever.json", content)
        (record,) = find_results().found
        assert (record.kind, str(record.path)) == (kind, "whatever.json")
    assert kind_of(OLD_BENCH) is Kind.BENCHMARK
    for other in ({}, {"tests": 3}, {"rows": [], "failures": []}, {"experiment": "S9", "rows": []}):
        assert kind_of(other) is None


def test_where_nothing_is_named(here):
    """Records in the folder, in testbench/results, and where lab writes; whatever else lies there is somebody's."""
    assert find_results().is_package
    (here / "broken.json").write_text("{")
    (here / "bench.json").write_text("[]")
    (here / "tests.json").write_text('{"name": "somebody\'s"}')
    (here / "deep.json").write_text("[" * 100_000)
    (here / "folder.json").mkdir()
    assert find_results().is_package
    put(here / "testbench" / "results" / "b.json", ladder())
    put(here / "a.json", MADE["testbench-made"])
    write_lab(here / "lab-results" / "first")
    put(here / "below" / "c.json", ladder())
    results = find_results()
    assert not results.is_package
    assert [str(record.path) for record in results.found] == [
        "a.json",
        "lab-results/first/S1.json",
        "testbench/results/b.json",
    ]


def write_lab(folder):
    folder.mkdir(parents=True)
    write(folder, "S1", lab())


def test_a_file_that_is_too_large_for_a_record(here, monkeypatch):
    put(here / "a.json", ladder())
    monkeypatch.setattr(folders, "_LARGEST", 100)
    assert find_results().is_package
    assert len(find_results([here / "a.json"]).found) == 1


def test_what_is_named(here):
    first, second = put(here / "a.json", ladder()), put(here / "there" / "b.json", MADE["fuzz-made"])
    put(here / "c.json", ladder())
    assert [record.path for record in find_results([first, second.parent, first]).found] == [first, second]
    assert find_results([second.parent]).folder == second.parent
    assert find_results([here / "there"]).found[0].kind is Kind.FUZZ
    with pytest.raises(InputError, match="is no record that the page shows"):
        find_results([put(here / "d.json", {"name": "package"})])


def test_what_is_called_a_record_has_to_be_one_in_a_folder_that_is_named(here):
    put(here / "package.json", {"name": "somebody's"})
    put(here / "a.json", ladder())
    assert len(find_results([here]).found) == 1
    put(here / "fuzz-a.json", {"cases": 3})
    with pytest.raises(InputError, match=r"fuzz-a\.json' is no record"):
        find_results([here])


def test_experiments_that_are_named_are_judged_alone(here):
    """Not with what lies beside them."""
    write_lab(here / "first")
    put(here / "first" / "ladder.json", ladder())
    put(here / "first" / "bench.json", bench())
    judged = Page(claims(find_results([here / "first" / "S1.json"]))).sections[""]
    assert "From S1 on" in judged
    assert "ladder of" not in judged
    judged = Page(claims(find_results([here / "first"]))).sections[""]
    assert "From S1 on" in judged
    assert "ladder of" in judged


def test_the_page_says_which(here):
    put(here / "mine.json", ladder())
    results = find_results()
    assert text_of(results) == (
        f"Shown is 1 record of yours, 2026-01-02, on {HOSTILE}."
        f"filewritten bydatedevicemine.jsonladder2026-01-02{HOSTILE}"
    )
    later = {**ENVIRONMENT, "date": "2026-03-04T00:00:00+00:00", "device": {**DEVICE, "kind": "cpu", "name": "AMD"}}
    put(here / "other.json", {**MADE["testbench-made"], "environment": later})
    assert f"Shown are 2 records of yours, 2026-01-02 to 2026-03-04, on {HOSTILE}, AMD (a CPU)." in text_of(
        find_results()
    )
    assert "<details>" not in which(find_results())
    for name in range(9):
        put(here / f"{name}.json", MADE["fuzz-made"])
    assert "<details>" in which(find_results())
    assert "Shown are 11 records of yours" in text_of(find_results())


def test_without_records_the_page_says_so(here):
    assert "There are no records to show." in text_of(find_results([here]))


def test_a_record_without_an_origin_is_listed_all_the_same(here):
    for environment in (None, 3, {}, {"device": "GPU"}):
        put(here / "a.json", {**ladder(), "environment": environment})
        assert "without a date" in text_of(find_results())


def test_a_tolerance_that_was_replaced_is_told(here):
    put(here / "a.json", {**MADE["testbench-made"], "tolerance": 0.5, "promised_tolerance": 1e-5})
    assert "--tolerance in place of 1.0e-05" in Page(promises(find_results())).sections[""]
    put(here / "a.json", {**MADE["testbench-made"], "promised_tolerance": 1e-5})
    assert "--tolerance" not in Page(promises(find_results())).sections[""]
