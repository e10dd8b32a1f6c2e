"""tests/net: every fault can be planted today, one is, and what counts as caught."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.net import replant

GOOD = "def twice(x):\n    return 2 * x\n"
TESTS = """
import pytest
from code_of_a_user import twice

def test_twice():
    assert twice(2) == 4

def test_two():
    assert 1 + 1 == 2

def test_fixture(request):
    request.getfixturevalue("none")
"""
HEAD = "Fault: Twice of a number was something else.\nMended: 1234567\nTest: {}\n\n"
DIFF = """diff --git a/code_of_a_user.py b/code_of_a_user.py
--- a/code_of_a_user.py
+++ b/code_of_a_user.py
@@ -1,2 +1,2 @@
 def twice(x):
-    return 2 * x
+    return {}
"""


@pytest.fixture(autouse=True)
def _start_pytest_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository of one module and its tests in the place of this one; its faults are in `faults`."""
    folder = tmp_path / "checkout"
    (folder / "faults").mkdir(parents=True)
    (folder / "code_of_a_user.py").write_text(GOOD)
    (folder / "test_it.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.setattr(replant, "ROOT", folder)
    monkeypatch.setattr(replant, "FAULTS", folder / "faults")
    replant._tests_of.cache_clear()
    yield folder
    replant._tests_of.cache_clear()


def write(folder: Path, name: str, test: str, becomes: str, head: str = HEAD) -> None:
    (folder / "faults" / f"{name}.patch").write_text(head.format(test) + DIFF.format(becomes))


def test_every_fault_can_be_planted() -> None:
    faults = replant.read_faults()
    assert len(faults) >= 75
    assert replant.check(faults) == {}
    for fault in faults:
        assert fault.words.endswith("."), fault.name
        assert any(file.startswith(("vgg16gpu/", "kernels/", "serving/", "lab/")) for file in fault.files), fault.name


def test_a_fault_is_planted_and_taken_away_again(tmp_path: Path) -> None:
    """A real one, in a copy of the few files that its test needs."""
    (fault,) = (each for each in replant.read_faults() if each.name == "io-names-break-lines")
    for name in ("vgg16gpu/__init__.py", "vgg16gpu/errors.py", *fault.files, fault.tests[0].partition("::")[0]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(replant.ROOT / name, tmp_path / name)
    before = (tmp_path / fault.files[0]).read_bytes()
    assert replant.plant_in(tmp_path, fault) == ""
    assert (tmp_path / fault.files[0]).read_bytes() == before


@pytest.mark.slow(reason="starts of pytest; `make nightly` plants each fault")
def test_what_counts_as_caught(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(checkout, "b-passes", "test_it.py::test_two", "3 * x")
    write(checkout, "c-does-not-compile", "test_it.py::test_twice", "(")
    write(checkout, "d-fails-before", "test_it.py::test_fixture", "3 * x")
    write(checkout, "e-no-test", "test_it.py::test_thrice", "3 * x")
    write(checkout, "f-moved", "test_it.py::test_twice", "3 * x")
    moved = checkout / "faults" / "f-moved.patch"
    moved.write_text(moved.read_text().replace("2 * x", "x * 2"))
    write(checkout, "g-elsewhere", "test_it.py::test_twice", "3 * x", f"{HEAD.rstrip()}\nNeeds: no_such_module\n\n")
    assert replant.main(["--jobs", "1"]) == 1
    passed_over, *told, last = capsys.readouterr().out.splitlines()
    assert passed_over == "g-elsewhere is passed over: no_such_module is not installed"
    found = dict(line.split(": ", 1) for line in told)
    assert [name[0] for name in found] == ["b", "c", "d", "e", "f"]
    assert found["b-passes"].startswith("pytest ends with 0: ")
    assert "1 passed" in found["b-passes"]
    assert found["c-does-not-compile"].startswith("pytest ends with 4: ")
    assert found["d-fails-before"] == "test_it.py::test_fixture fails without the fault, too"
    assert found["e-no-test"] == "there is no test test_it.py::test_thrice"
    assert found["f-moved"].startswith("the patch does not apply: ")
    assert last == f"5 of 5 not caught, the first is b-passes: {found['b-passes']}"


@pytest.mark.parametrize("line", ["Fault", "Mended", "Test"])
def test_a_head_that_is_not_complete_is_named(checkout: Path, line: str) -> None:
    head = "\n".join(each for each in HEAD.splitlines() if not each.startswith(line))
    write(checkout, "a", "test_it.py::test_twice", "3 * x", head + "\n\n")
    with pytest.raises(ValueError, match=r"^a\.patch: above the diff stand the lines Fault, Mended, Test"):
        replant.read_faults()
