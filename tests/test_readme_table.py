"""The README's figures are those of the recorded results."""

import json

import pytest
import readme_table


def test_the_readme_is_up_to_date():
    assert readme_table.main(["--check"]) == 0


@pytest.fixture
def copies(tmp_path, monkeypatch):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(readme_table.README.read_text())
    results.mkdir()
    for path in readme_table.RESULTS.glob("*.json"):
        (results / path.name).write_text(path.read_text())
    monkeypatch.setattr(readme_table, "README", readme)
    monkeypatch.setattr(readme_table, "RESULTS", results)
    return readme, results


def test_another_result_is_noticed_and_written(copies):
    readme, results = copies
    bench = json.loads((results / "bench-h200.json").read_text())
    for entry in bench["batches"][0]["entries"]:
        if entry["name"] == "vgg16gpu":
            entry["times"]["back to back"]["median_s"] = 0.000123
    (results / "bench-h200.json").write_text(json.dumps(bench))
    assert readme_table.main(["--check"]) == 1
    assert readme_table.main([]) == 0
    assert "**0.123**" in readme.read_text()
    assert readme_table.main(["--check"]) == 0


@pytest.mark.parametrize(("value", "text"), [(1.9, "1.90"), (22.456, "22.5"), (800.2, "800"), (0.1234, "0.123")])
def test_three_digits(value, text):
    assert readme_table.figure(value) == text
