"""lab/figures/write.py: every figure of a record is there, shows each number once, and can be read."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.lab.figure_records import case_record
from vgg16gpu_lab.experiments import s4
from vgg16gpu_lab.figures import write as figures
from vgg16gpu_lab.figures.data import Cell, Chart, Panel, Roofline, Series
from vgg16gpu_lab.figures.draw import draw_picture
from vgg16gpu_lab.figures.seeds import pictures

pytest.importorskip("matplotlib")

S2_FIGURES = {
    "S2-memory-bars",
    "S2-memory-basic-lines",
    "S2-memory-shared-lines",
    "S2-memory-registers-lines",
    "S2-partition-bars",
    "S2-partition-lines",
    "S2-stride-bars",
    "S2-stride-lines",
    "S2-size-bars",
    "S2-size-lines",
}
RECORDED = Path(__file__).resolve().parents[3] / "testbench" / "results" / "lab"
RECORDS = {
    "S1": lambda: case_record("S1"),
    "S2": lambda: case_record("S2"),
    "S3": lambda: json.loads((RECORDED / "S3.json").read_text()),
    "S4": lambda: case_record("S4"),
    "S5": lambda: json.loads((RECORDED / "S5.json").read_text()),
    "quick": lambda: case_record("S2", library=False, quick=True),
}


@pytest.fixture(scope="module")
def shown():
    """Return the pictures of every record, by name."""
    return {name: {picture.name: picture for picture in pictures(record())} for name, record in RECORDS.items()}


def lines(axes):
    """Numbers of points by legend, hollow marks left out."""
    return {line.get_label(): len(line.get_xdata()) for line in axes.lines if not line.get_label().startswith("hollow")}


def bars(axes):
    return {container.get_label(): [bar.get_height() for bar in container] for container in axes.containers}


def cell(panel, label, place):
    return next(series for series in panel.series if series.label == label).cells[place]


# Which figures there are


def test_every_figure_is_there_and_none_is_empty(shown):
    every = {
        "S1": {f"S1-{kind}{stride}" for kind in ("methods", "powers") for stride in ("", "-stride2", "-stride3")},
        "S2": S2_FIGURES | {"S2-layer-bars-1024"},
        "S3": {"S3-versions", "S3-parts", "S3-batches", "S3-tiles"},
        "S4": {"S4-map", "S4-bars"},
        "S5": {"S5-versions-244", "S5-causes-244", "S5-layers-244"},
        "quick": S2_FIGURES | {"S2-layer-bars-256"},
    }
    for record, names in every.items():
        assert {*shown[record]} == {*names, f"{'S2' if record == 'quick' else record}-roofline"}
        assert not [picture.name for picture in shown[record].values() if picture.is_empty]


# What they show


def test_an_estimate_looks_like_one():
    chart = chart_of({"a": {1: Cell(2.0), 2: Cell(30.0, "estimated")}})
    assert lines(draw_picture(chart).axes[0]) == {"a": 2}
    assert len(draw_picture(chart).axes[0].lines) == 2
    (axes,) = draw_picture(dataclasses.replace(chart, bars=True)).axes
    assert [text.get_text() for text in axes.texts] == ["2", "~30"]
    assert [bool(bar.get_hatch()) for bar in axes.containers[0]] == [False, True]


def test_s4_map(shown):
    chart = shown["S4"]["S4-map"]
    assert chart.sizes == s4.CHART_SIZES
    assert chart.channels == s4.CHART_CHANNELS
    assert [name for name, _ in chart.panels] == ["direct", "halo prefetch"]
    record = case_record("S4")
    times = {
        row["method"]: row["ours"]
        for row in record["rows"]
        if row["table"] == "chart" and row["size"] == "256" and row["problem"]["channels"] == 16
    }
    assert dict(chart.panels)["direct"][256, 16] == times["cudnn"] / times["direct"]


def test_s4_bars(shown):
    point = shown["S4"]["S4-bars"].panels[0]
    assert point.line == pytest.approx(cell(point, "", "cudnn").value / 1.2)
    assert "1.2 times cuDNN's" in point.title


def test_s5_causes_and_layers(shown):
    (panel,) = shown["S5"]["S5-causes-244"].panels
    assert [found.label for found in panel.series] == ["grid: 1d", "grid: 2d"]
    assert list(panel.series[0].cells) == ["host serial", "host tree", "device serial", "device tree"]
    rows = RECORDS["S5"]()["rows"]
    times = {row["method"]: row["ours"] for row in rows if row["table"] == "causes"}
    for series in panel.series:
        assert {place: each.value for place, each in series.cells.items()} == {
            place: times[f"{place} {series.label[-2:]}"] for place in series.cells
        }
    (panel,) = shown["S5"]["S5-layers-244"].panels
    found = {place: each.value for place, each in panel.series[0].cells.items()}
    assert found == {
        row["parameter"]: row["details"]["ns_a_product"]
        for row in rows
        if row["table"] == "layers" and "ns_a_product" in row["details"]  # a pool multiplies nothing
    }


@pytest.mark.parametrize("name", ["S1", "S2", "S3", "S4", "S5"])
def test_rooflines(shown, name):
    chart = shown[name][f"{name}-roofline"]
    assert isinstance(chart, Roofline)
    ours = chart.panels[-1]
    ceilings = RECORDS[name]()["ceilings"]
    assert (ours.flop_per_s, ours.bytes_per_s) == (ceilings["flop_per_s"], ceilings["bytes_per_s"])
    labels = {dot.label for dot in ours.dots}
    if name == "S2":  # which has two panels
        _, axes = draw_picture(chart).axes
        assert sum(count for label, count in lines(axes).items() if label in labels) == len(ours.dots)
    assert labels.isdisjoint({"numpy", "cudnn_three"})  # on the host; three calls in one time


def test_a_dot_is_the_best_time_of_the_largest_problem(shown):
    rows = [row for row in case_record("S2")["rows"] if row["variant"] == "gemm-basic"]
    largest = {
        "gemm-basic": [row for row in rows if row["table"] == "gemm_memory" and row["size"] == "4096"],
        "gemm-basic with conversion": [row for row in rows if row["table"] == "layer"],
    }
    for label, chosen in largest.items():
        (dot,) = (dot for dot in shown["S2"]["S2-roofline"].panels[1].dots if dot.label == label)
        best = min(chosen, key=lambda row: row["ours"])
        assert dot.intensity == best["flop"] / best["nbytes"]
        assert dot.flop_per_s == pytest.approx(1e3 * best["flop"] / best["ours"])
    labels = {dot.label for dot in shown["S2"]["S2-roofline"].panels[0].dots}
    assert "gemm-by-block (failed launch)" in labels


# How they look


@pytest.mark.slow(reason="draws figures whose data the tests above check")
def test_no_text_lies_on_another_in_a_figure_of_each_kind(shown):
    """With what is hard to place: long names, failed launches, numbers at every bar or cell."""
    chosen = (("S2", "S2-partition-bars"), ("S4", "S4-map"), ("quick", "S2-size-lines"))
    texts = check_texts(shown[record][name] for record, name in chosen)
    assert {"0.0036 failed launch", "invalid launch", "cudnn\n(ours: missing)"} <= texts


def check_texts(chosen):
    """Draw each picture, compare the boxes of all its texts, and return these."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    said = set()
    for picture in chosen:
        figure = draw_picture(picture)
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        texts = [figure._suptitle, *(text for legend in figure.legends for text in legend.get_texts())]
        for axes in figure.axes:
            texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
            texts += [text for text in axes.get_xticklabels() if inside(text, axes.get_xlim(), 0)]
            texts += [text for text in axes.get_yticklabels() if inside(text, axes.get_ylim(), 1)]
        drawn = [text for text in texts if text.get_visible() and text.get_text()]
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in drawn]
        page = figure.bbox
        for i, box in enumerate(boxes):
            assert min(box.x0, box.y0, page.x1 - box.x1, page.y1 - box.y1) >= 0, (picture.name, drawn[i])
            hit = [drawn[j] for j, other in enumerate(boxes) if j > i and box.overlaps(other)]
            assert not hit, (picture.name, drawn[i], hit)
        said |= {text.get_text() for text in drawn}
    return said


