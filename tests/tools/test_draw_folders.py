"""The picture of the folders in docs/architecture.md is the one that tools/draw_folders.py draws."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import draw_folders
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_pictures_are_those_of_the_imports() -> None:
    assert draw_folders.main(["--check"]) == 0


def test_an_older_picture_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draw_folders, "IMAGES", tmp_path)
    assert draw_folders.main([]) == 0
    dark = tmp_path / "folders-dark.svg"
    dark.write_text(dark.read_text().replace("runtime/", "running/"))
    assert draw_folders.main(["--check"]) == 1
    assert "folders-dark.svg is out of date: run python tools/draw_folders.py" in capsys.readouterr().out


def test_every_form_of_an_import_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "cli": "import vgg16gpu.bench.session, numpy\nfrom vgg16gpu import checks\n",
        "bench": "def f():\n    from vgg16gpu.io.files import x\n    from vgg16gpu.errors import Error\n",
        "checks": "from vgg16gpu.checks import accuracy\nfrom vgg16gpu_lab import io\n",
        "io": "",
    }
    for name, text in modules.items():
        (tmp_path / "vgg16gpu" / name).mkdir(parents=True)
        (tmp_path / "vgg16gpu" / name / "__init__.py").write_text("")
        (tmp_path / "vgg16gpu" / name / "module.py").write_text(text)
    monkeypatch.setattr(draw_folders, "PACKAGE", tmp_path / "vgg16gpu")
    none = frozenset[str]()
    found = draw_folders.imports()
    assert found == {"cli": frozenset({"bench", "checks"}), "bench": frozenset({"io"}), "checks": none, "io": none}


def test_an_arrow_that_others_stand_for_is_left_out() -> None:
    edges = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset[str](), "d": frozenset("a")}
    assert draw_folders.heights(edges) == {"c": 0, "b": 1, "a": 2, "d": 3}
    assert draw_folders.reduced(edges) == edges | {"a": frozenset("b")}


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="imports go in a circle: a, b"):
        draw_folders.heights({"a": frozenset("b"), "b": frozenset("a"), "c": frozenset[str]()})


def test_arrows_do_not_cross_where_they_need_not() -> None:
    edges = {"p": frozenset("y"), "q": frozenset("x"), "x": frozenset[str](), "y": frozenset[str]()}
    upper, lower = draw_folders.ordered_rows(edges)
    assert (upper.index("p") < upper.index("q")) == (lower.index("y") < lower.index("x"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_folder_has_a_box_inside_the_picture(theme: str) -> None:
    root = ElementTree.fromstring((ROOT / "docs" / "images" / f"folders-{theme}.svg").read_text())
    names = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {f"{name}/" for name in draw_folders.folders()} <= names
    width = float(root.attrib["width"])
    boxes = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if "x" in each.attrib]
    assert len(boxes) == len(draw_folders.folders())
    assert all(0 <= float(b.attrib["x"]) <= width - float(b.attrib["width"]) for b in boxes)
