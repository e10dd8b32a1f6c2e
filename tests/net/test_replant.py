"""tests/net: every fault can be planted today, and one is."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.net import replant


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