def inside(text, limits, axis):
    """Whether a tick is within its axis: ticks outside have labels that are not drawn."""
    return min(limits) <= text.get_position()[axis] <= max(limits)


# Files


def chart_of(series, **options):
    panel = Panel("", tuple(Series(label, cells) for label, cells in series.items()))
    return Chart("name", "title", (panel,), "x", "y", **options)


def test_files_are_written_and_a_figure_without_data_is_skipped(tmp_path):
    record = case_record("S4", library=False, quick=True)
    drawn = figures.draw({**record, "rows": record["rows"][:1]}, tmp_path)
    assert drawn.notes == (
        "no figure S4-map: no image has a time of ours and one of cuDNN",
        "no figure S4-roofline: no row of a convolution has a time",
    )
    names = {f"S4-bars.{end}" for end in ("png", "svg")}
    assert {path.name for path in drawn.paths} == {path.name for path in tmp_path.iterdir()} == names
    assert (tmp_path / "S4-bars.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "S4-bars.svg").read_text()


def test_without_rows_or_matplotlib_there_are_no_figures(tmp_path, monkeypatch):
    record = case_record("S1", quick=True)
    for name in ("S1", "S2", "S3", "S4", "S5", "comparison"):
        drawn = figures.draw({**record, "experiment": name, "rows": []}, tmp_path)
        assert drawn.paths == ()
        assert drawn.notes
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda _: None)
    drawn = figures.draw(record, tmp_path)
    assert drawn == figures.Drawn((), (figures.NO_MATPLOTLIB,))
    assert list(tmp_path.iterdir()) == []
