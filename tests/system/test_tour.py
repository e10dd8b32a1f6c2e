"""examples/tour.ipynb: a notebook without stored outputs, whose cells run one after the other and say what is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
CONTENT = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CODE = [cell for cell in CONTENT["cells"] if cell["cell_type"] == "code"]

# What a notebook does, in plain Python: one cell after the other, in one namespace; a cell's last value is shown.
RUN = """
import ast, json, pathlib, sys

namespace = {"__name__": "__main__"}
for number, cell in enumerate(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace) if last else None
        if hasattr(shown, "_repr_png_"):
            print(f"picture {shown.size} of {len(shown._repr_png_())} bytes")
"""


def number(pattern: str, text: str) -> float:
    """The one number that the pattern finds."""
    (found,) = re.findall(pattern, text)
    return float(found)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that the cells print on a machine without a GPU, from a folder that has nothing to do with the project."""
    pytest.importorskip("onnxruntime")
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, str(NOTEBOOK)],
        cwd=tmp_path_factory.mktemp("tour"),
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_the_digit_is_a_2(printed: str) -> None:
    assert re.match(r"2: 9\d\.\d\d%, score 5\.\d{3}\n", printed)


def test_scores_are_right(printed: str) -> None:
    assert number(r"([\d.]+)% of 450 digits are right\n", printed) >= 99
    assert number(r"largest error of a score: (\S+)", printed) <= 1e-5
    assert number(r"error against onnxruntime: (\S+),", printed) <= 1e-5


def test_the_gradient_is_that_of_the_score(printed: str) -> None:
    change, told = map(float, *re.findall(r"the score changes by (\S+); by the gradient (\S+)", printed))
    assert told > 0
    assert change == pytest.approx(told, rel=0.05)


def test_the_loss_falls(printed: str) -> None:
    first, last = map(float, *re.findall(r"loss (\S+) at first, (\S+) after 20 steps", printed))
    assert 0 < last < 0.2 * first


def test_pictures_are_shown(printed: str) -> None:
    sizes = re.findall(r"picture (\(\d+, \d+\)) of \d{3,} bytes", printed)
    assert sizes == ["(128, 128)", "(512, 512)", "(128, 128)", "(384, 128)"]


def test_nothing_of_a_run_is_stored() -> None:
    assert (CONTENT["nbformat"], CONTENT["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert 8 <= len(CODE) <= 12
    assert [(cell["outputs"], cell["execution_count"]) for cell in CODE] == [([], None)] * len(CODE)
    ids = [cell["id"] for cell in CONTENT["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(len(cell["source"]) <= 22 for cell in CODE)


def test_links_lead_somewhere() -> None:
    text = "\n".join("".join(cell["source"]) for cell in CONTENT["cells"] if cell["cell_type"] == "markdown")
    targets = [*re.findall(r"\]\(([^)#]+)\)", text), *(f"../{name}" for name in re.findall(r"`(examples/\S+)`", text))]
    assert targets
    for target in targets:
        assert (NOTEBOOK.parent / target).is_file(), target
