"""examples/tour.ipynb: a notebook without stored outputs, whose cells run one after the other and say what is true."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
CONTENT = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CODE = [cell for cell in CONTENT["cells"] if cell["cell_type"] == "code"]


def run_cells() -> None:
    """Do what a notebook does: one cell after the other, in one namespace; a cell's last value is shown."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in CODE:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "a cell", "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "a cell", "eval"), namespace)
            if hasattr(shown, "_repr_png_"):
                print(f"picture {shown.size} of {len(shown._repr_png_())} bytes")


def number(pattern: str, text: str) -> float:
    """The one number that the pattern finds."""
    (found,) = re.findall(pattern, text)
    return float(found)


def test_the_cells_say_what_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder that has nothing to do with the project."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    run_cells()
    printed, complained = capsys.readouterr()
    assert complained == ""
    assert re.match(r"2: 9\d\.\d\d%, score 5\.\d{3}\n", printed)
    assert number(r"([\d.]+)% of 450 digits are right\n", printed) >= 99
    assert number(r"largest error of a score: (\S+)", printed) <= 1e-5
    assert number(r"error against onnxruntime: (\S+),", printed) <= 1e-5
    change, told = map(float, *re.findall(r"the score changes by (\S+); by the gradient (\S+)", printed))
    assert told > 0
    assert change == pytest.approx(told, rel=0.05)
    first, last = map(float, *re.findall(r"loss (\S+) at first, (\S+) after 20 steps", printed))
    assert 0 < last < 0.2 * first
    sizes = re.findall(r"picture (\(\d+, \d+\)) of \d{3,} bytes", printed)
    assert sizes == ["(128, 128)", "(512, 512)", "(128, 128)", "(384, 128)"]


def test_nothing_of_a_run_is_stored() -> None:
    assert (CONTENT["nbformat"], CONTENT["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert 8 <= len(CODE) <= 12
    assert [(cell["outputs"], cell["execution_count"]) for cell in CODE] == [([], None)] * len(CODE)
    ids = [cell["id"] for cell in CONTENT["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(len(cell["source"]) <= 22 for cell in CODE)
