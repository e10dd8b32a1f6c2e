"""report on the command line."""

import json
import shutil

import pytest
from click.testing import CliRunner

from tests.lab.report.parsed import Page
from tests.lab.report.records import ladder
from vgg16gpu.cli import cli
from vgg16gpu_lab.report import folder as folders
from vgg16gpu_lab.report import page as whole
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.page import page

pytestmark = pytest.mark.usefixtures("no_pictures")


def report(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture
def no_kernels(monkeypatch):
    """The page without their sources, which take most of its time."""
    monkeypatch.setattr(whole, "SECTIONS", tuple(each for each in whole.SECTIONS if each.name != "kernels"))


def few(folder):
    """Return a folder with one of the package's own records: the page of all takes seconds."""
    folder.mkdir()
    shutil.copy(folders.CHECKOUT / "bench-h200.json", folder)
    return folder


@pytest.mark.usefixtures("no_kernels")
def test_it_writes_the_page(folder, tmp_path):
    path = tmp_path / "page.html"
    result = report("--results", folder, "--output", path)
    assert result.exit_code == 0, result.stderr
    text = path.read_text()
    assert text == page(find_results([folder]))  # the same records give the same page
    assert "<img" not in text
    assert text.count("matplotlib is not installed") >= 4
    assert f"Written: {path}, " in result.stdout
    assert " of 12 records of yours: " in result.stdout


@pytest.mark.usefixtures("no_kernels")
def test_without_options_or_records_commands_are_named_for_the_checkout_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "CHECKOUT", tmp_path / "checkout")
    (tmp_path / "checkout").mkdir()
    assert report().exit_code == 0
    text = (tmp_path / "vgg16gpu-report.html").read_text()
    assert "vgg16gpu ladder --output testbench/results/ladder.json" in text
    assert str(tmp_path) not in text
    monkeypatch.setattr(folders, "CHECKOUT", tmp_path / "nowhere")
    assert report().exit_code == 0
    assert "vgg16gpu ladder --output ladder.json" in (tmp_path / "vgg16gpu-report.html").read_text()
    assert report("--package").exit_code == 2


@pytest.mark.usefixtures("no_kernels")
def test_records_of_ones_own_are_shown_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "CHECKOUT", few(tmp_path / "checkout"))
    assert "of the package's own " in report("--package").stdout
    shown = Page((tmp_path / "vgg16gpu-report.html").read_text().split("<nav")[0]).sections[""]
    assert "Shown are the package's own " in shown
    assert "testbench/results/bench-h200.json" in shown
    assert str(folders.CHECKOUT) not in shown
    (tmp_path / "mine.json").write_text(json.dumps(ladder()))
    result = report()
    assert result.stdout.endswith("of 1 record of yours: mine.json\n")
    assert "sums by thread 0" in (tmp_path / "vgg16gpu-report.html").read_text()


@pytest.mark.slow(reason="seconds for forty records; test_records_of_ones_own_are_shown_instead shows one")
def test_every_record_of_the_package_is_shown():
    results = find_results(package=True)
    text = page(results)
    assert len(results.found) > 40
    assert [name for name in map(results.name_of, results.found) if name not in text] == []


def test_mistakes_are_one_line(tmp_path):
    contents = {"page.html": "<p>", "list.json": "[1]", "deep.json": "[" * 100_000, "other.json": '{"experiment": 1}'}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    for arguments, words in (
        (("--results", tmp_path / "nowhere"), "is no file and no folder"),
        (("--results", tmp_path / "page.html"), "is not JSON"),
        (("--results", tmp_path / "list.json"), "a JSON object is expected"),
        (("--results", tmp_path / "deep.json"), "is JSON with more than 64 brackets"),
        (("--results", tmp_path / "other.json"), "is no record that the page shows"),
        (("--results", tmp_path, "--package"), "exclude each other"),
        (("--output", tmp_path / "no" / "page.html"), "does not exist"),
    ):
        result = report(*arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
