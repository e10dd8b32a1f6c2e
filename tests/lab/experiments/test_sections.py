"""docs/lab.md, section by section: no section of a report, no claim and no variant is missing there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.reports.reader import REPORTS
from vgg16gpu_lab.claims.table import claims
from vgg16gpu_lab.variants import variants

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lab.md"
SEEDS = ("S1", "S2", "S3", "S4", "S5")
NOTHING = "-"
HEADING = re.compile(r"^(\d(?:\.\d)+) ", re.MULTILINE)  # not those of chapters, as which lists and code are numbered


@dataclass(frozen=True)
class Line:
    """A line of a report's table."""

    sections: frozenset[str]
    lab: str
    claims: frozenset[str]


def table(seed: str) -> list[Line]:
    """The lines of a report."""
    part = PAGE.read_text().split("\n## Section by section\n")[1].split("\n## ")[0]
    (rows,) = (each for each in part.split("<details><summary>")[1:] if each.startswith(f"{seed}:"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines() if line[:1] == "|"]
    return [Line(names(section.split(":")[0]), lab, names(numbers) - {NOTHING}) for section, lab, numbers in cells[2:]]


def names(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_claim_stands_beside_its_sections_and_no_other(seed: str) -> None:
    stated = {(section, claim) for line in table(seed) for section in line.sections for claim in line.claims}
    coded = {(section, each.number) for each in claims() if each.seed == seed for section in names(each.section)}
    assert coded <= stated
    for line in table(seed):
        assert line.claims == {number for section, number in coded if section in line.sections}, line


@pytest.mark.parametrize("seed", SEEDS)
def test_no_section_is_told_twice_and_none_is_empty(seed: str) -> None:
    lines = table(seed)
    assert len(frozenset[str]().union(*(line.sections for line in lines))) == sum(len(line.sections) for line in lines)
    assert not [line for line in lines if line.lab in {"", NOTHING} and not line.claims]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_variant_of_a_report_is_named(seed: str) -> None:
    text = " ".join(line.lab for line in table(seed))
    assert not [each.name for each in variants() if seed in each.seeds and f"`{each.name}`" not in text]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_section_of_the_text_has_a_line(seed: str) -> None:
    path = REPORTS / f"{seed}.txt"
    if not path.is_file():
        pytest.skip(f"no text of the reports: {path}; name their folder in VGG16GPU_REPORTS")
    headings = set(HEADING.findall(path.read_text()))
    assert headings
    assert headings <= frozenset[str]().union(*(line.sections for line in table(seed)))
