"""Links between the pages of the project: each leads to a file, and to a heading where it names one."""

from __future__ import annotations

from pathlib import Path

from tests.readme.links import dead_links

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for folder in (".", "docs", "models") for path in (ROOT / folder).glob("*.md")
)


def test_every_link_leads_somewhere() -> None:
    assert {page: dead for page in PAGES if (dead := dead_links(ROOT / page))} == {}
