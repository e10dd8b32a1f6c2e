"""A benchmark's JSON: reading it, older schemas too, asking it, comparing two, drawing one."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support import bench_findings
from vgg16gpu.bench.measure.ours import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records import plot
from vgg16gpu.bench.records.compare import check_comparable, compare
from vgg16gpu.bench.records.record import (
    SCHEMA,
    absent,
    batches,
    ceilings_text,
    combinations,
    fastest,
    headline,
    kinds,
    label,
    names,
    peers,
    precisions,
    read,
    select,
    version,
)
from vgg16gpu.cli.bench import screen as bench_screen
from vgg16gpu.cli.bench.screen import print_result
from vgg16gpu.errors import InputError

OLD = Path(__file__).resolve().parents[2] / "testbench" / "results" / "bench-h200.json"
OLD_RESULT = {
    "schema": 1,
    "model": {"path": "m.onnx", "sha256": "0" * 64, "input_shape": [3, 32, 32], "precision": "fp32"},
    "device": {"kind": "cuda", "name": "NVIDIA H200"},
    "verification": {"reference": "onnxruntime, CPU", "tolerance": 1e-5, "worst_error": 2e-6},
    "batches": [
        {
            "batch": 8,
            "flop": 10,
            "entries": [
                {
                    "name": NAME,
                    "variant": "cuda, fp32",
                    "error": 2e-6,
                    "times": {"isolated": {"median_s": 1.0, "samples": 3}, "back to back": {"median_s": 0.9}},
                }
            ],
            "layers": [],
            "gpu": [],
        }
    ],
    "iterations": [{"iterations": 5, "median_s": 1.0}],
}


@pytest.fixture
def tf32() -> dict[str, Any]:
    return bench_findings.result_with_tf32()


@pytest.fixture
def content() -> dict[str, Any]:
    return bench_findings.result()


# Reading


def test_reading_back(content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    assert read(path) == json.loads(path.read_text())


def test_a_result_of_schema_1_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(OLD_RESULT))
    found = read(path)
    assert found["schema"] == SCHEMA
    assert combinations(found) == [("fp32", 8)]
    assert "precision" not in found["model"]
    assert found["verification"]["worst_errors"] == {"fp32": 2e-6}
    assert found["iterations"][0]["precision"] == "fp32"
    (isolated, queued) = select(found, name=NAME, regime=Regime.COOL)
    assert (isolated["method"], isolated["median_s"], isolated["samples"]) == ("isolated", 1.0, 3)
    assert (queued["method"], queued["variant"], queued["gpu"]) == ("back to back", "cuda, fp32", None)


def test_a_result_of_schema_2_has_neither_tf32_nor_absent_peers(content: dict[str, Any], tmp_path: Path) -> None:
    old = copy.deepcopy(content)
    old["schema"] = 2
    del old["absent"]
    for record in old["records"]:
        del record["tf32"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    assert read(path) == json.loads(json.dumps(content))


def test_what_is_recorded_in_the_repository_can_be_read_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = read(OLD)
    assert {"fp32"} <= set(precisions(found))
    assert select(found, name=NAME, method=Method.BACK_TO_BACK)
    print_result(found)
    assert "torch" in capsys.readouterr().out


@pytest.mark.parametrize("parts", [{}, {"parts_s": {"imports": 0.2, "context (beside)": 0.15}}], ids=["older", "parts"])
def test_a_cold_start_is_shown_with_its_parts(
    content: dict[str, Any], parts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result({**content, "cold_start": {"to_result_s": 0.7, "to_exit_s": 0.8, **parts}})
    shown = capsys.readouterr().out
    assert "Cold start: 700 ms to the answer, 800 ms to the end" in shown
    assert ("Its parts, ms: imports 200, context (beside) 150" in shown) == bool(parts)


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"schema": 1}', '{"schema": 99, "batches": []}'])
def test_reading_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"old\.json"):
        read(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("median_s", 0),
        ("median_s", None),
        ("method", "guessed"),
        ("regime", "warm"),
        ("name", None),
        ("tf32", "no"),
    ],
)
def test_a_broken_record_is_refused(content: dict[str, Any], tmp_path: Path, key: str, value: object) -> None:
    content["records"][3][key] = value
    path = tmp_path / "old.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"old\.json"):
        read(path)


# Asking


def test_one_record_for_every_number(content: dict[str, Any]) -> None:
    keys = ("precision", "batch", "name", "variant", "method", "regime")
    found = [tuple(record[key] for key in keys) for record in content["records"]]
    assert len(set(found)) == len(found) == 2 * 11 + 5
    (record,) = select(content, precision="fp16", batch=32, name=NAME, regime="sustained")
    assert record["median_s"] == pytest.approx(1.1 * 1.4e-3)
    assert record["images_per_s"] == pytest.approx(32 / record["median_s"])
    assert (record["gpu"]["sm_mhz"], record["gpu"]["power_w"]) == (1725, 690)
    assert all(record["gpu"] is None for record in select(content, regime="cool"))


def test_what_is_there_for_its_time_alone_says_so(content: dict[str, Any]) -> None:
    unchecked = [record for record in content["records"] if record["unchecked"]]
    assert {(record["name"], record["precision"], record["error"]) for record in unchecked} == {("jax", "int8", None)}
    assert content["verification"]["worst_errors"] == {"fp16": 1e-6, "int8": 1e-6}


def test_order_of_precisions_and_batches(content: dict[str, Any]) -> None:
    assert precisions(content) == ["fp16", "int8"]
    assert batches(content) == [1, 32]
    assert names(select(content, precision="fp16", batch=1)) == [NAME, "torch", "jax"]
    assert names(peers(content["records"])) == ["torch", "jax"]


def test_tf32_is_a_contender_of_its_own(tf32: dict[str, Any]) -> None:
    found = headline(tf32, "fp32", 1, Method.BACK_TO_BACK)
    assert names(peers(found)) == names(peers(found, tf32=True)) == ["torch", "jax", "onnxruntime"]
    assert kinds(found)[0] == (NAME, False)
    assert len(kinds(found)) == 7
    best, rival = fastest(peers(found)), fastest(peers(found, tf32=True))
    assert best is not None
    assert rival is not None
    assert (best["name"], best["error"]) == ("torch", 1e-6)
    assert (rival["name"], rival["error"]) == ("jax", 4e-3)
    assert label("jax", True) == "jax TF32"


def test_who_is_absent_where(tf32: dict[str, Any], content: dict[str, Any]) -> None:
    assert [each["name"] for each in absent(tf32, "fp32", 1)] == ["tensorrt"]
    assert [each["name"] for each in absent(tf32, "fp32", 32)] == ["tensorrt", "onnxruntime"]
    assert absent(content, "fp16", 1) == []


def test_the_version_of_a_peer(content: dict[str, Any]) -> None:
    content["environment"]["versions"]["onnxruntime-gpu"] = "1.31.1"
    assert [version(content, name) for name in ("torch", "onnxruntime", "tensorrt")] == ["2.11.0", "1.31.1", ""]


def test_the_fastest_variant_is_the_one_that_counts(content: dict[str, Any]) -> None:
    found = fastest(select(content, precision="fp16", batch=1, name="torch", method=Method.BACK_TO_BACK))
    assert found is not None
    assert found["variant"] == "NHWC"
    assert fastest([]) is None


def test_the_headline_is_the_sustained_number_where_there_is_one(content: dict[str, Any]) -> None:
    def regimes(batch: int, method: Method) -> set[str]:
        return {record["regime"] for record in headline(content, "fp16", batch, method)}

    assert regimes(1, Method.BACK_TO_BACK) == {"cool"}
    assert regimes(32, Method.BACK_TO_BACK) == {"sustained"}
    assert regimes(32, Method.HOST_TO_HOST) == {"cool"}
    content["records"] = [r for r in content["records"] if (r["name"], r["regime"]) != (NAME, "sustained")]
    assert regimes(32, Method.BACK_TO_BACK) == {"cool"}


def test_ceilings_on_a_line(content: dict[str, Any]) -> None:
    assert ceilings_text(content["ceilings"], "fp32") == "60 TFLOP/s FFMA, 4000 GB/s copy"
    assert ceilings_text(content["ceilings"], "fp16") == "900 TFLOP/s fp16 on tensor cores, 4000 GB/s copy"
    assert ceilings_text(content["ceilings"], "bf16") == "4000 GB/s copy"


def test_tables_name_precision_regime_and_state_of_the_gpu(
    content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    content["notes"] = ["tensorrt is not installed: not compared"]
    print_result(content)
    shown = capsys.readouterr().out
    for text in ("fp16 x 32, sustained", "int8 x 1, cool", "1725", "690", "Steps in int8 at batch 32", "tensor cores"):
        assert text in shown
    assert "Note: tensorrt is not installed" in shown
    assert "Note: jax (random data): random data" in shown
    assert "NCHW, eager" not in shown  # not the fastest variant


def test_tf32_and_absent_peers_have_rows(tf32: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_result(tf32)
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["", "", "jax TF32", "TF32", "450 us", "495 us", "2222", "1.36", "4.0e-03", "", ""] in rows
    assert [row[2] for row in rows if len(row) == 11 and row[4] == "absent"] == ["tensorrt"] * 2 + ["onnxruntime"]
    assert "Absent: onnxruntime, fp32, batch 32: failed twice: its process died of SIGSEGV" in shown
    assert "Absent: torch (NCHW, eager, TF32), fp32, batch 1: its scores differ" in shown
    assert "last words" not in shown


@pytest.mark.slow(reason="words alone")
def test_no_word_is_split_in_a_terminal(
    tf32: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def words(width: int) -> set[str]:
        """Of all tables in a terminal of so many columns."""
        monkeypatch.setattr(bench_screen, "console", lambda: Console(width=width, highlight=False))
        print_result(tf32)
        bench_screen.print_comparison(compare(tf32, slowed(tf32, 2.0), Path("old.json")), Path("old.json"), 3.0)
        lines = [line for line in capsys.readouterr().out.splitlines() if "│" in line or "┃" in line]
        assert max(map(len, lines)) <= width
        return {word for line in lines for word in re.split("[│┃ ]+", line)}

    everything = words(1000)
    for width in (80, 100, 120):
        assert words(width) <= everything
    assert {"onnxruntime", "absent", "SLOWER", "1.36", "ms"} <= words(80)
    assert "variant" in words(120)


# Comparing


def slowed(content: dict[str, Any], factor: float, name: str = NAME) -> dict[str, Any]:
    """The same result with all medians of one contender multiplied."""
    changed = copy.deepcopy(content)
    for record in changed["records"]:
        record["median_s"] *= factor if record["name"] == name else 1
    return changed


@pytest.mark.parametrize(("factor", "slower"), [(0.5, False), (1.0, False), (1.029, False), (1.031, True), (2.0, True)])
def test_threshold_of_three_percent(content: dict[str, Any], factor: float, slower: bool) -> None:
    ratios = compare(content, slowed(content, factor), Path("old.json"))
    judged = [ratio for ratio in ratios if ratio.judged]
    assert len(judged) == 2 * (2 + 3)  # two precisions; two methods at batch 1, at 32 also under load
    assert all(ratio.is_slower(3.0) is slower for ratio in judged)
    assert all(ratio.ratio == pytest.approx(factor) for ratio in judged)


def test_iterations_are_judged(content: dict[str, Any]) -> None:
    content["iterations"] = [{"precision": "fp16", "iterations": 5, "median_s": 1.0}]
    new = copy.deepcopy(content)
    new["iterations"][0]["median_s"] *= 1.1
    new["iterations"].append({"precision": "int8", "iterations": 5, "median_s": 9.0})
    assert [ratio.what for ratio in compare(content, new, Path("old.json")) if ratio.is_slower(3.0)] == [
        f"{NAME}, fp16, 5 iterations"
    ]


def test_a_slower_peer_is_not_our_fault(content: dict[str, Any]) -> None:
    ratios = compare(content, slowed(content, 5.0, "torch"), Path("old.json"))
    assert any(ratio.ratio > 4 for ratio in ratios)
    assert not any(ratio.is_slower(3.0) for ratio in ratios)


def test_tf32_is_compared_with_tf32(tf32: dict[str, Any]) -> None:
    new = copy.deepcopy(tf32)
    for record in select(new, name="jax", tf32=True):
        record["median_s"] *= 3
    ratios = {ratio.what: ratio.ratio for ratio in compare(tf32, new, Path("old.json"))}
    assert ratios["jax TF32, fp32, batch 1, back to back, cool"] == pytest.approx(3)
    assert ratios["jax, fp32, batch 1, back to back, cool"] == pytest.approx(1)


def test_another_precision_is_not_compared(content: dict[str, Any]) -> None:
    new = slowed(content, 3.0)
    for record in new["records"]:
        record["precision"] = {"fp16": "bf16"}.get(record["precision"], record["precision"])
    for batch in new["batches"]:
        batch["precision"] = {"fp16": "bf16"}.get(batch["precision"], batch["precision"])
    assert {ratio.what.split(", ")[1] for ratio in compare(content, new, Path("old.json"))} == {"int8"}


def test_nothing_in_common(content: dict[str, Any]) -> None:
    new = copy.deepcopy(content)
    new["batches"] = [{**new["batches"][0], "batch": 7}]
    with pytest.raises(InputError, match="fp16 1, fp16 32, int8 1"):
        compare(content, new, Path("old.json"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": {"name": "NVIDIA H100"}}, "device was NVIDIA H100"),
        ({"device": {"kind": "cpu"}}, "kind of device"),
        ({"model": {"sha256": "1" * 64}}, "SHA-256"),
        ({"model": {"input_shape": [3, 244, 244]}}, "input shape"),
    ],
)
def test_another_device_or_model_is_refused(content: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    old = copy.deepcopy(content)
    for key, values in change.items():
        old[key] |= values
    with pytest.raises(InputError, match=reason):
        check_comparable(old, Path("old.json"), content["model"], content["device"])
    check_comparable(content, Path("old.json"), content["model"], content["device"])


# Plot


@pytest.mark.parametrize("kind", ["cuda"])
def test_plot_is_written(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    path = tmp_path / "bench.png"
    plot.write_plot(bench_findings.result(kind), path)
    with Image.open(path) as image:
        assert min(image.size) > 500
        assert len(image.convert("RGB").getcolors(maxcolors=2**24) or []) > 10
    assert [file.name for file in tmp_path.iterdir()] == ["bench.png"]


@pytest.mark.slow(reason="draws two figures")
def test_the_same_result_gives_the_same_drawing(content: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        plot.write_plot(content, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_heights_are_times_beside_the_best_peers(content: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    figure = plot.draw(content, layers=False)
    assert len(figure.axes) == 2
    bars = {
        (panel, bars.get_label()): [bar.get_height() for bar in bars]
        for panel, axes in enumerate(figure.axes)
        for bars in axes.containers
    }
    assert bars[0, NAME] == pytest.approx([0.16 / 0.30, 1.4 / 1.9])
    assert bars[0, "torch"] == pytest.approx([0.43 / 0.30, 3.9 / 1.9])
    assert bars[0, "jax"] == pytest.approx([1, 1])
    assert bars[1, NAME] == pytest.approx([0.11 / 0.29, 0.9 / 1.5])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["1", "32\nsustained"]


def test_the_best_tf32_peer_is_a_bar(tf32: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = plot.draw(tf32, layers=False).axes
    bars = {drawn.get_label(): [bar.get_height() for bar in drawn] for drawn in axes.containers}
    assert list(bars) == [NAME, "torch", "jax", "onnxruntime", "best TF32 peer"]
    assert bars["best TF32 peer"] == pytest.approx([0.45 / 1.9, 3.4 / 22.0])
    assert bars[NAME] == pytest.approx([0.33 / 1.9, 4.1 / 22.0])
    assert len(bars["onnxruntime"]) == 1


def test_without_peers_heights_are_milliseconds_per_image(content: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    content["records"] = select(content, name=NAME)
    axes = plot.draw(content, layers=False).axes[0]
    assert [bar.get_height() for bar in axes.containers[0]] == pytest.approx([0.16, 1.1 * 1.4 / 32])
    assert "ms per image" in axes.get_ylabel()


@pytest.mark.slow(reason="draws three figures; test_plot_is_written stands for them")
@pytest.mark.parametrize("kind", ["cpu", "cuda", "tf32"])
def test_no_text_lies_on_another(kind: str) -> None:
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    figure = plot.draw(bench_findings.result_with_tf32() if kind == "tf32" else bench_findings.result(kind))
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    texts = [figure._suptitle]
    for axes in figure.axes:
        texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *axes.get_legend().get_texts()]
        texts += [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.get_legend().get_patches()]
    shown = [text for text in texts if not hasattr(text, "get_text") or text.get_text()]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in shown]
    assert len(boxes) > 40
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :]), shown[i]
