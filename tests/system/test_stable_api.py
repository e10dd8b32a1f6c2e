"""docs/stable-api.md: its lists are those of the code. Names are taken from the page, and looked for in the package."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import vgg16gpu
from vgg16gpu.cli import COMMANDS, EXIT_CODES
from vgg16gpu.compiler.onnx import metadata
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.answers.classify import Rank

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "stable-api.md").read_text()


def section(title: str) -> str:
    """The part of the page below a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def codes(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall("`([^`]+)`", text)


def rows(text: str) -> dict[str, list[str]]:
    """The tables of a text: each name of a first column, with the names in its second column."""
    cells = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {name: codes(members) for _, names, members, _ in cells for name in codes(names)}


OURS, TORCHS = (rows(part) for part in section("Python").split("From `vgg16gpu.pytorch`"))


def torch_sources() -> dict[str, ast.ClassDef]:
    """The classes of `vgg16gpu.pytorch`, by name, read without importing torch."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "vgg16gpu" / "pytorch").glob("*.py")]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def torch_names() -> set[str]:
    """What `vgg16gpu.pytorch` exports."""
    tree = ast.parse((ROOT / "vgg16gpu" / "pytorch" / "__init__.py").read_text())
    (found,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return set(found)


def test_the_page_has_every_exported_name_and_no_other() -> None:
    assert set(OURS) == set(vgg16gpu.__all__)
    assert set(TORCHS) == torch_names()


def test_names_can_be_imported() -> None:
    assert {name for name in OURS if not hasattr(vgg16gpu, name)} == set()


def has(owner: object, member: str) -> bool:
    """Whether a class has a member: a method, a property, a field, or an attribute that its docstring names."""
    return hasattr(owner, member) or member in getattr(owner, "__annotations__", {}) or f"`{member}`" in owner.__doc__


@pytest.mark.parametrize("name", [name for name in OURS if isinstance(getattr(vgg16gpu, name), type)])
def test_members_of_classes_are_there(name: str) -> None:
    owner = getattr(vgg16gpu, name)
    if issubclass(owner, vgg16gpu.Error):
        assert not set(OURS[name]) - set(vgg16gpu.__all__) - {"ValueError"}
        assert issubclass(vgg16gpu.InputError, ValueError)
        return
    members = [member for member in OURS[name] if member not in [field.name for field in fields(Rank)]]
    assert members
    assert [member for member in members if not has(owner, member)] == []


@pytest.mark.parametrize("name", TORCHS)
def test_members_of_torch_modules_are_there(name: str) -> None:
    source = torch_sources()[name]
    found = {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
    found |= {ast.unparse(node).removeprefix("self.") for node in ast.walk(source) if isinstance(node, ast.Attribute)}
    assert set(TORCHS[name]) <= found


def test_members_of_objects_are_there() -> None:
    with vgg16gpu.Engine("digits", device="cpu") as engine:
        assert [member for member in OURS["Engine"] if not hasattr(engine, member)] == []
    model = vgg16gpu.Model("digits")
    assert [member for member in OURS["Model"] if not hasattr(model, member)] == []
    assert model.path == digits_model()


@pytest.mark.filterwarnings("ignore:vgg16gpu.lab is called:DeprecationWarning")
def test_older_modules_are_those_that_are_kept() -> None:
    (told,) = re.findall(r"Six modules keep their names .*?\.\n\n", f"{section('Python')}\n\n", re.DOTALL)
    names = codes(told)
    assert len(names) == 6
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (kept,) = (contract["exhaustive_ignores"] for contract in settings if "exhaustive_ignores" in contract)
    assert {f"vgg16gpu.{name}" for name in kept if name != "__main__"} <= set(names)
    for name in names:
        assert importlib.import_module(name).__doc__


def cell(start: str) -> str:
    """The first column of the row of "Commands and files" that begins so."""
    (found,) = (line.split("|")[1] for line in section("Commands and files").splitlines() if line[2:].startswith(start))
    return found


def test_commands_exit_codes_and_keys() -> None:
    assert [name for name in codes(cell("commands")) if name != "--help"] == list(COMMANDS)
    assert re.findall(r"\d+", cell("exit codes")) == re.findall(r"\b\d+\b", EXIT_CODES)
    keys = {value for name, value in vars(metadata).items() if name.endswith("_KEY")}
    assert set(codes(cell("keys"))) == keys
