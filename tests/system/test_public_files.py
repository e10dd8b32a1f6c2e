"""What a public repository shows beside its code: workflows, forms, SECURITY.md, THIRD_PARTY.md, CITATION.cff."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
SECURITY = " ".join((ROOT / "SECURITY.md").read_text().split())
THIRD_PARTY = (ROOT / "THIRD_PARTY.md").read_text()


# CITATION.cff and pyproject.toml


def test_the_citation_is_of_the_newest_release() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == vgg16gpu.__version__
    heading = f"## {citation['version']}, {citation['date-released']}\n"
    assert heading in (ROOT / "CHANGELOG.md").read_text()
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert citation["license"] == PROJECT["license"]
    assert set(citation["keywords"]) <= set(PROJECT["keywords"])


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


# THIRD_PARTY.md


def test_every_file_of_data_is_accounted_for() -> None:
    table = THIRD_PARTY.split("## In the package")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w.]+\.\w+)`", table))
    files = {path.name for path in (ROOT / "vgg16gpu" / "data").iterdir() if path.is_file()}
    assert files <= named
    assert "`vgg16gpu/data/tuned`" in table


def test_class_names_are_those_of_torchvision() -> None:
    meta = pytest.importorskip("torchvision.models._meta")
    names = (ROOT / "vgg16gpu" / "data" / "imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    assert names == meta._IMAGENET_CATEGORIES
