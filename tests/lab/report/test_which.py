"""Which records a page shows, how it knows them, and how it says so."""

import json

import pytest

from tests.lab.report.parsed import Page
from tests.lab.report.records import FILES, every, lab, ladder, recorded
from vgg16gpu_lab.experiments.record import write
from vgg16gpu_lab.report import folder as folders
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.kinds import Kind, kind_of
from vgg16gpu_lab.report.sections.which import which

OLD_BENCH = {key: value for key, value in recorded("bench-h200-244").items() if key != "records"} | {"schema": 1}


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
    for name, content in {**every(), "lab": lab()}.items():
        put(here / "whatever.json", content)
        (record,) = find_results().found
        assert (record.kind, str(record.path)) == (FILES.get(name, Kind.LAB), "whatever.json")
    assert kind_of(OLD_BENCH) is Kind.BENCHMARK
    for other in ({}, {"tests": 3}, {"rows": [], "failures": []}, {"experiment": "S9", "rows": []}):
        assert kind_of(other) is None


def test_where_nothing_is_named(here, tmp_path, monkeypatch):
    """Records in the folder, in testbench/results, and where lab writes; whatever else lies there is somebody's."""
    monkeypatch.setattr(folders, "CHECKOUT", put(tmp_path / "checkout" / "ladder.json", ladder()).parent)
    assert find_results().is_package
    (here / "broken.json").write_text("{")
    (here / "bench.json").write_text("[]")
    (here / "tests.json").write_text('{"name": "somebody\'s"}')
    (here / "deep.json").write_text("[" * 100_000)
    (here / "folder.json").mkdir()
    assert find_results().is_package
    put(here / "testbench" / "results" / "b.json", ladder())
    put(here / "a.json", recorded("testbench-cpu"))
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
