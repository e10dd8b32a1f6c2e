"""What a public repository shows beside its code: workflows, forms, SECURITY.md, THIRD_PARTY.md, CITATION.cff."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import vgg16gpu
from vgg16gpu.compiler.onnx import wire
from vgg16gpu.compiler.onnx.folding import budget
from vgg16gpu.io.foreign import pictures
from vgg16gpu.pictures import limits
from vgg16gpu_serving.command import serve_command

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
SECURITY = " ".join((ROOT / "SECURITY.md").read_text().split())
THIRD_PARTY = (ROOT / "THIRD_PARTY.md").read_text()


def steps(key: str) -> list[str]:
    """What all steps of all jobs have under a key."""
    return [step[key] for job in JOBS.values() for step in job["steps"] if key in step]


def classified(prefix: str) -> list[str]:
    """The ends of the classifiers that begin so."""
    return [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]


# .github/workflows


def test_each_job_runs_a_target_of_the_makefile_or_all_of_ci() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    commands = steps("run")
    assert len(commands) == len(JOBS)
    assert commands.count(".ci/run") == 1
    assert {command for command in commands if command != ".ci/run"} <= {f"make {name}" for name in phony.split()}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_python_versions_are_those_of_the_package() -> None:
    versions = JOBS["test"]["strategy"]["matrix"]["python"]
    assert versions == [text for text in classified("Programming Language :: Python :: ") if "." in text]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    single = [step["with"]["python-version"] for job in JOBS.values() for step in job["steps"] if "setup" in str(step)]
    assert {text for text in single if "matrix" not in text} <= set(versions)


def test_both_processors_are_tested() -> None:
    for name in ("test", "demo"):
        assert JOBS[name]["strategy"]["matrix"]["machine"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
        assert JOBS[name]["runs-on"] == "${{ matrix.machine }}"


def test_jobs_may_read_the_repository_and_no_more_and_end() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "group" in WORKFLOW["concurrency"]
    for job in JOBS.values():
        assert "permissions" not in job
        assert 0 < job["timeout-minutes"] <= 90
        assert job["steps"][0]["with"] == {"persist-credentials": False}
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in steps("uses"))


# .github/ISSUE_TEMPLATE


def test_a_bug_report_asks_for_what_is_needed() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    assert {"name", "description", "body"} <= set(form)
    asked = {part["id"]: part for part in form["body"] if part["type"] != "markdown"}
    assert len(asked) == len([part for part in form["body"] if part["type"] != "markdown"])
    assert [name for name, part in asked.items() if part["validations"]["required"]] == [
        "command",
        "happened",
        "expected",
        "doctor",
    ]
    assert "python -m vgg16gpu doctor" in asked["doctor"]["attributes"]["description"]
    assert "SECURITY.md" in form["body"][0]["attributes"]["value"]
    choices = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert choices == {"blank_issues_enabled": True}


# CITATION.cff and pyproject.toml


def test_the_citation_is_of_the_newest_release() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == vgg16gpu.__version__
    heading = f"## {citation['version']}, {citation['date-released']}\n"
    assert heading in (ROOT / "CHANGELOG.md").read_text()
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert citation["license"] == PROJECT["license"]
    assert set(citation["keywords"]) <= set(PROJECT["keywords"])


def test_the_license_is_named_once() -> None:
    assert PROJECT["license"] == "MIT"
    assert classified("License ::") == []
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])


# SECURITY.md


@pytest.mark.parametrize(
    "fact",
    [
        f"{wire.MAX_STRUCTURE >> 20} MiB and {wire.MAX_FIELDS:,} fields",
        f"{wire.BYTES_PER_BYTE} bytes for each byte of structure, {wire.BYTES_PER_FIELD} for each field, and 1 MiB",
        f"{budget.BASE_MEMORY >> 20} MiB, and {budget.MEMORY_PER_BYTE} bytes for each byte of constants",
        f"at most {limits.MAX_NBYTES >> 30} GiB",
        f"more than {limits.MAX_PIXELS:,} pixels",
        f"more than {limits._MAX_PIECES:,} pieces",
        f"seven decoders: {', '.join(pictures.KINDS)}.",
    ],
)
def test_bounds_that_the_page_names_are_those_of_the_code(fact: str) -> None:
    assert fact in SECURITY


@pytest.mark.parametrize(
    ("option", "fact"),
    [
        ("host", "listens on {} unless `--host`"),
        ("max_body_mb", "{} MB (`--max-body-mb`)"),
        ("max_pixels", "{:,} pixels (`--max-pixels`)"),
        ("max_connections", "{:,} open requests (`--max-connections`)"),
        ("queue", "queue of {} (`--queue`)"),
    ],
)
def test_defaults_of_the_server_that_the_page_names_are_those_of_the_command(option: str, fact: str) -> None:
    (default,) = (parameter.default for parameter in serve_command.params if parameter.name == option)
    assert fact.format(default) in SECURITY


def test_files_that_the_pages_name_are_there() -> None:
    for path in re.findall(
        r"`((?:testbench|vgg16gpu|docs|tests|tools|models|kernels)/[\w./-]+)`", SECURITY + THIRD_PARTY
    ):
        assert (ROOT / path).exists(), path


# THIRD_PARTY.md


def test_every_file_of_data_is_accounted_for() -> None:
    table = THIRD_PARTY.split("## In the package")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w.]+\.\w+)`", table))
    files = {path.name for path in (ROOT / "vgg16gpu" / "data").iterdir() if path.is_file()}
    assert files <= named
    assert "`vgg16gpu/data/tuned`" in table


def test_the_license_of_others_stands_in_full() -> None:
    text = THIRD_PARTY.split("## BSD-3-Clause")[1]
    assert "Copyright (c) Soumith Chintala 2016" in text
    assert "The scikit-learn developers" in text
    assert text.count("    * ") == 3
    assert text.rstrip().endswith("POSSIBILITY OF SUCH DAMAGE.")


def test_class_names_are_those_of_torchvision() -> None:
    meta = pytest.importorskip("torchvision.models._meta")
    names = (ROOT / "vgg16gpu" / "data" / "imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    assert names == meta._IMAGENET_CATEGORIES
