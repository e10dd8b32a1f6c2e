"""measure/tile_tables.py: which table is whose, and a bound that is exceeded ends with 1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.measure import tile_tables as measured
from tests.measure.tile_tables import NEAREST, OWN, tables_of
from tests.support.tune_device import H200
from vgg16gpu.bench.measure.ours import EngineContender
from vgg16gpu.devices import open_device, tile_tables
from vgg16gpu.devices.tile_tables import TABLES, file_name
from vgg16gpu.errors import InputError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.engine import Engine

H100 = replace(H200, name="NVIDIA H100 80GB HBM3")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A table of this machine's processor, which knows no problem."""
    opened = open_device("cpu")
    opened.device.close()
    tile_tables.write(tmp_path / "own.json", opened.device.facts.name, {"a problem": {"rows": 1}}, {})
    return tmp_path / "own.json"


def test_the_nearest_table_is_not_the_cards_own(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    tile_tables.write(own, H100.name, {"a problem": {"rows": 1}}, {})
    tables = tables_of(H100, own)
    assert tables[OWN] == {"a problem": {"rows": 1}}
    assert tables[NEAREST] == json.loads((TABLES / "NVIDIA_H200.json").read_text())["tiles"]
    shipped = tables_of(replace(H200, name="NVIDIA H200"), TABLES / file_name("NVIDIA H200"))
    assert shipped[OWN] == tables[NEAREST]
    assert shipped[NEAREST] != shipped[OWN]


def test_another_cards_table_is_refused() -> None:
    with pytest.raises(InputError, match="no tiles of NVIDIA H100 80GB HBM3"):
        tables_of(H100, TABLES / "NVIDIA_H200.json")


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.02, 0), (1.05, 1)])
def test_a_network_that_is_slower_than_its_bound(
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slower: float,
    code: int,
) -> None:
    output = tmp_path / "record.json"
    times = [1.0, slower, slower, 1.0]
    taken: list[float] = []

    def measure(*_: object) -> list[float]:
        taken.append(times[len(taken) % 4])
        return [taken[-1]]

    monkeypatch.setattr(measured, "one_run", lambda _: {"back to back": 0.01})
    monkeypatch.setattr(EngineContender, "measure", measure)
    words = ["--device", "cpu", "--precision", "fp32", "--batch", "1,2", "--rounds", "3", "--output", str(output)]
    assert measured.main([str(digits_model()), "--own", str(own), *words]) == code
    nets = json.loads(output.read_text())["nets"]
    assert [(net["batch"], net["bound"]) for net in nets] == [(1, 1.08), (2, 1.03)]
    assert all(net["ratios"] == [slower] * 3 and net["ratio"] == slower for net in nets)
    assert ("ABOVE 1.03" in capsys.readouterr().out) == bool(code)


def test_engines_are_built_with_their_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def build(*words: Any, **options: Any) -> Engine:
        seen.append(tile_tables.table("any", tmp_path))
        return Engine(*words, **options)

    monkeypatch.setattr(measured, "Engine", build)
    rows = list(measured.measure(digits_model(), "cpu", "fp32", [1], {OWN: {"a": {}}, NEAREST: {"b": {}}}, 1))
    assert seen == [{"a": {}}, {"b": {}}]
    assert rows[0].own_s > 0
    assert rows[0].nearest_s > 0
