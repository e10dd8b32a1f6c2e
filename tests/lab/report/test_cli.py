"""report on the command line."""

import json
import shutil

import pytest
from click.testing import CliRunner

from tests.lab.report.records import ladder
from vgg16gpu.cli import cli
from vgg16gpu_lab.report import folder as folders


def report(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


def test_it_writes_the_page(folder, full, tmp_path):
    path = tmp_path / "page.html"
    result = report("--results", folder, "--output", path)
    assert result.exit_code == 0, result.stderr
    assert path.read_bytes() == full.encode()
    assert f"Written: {path}, " in result.stdout
    assert " of 12 records of yours: " in result.stdout


def test_without_options_the_records_of_the_checkout_and_a_file_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "CHECKOUT", tmp_path / "checkout")
    (tmp_path / "checkout").mkdir()
    assert report().exit_code == 0
    text = (tmp_path / "vgg16gpu-report.html").read_text()
    assert "vgg16gpu ladder --output testbench/results/ladder.json" in text
    assert str(tmp_path) not in text


def test_installed_without_records_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "CHECKOUT", tmp_path / "nowhere")
    assert report().exit_code == 0
    assert "vgg16gpu ladder --output ladder.json" in (tmp_path / "vgg16gpu-report.html").read_text()
    assert report("--package").exit_code == 2


def test_records_of_ones_own_are_shown_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "of the package's own " in report("--package").stdout
    (tmp_path / "mine.json").write_text(json.dumps(ladder()))
    result = report()
    assert result.stdout.endswith("of 1 record of yours: mine.json\n")
    assert "sums by thread 0" in (tmp_path / "vgg16gpu-report.html").read_text()


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


@pytest.mark.usefixtures("no_pictures")
def test_records_of_an_installed_package_have_no_commit(folder, tmp_path):
    installed = tmp_path / "installed"
    shutil.copytree(folder, installed)
    for path in installed.rglob("*.json"):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and "environment" in content:
            content["environment"]["commit"] = None
            path.write_text(json.dumps(content))
    result = report("--results", installed, "--output", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "page.html").read_text()
    assert "0123456789" not in text
    assert "Measured 2026-01-02 with vgg16gpu 0.1.0" in text
