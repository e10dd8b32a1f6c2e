"""The pages of the tree: each folder has its row in architecture.md, and what pages name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def folders(top: str) -> list[Path]:
    """Those that hold sources; an exercise is one thing."""
    found = {path.parent for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    found |= {parent for path in found for parent in path.parents if (ROOT / top) in parent.parents}
    return sorted(path for path in found if path.parent.name != "exercises" and path != ROOT / top)


@pytest.mark.parametrize("top", ["vgg16gpu", "kernels", "serving/vgg16gpu_serving"])
def test_every_folder_has_a_row(top: str) -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|"))
    missing = [path for path in folders(top) if f"`{path.relative_to(ROOT / top)}/`" not in rows]
    assert not missing


NAMING = ("architecture.md", "internals.md")  # pages that name files and classes of the package
SOURCES = (".py", ".cu", ".cuh", ".h")


@cache
def sources() -> dict[str, list[Path]]:
    """Every source of the checkout by its name."""
    found: dict[str, list[Path]] = {}
    for top in ("vgg16gpu", "kernels", "serving", "lab", "testbench", "tests", "tools", "examples"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in SOURCES:
                found.setdefault(path.name, []).append(path)
    return found


@cache
def classes() -> frozenset[str]:
    """Every class that the package defines, and with a dot in front every attribute and method of classes."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "vgg16gpu").rglob("*.py")))
    attributes = re.findall(r"^    (?:def )?([a-z]\w*)[:(]", text, re.MULTILINE)
    return frozenset(re.findall(r"^class (\w+)", text, re.MULTILINE)) | {f".{name}" for name in attributes}


def code(page: str) -> Iterator[str]:
    """Return the names that a page has between backticks, without patterns such as NAME.py."""
    text = re.sub(r"^    .*$", "", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    yield from (found for found in re.findall(r"`([^`]+)`", text) if not re.search(r"NAME|\*", found))


@pytest.mark.parametrize("page", NAMING)
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = [found for found in code(page) if re.fullmatch(r"[\w./]+", found) and found.endswith(SOURCES)]
    assert len(named) > 20
    gone = [
        name
        for name in named
        if not any(str(path.relative_to(ROOT)).endswith(f"/{name}") for path in sources().get(name.split("/")[-1], ()))
        and not (ROOT / name).is_file()
    ]
    assert not gone


@pytest.mark.parametrize("page", NAMING)
def test_classes_that_a_page_names_are_there(page: str) -> None:
    named = [found for found in code(page) if re.fullmatch(r"[A-Z]\w*[a-z]\w*(?:\.[a-z]\w*)?", found)]
    assert len(named) > 20
    parts = {part for name in named for part in re.findall(r"^\w+|\.\w+$", name)}
    assert parts <= classes()


@pytest.mark.parametrize("page", NAMING)
def test_functions_and_constants_that_a_page_names_are_there(page: str) -> None:
    named = {found for found in code(page) if re.fullmatch(r"_?[a-z]+_\w+|[A-Z_]{4,}", found)}
    assert len(named) > 10
    known = {word for paths in sources().values() for path in paths for word in re.findall(r"\w+", path.read_text())}
    assert named <= known
