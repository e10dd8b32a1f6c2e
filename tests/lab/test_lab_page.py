"""docs/lab.md: its tables are those of the records, every recorded figure is shown."""

import shutil

import lab_tables
import result_tables


def test_the_tables_are_up_to_date():
    assert lab_tables.main(["--check"]) == 0


def test_another_number_is_noticed_and_written(tmp_path, monkeypatch):
    page = tmp_path / "lab.md"
    shutil.copy(lab_tables.PAGE, page)
    monkeypatch.setattr(lab_tables, "PAGE", page)
    loaded = lab_tables.load

    def slower(name):
        content = loaded(name)
        for row in content.get("rows", []):
            row["ours"] = 98765.0
        return content

    monkeypatch.setattr(lab_tables, "load", slower)
    assert lab_tables.main(["--check"]) == 1
    assert lab_tables.main([]) == 0
    assert page.read_text().count("| 98765 |") >= 3 * 5
    assert lab_tables.main(["--check"]) == 0


def test_a_marker_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    page = tmp_path / "lab.md"
    page.write_text(lab_tables.PAGE.read_text().replace("table: S5", "table: S6"))
    monkeypatch.setattr(lab_tables, "PAGE", page)
    assert lab_tables.main([]) == 1
    assert "S5, S6" in capsys.readouterr().err


def test_every_recorded_figure_is_shown():
    text = lab_tables.PAGE.read_text()
    figures = [*(result_tables.RESULTS / "lab").glob("*.png"), *result_tables.RESULTS.glob("ladder*.png")]
    assert len(figures) > 20
    assert not [figure.name for figure in figures if f"/{figure.name})" not in text]
