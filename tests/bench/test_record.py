"""A benchmark's JSON: reading it, older schemas too, asking it, comparing two, drawing one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import bench_findings
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records import plot
from vgg16gpu.bench.records.compare import check_comparable, compare
from vgg16gpu.bench.records.record import (
    SCHEMA,
    combinations,
    headline,
    precisions,
    read,
    select,
)
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


def test_reading_something_else_or_a_broken_record_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    texts = ["", "not JSON", "[]", "{}", '{"schema": 1}', '{"schema": 99, "batches": []}']
    for key, value in (
        ("median_s", 0),
        ("median_s", None),
        ("method", "guessed"),
        ("regime", "warm"),
        ("name", None),
        ("tf32", "no"),
    ):
        broken = copy.deepcopy(content)
        broken["records"][3][key] = value
        texts.append(json.dumps(broken))
    for text in texts:
        path.write_text(text)
        with pytest.raises(InputError, match=r"old\.json"):
            read(path)


# Asking


def test_the_headline_is_the_sustained_number_where_there_is_one(content: dict[str, Any]) -> None:
    def regimes(batch: int, method: Method) -> set[str]:
        return {record["regime"] for record in headline(content, "fp16", batch, method)}

    assert regimes(1, Method.BACK_TO_BACK) == {"cool"}
    assert regimes(32, Method.BACK_TO_BACK) == {"sustained"}
    assert regimes(32, Method.HOST_TO_HOST) == {"cool"}
    content["records"] = [r for r in content["records"] if (r["name"], r["regime"]) != (NAME, "sustained")]
    assert regimes(32, Method.BACK_TO_BACK) == {"cool"}


def test_tables_name_precision_regime_and_state_of_the_gpu(
    content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    content["notes"] = ["tensorrt is not installed: not compared"]
    content["cold_start"] = {"to_result_s": 1.5, "to_exit_s": 2.5}  # of an older record, without parts
    print_result(content)
    shown = capsys.readouterr().out
    assert "Cold start: 1.5 s to the answer, 2.5 s to the end" in shown
    assert "Its parts" not in shown
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


# Comparing


def slowed(content: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same result with all medians of one contender multiplied."""
    changed = copy.deepcopy(content)
    for record in changed["records"]:
        record["median_s"] *= factor if record["name"] == NAME else 1
    return changed


def test_threshold_of_three_percent(content: dict[str, Any]) -> None:
    for factor, slower in ((0.5, False), (1.029, False), (1.031, True)):
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


def test_nothing_in_common(content: dict[str, Any]) -> None:
    new = copy.deepcopy(content)
    alone = copy.deepcopy(content)
    alone["records"] = [record for record in alone["records"] if record["name"] == NAME]
    assert {ratio.judged for ratio in compare(alone, content, Path("old.json"))} == {True}  # peers are in one alone
    new["batches"] = [{**new["batches"][0], "batch": 7}]
    with pytest.raises(InputError, match="fp16 1, fp16 32, int8 1"):
        compare(content, new, Path("old.json"))


def test_another_device_or_model_is_refused(content: dict[str, Any]) -> None:
    for of, change, reason in (
        ("device", {"name": "NVIDIA H100"}, "device was NVIDIA H100"),
        ("device", {"kind": "cpu"}, "kind of device"),
        ("model", {"sha256": "1" * 64}, "SHA-256"),
        ("model", {"input_shape": [3, 244, 244]}, "input shape"),
    ):
        old = copy.deepcopy(content)
        old[of] |= change
        with pytest.raises(InputError, match=reason):
            check_comparable(old, Path("old.json"), content["model"], content["device"])
    check_comparable(content, Path("old.json"), content["model"], content["device"])


# Plot


def test_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    path = tmp_path / "bench.png"
    plot.write_plot(bench_findings.result("cuda"), path)
    with Image.open(path) as image:
        assert min(image.size) > 500
        assert len(image.convert("RGB").getcolors(maxcolors=2**24) or []) > 10
    assert [file.name for file in tmp_path.iterdir()] == ["bench.png"]


def test_the_best_tf32_peer_is_a_bar(tf32: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = plot.draw(tf32, layers=False).axes
    bars = {drawn.get_label(): [bar.get_height() for bar in drawn] for drawn in axes.containers}
    assert list(bars) == [NAME, "torch", "jax", "onnxruntime", "best TF32 peer"]
    assert bars["best TF32 peer"] == pytest.approx([0.45 / 1.9, 3.4 / 22.0])
    assert bars[NAME] == pytest.approx([0.33 / 1.9, 4.1 / 22.0])
    assert len(bars["onnxruntime"]) == 1
    tf32["records"] = [record for record in tf32["records"] if record["name"] == NAME]
    (axes,) = plot.draw(tf32, layers=False).axes  # nothing to be relative to
    assert axes.get_ylabel().startswith("ms per image (median)")
