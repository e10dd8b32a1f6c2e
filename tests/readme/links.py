"""Find the relative links of a Markdown page that lead nowhere: to no file, or to no heading of its page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.readme.blocks import prose

_LINK = re.compile(r"\]\(([^()\s]+)(?: \"[^\"]*\")?\)|(?:href|src)=\"([^\"]+)\"")
_CODE = re.compile(r"`+[^`]*`+")
_HEADING = re.compile(r" {0,3}#{1,6} +(.*?)(?: +#+)? *$")
_PLACE = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
_LABEL = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def links(page: str) -> list[str]:
    """Return the targets of all links and pictures of a page that lead to no other host."""
    found = [target[1] or target[2] for _, line in prose(page) for target in _LINK.finditer(_CODE.sub("``", line))]
    return [target for target in found if not re.match(r"[a-z][a-z+.-]*:", target)]


def anchors(page: str) -> set[str]:
    """Return the names that links to a page's places may have, as GitHub makes them of headings."""
    lines = [line for _, line in prose(page)]
    found = {name for line in lines for name in _PLACE.findall(line)}
    seen = Counter[str]()
    for heading in filter(None, map(_HEADING.match, lines)):
        name = _anchor(heading[1])
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def dead_links(path: Path) -> list[str]:
    """Return the links of the page at `path` whose file, or whose place in a page, is not there."""
    return [link for link in links(path.read_text(encoding="utf-8")) if not _leads_somewhere(path, link)]


def _leads_somewhere(path: Path, link: str) -> bool:
    """Return whether there is a link's file, and in a Markdown page its place."""
    name, _, place = link.partition("#")
    target = path.parent / name if name else path
    if not target.exists():
        return False
    return not place or target.suffix != ".md" or place in anchors(target.read_text(encoding="utf-8"))


def _anchor(heading: str) -> str:
    """Return the anchor of a heading: small letters, hyphens for spaces, no punctuation."""
    text = _LABEL.sub(r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
