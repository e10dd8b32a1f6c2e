"""The figures of the README and of docs/performance.md are those of the recorded results."""

import json
import shutil
from pathlib import Path

import pytest
import readme_table
import result_tables

from tests.support import bench_findings
from vgg16gpu.bench.records.record import select


def test_the_pages_are_up_to_date():
    assert readme_table.main(["--check"]) == 0


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Both pages and the results in a folder of their own, with a benchmark of two precisions on one card."""
    results = tmp_path / "results"
    shutil.copytree(result_tables.RESULTS, results, ignore=shutil.ignore_patterns("bench-h100.json"))
    (results / "bench-h200.json").write_text(json.dumps(bench_findings.result()))
    monkeypatch.setattr(result_tables, "RESULTS", results)
    pages = []
    for name in ("README", "PERFORMANCE", "KERNELS", "LOSSES"):
        pages.append(Path(shutil.copy(getattr(readme_table, name), tmp_path)))
        monkeypatch.setattr(readme_table, name, pages[-1])
    return *pages[:2], results


def test_another_result_is_noticed_and_written(copies):
    readme, performance, results = copies
    assert readme_table.main([]) == 0
    assert readme_table.main(["--check"]) == 0
    bench = bench_findings.result()
    for record in select(bench, name="vgg16gpu", precision="fp16", batch=1):
        record["median_s"] = 0.000123
    (results / "bench-h200.json").write_text(json.dumps(bench))
    assert readme_table.main(["--check"]) == 1
    assert readme_table.main([]) == 0
    assert "**0.123**" in readme.read_text()
    assert "**0.123**" in performance.read_text()
    assert readme_table.main(["--check"]) == 0


def test_one_page_out_of_date_is_enough(copies):
    readme_table.main([])
    for page in copies[:2]:
        text = page.read_text()
        page.write_text(text.replace("NVIDIA H200", "a card"))
        assert readme_table.main(["--check"]) == 1
        page.write_text(text)


# The README's


def test_a_row_is_ours_beside_the_best_peer():
    rows = result_tables.short_table(bench_findings.result()).splitlines()
    assert rows[0].endswith("| batch 1 | batch 32, sustained |")
    assert rows[2:] == [
        "| fp16 / best fp16 peer | **0.160** / 0.300 jax | **1.54** / 2.09 jax |",
        "| int8 / best int8 peer, random data | **0.110** / 0.290 jax | **0.990** / 1.65 jax |",
    ]


def test_tf32_has_a_row_of_its_own():
    rows = result_tables.short_table(bench_findings.result_with_tf32()).splitlines()
    assert rows[2:] == [
        "| fp32 / best strict fp32 peer | **0.330** / 1.90 torch | **4.51** / 24.2 torch |",
        "| fp32 / best TF32 peer | **0.330** / 0.450 jax | **4.51** / 3.74 jax |",
    ]


def test_without_peers_a_row_is_ours():
    bench = bench_findings.result()
    bench["records"] = select(bench, name="vgg16gpu")
    assert result_tables.short_table(bench).splitlines()[2:] == [
        "| fp16 | **0.160** | **1.54** |",
        "| int8 | **0.110** | **0.990** |",
    ]
    assert result_tables.short_text(bench).endswith("Peers: none.\n")


def test_what_a_caller_gets_has_a_column():
    calls = [
        {"precision": "fp32", "batch": 1, "way": "eager", "median_ms": 0.5},
        {"precision": "fp32", "batch": 1, "way": "CUDA graph", "median_ms": 0.3652},
        {"precision": "fp32", "batch": 8, "way": "CUDA graph", "median_ms": 1.3},
        {"precision": "fp16", "batch": 1, "way": "CUDA graph", "error": "failed"},
    ]
    public = {"calls": calls, "environment": bench_findings.result()["environment"]}
    rows = result_tables.short_table(bench_findings.result_with_tf32(), public).splitlines()
    assert rows[0].endswith("| batch 1, as called | batch 1 | batch 32, sustained |")
    assert all("peer | 0.365 | **0.330** / " in row for row in rows[2:])
    assert "| fp16 / best fp16 peer |  | **0.160** / " in result_tables.short_table(bench_findings.result(), public)
    assert "Engine.run(x, out=out, wait=False)" in result_tables.short_text(bench_findings.result(), public)


def test_the_text_says_who_was_not_timed_and_where_ours_is_slower():
    text = result_tables.short_text(bench_findings.result_with_tf32())
    assert "Peers: torch 2.11.0, jax 0.11.2, onnxruntime 1.31.1; not timed: tensorrt." in text
    assert "Here ours is slower in fp32 than the best TF32 peer (error 4e-03, ours 1e-06) at batch 32." in text


def test_the_text_does_not_hide_that_tf32_is_missing():
    text = result_tables.short_text(bench_findings.result())
    assert text.endswith("Here ours is the fastest everywhere. TF32 was not measured.\n")


def test_a_second_card_stands_in_the_docs_alone(copies):
    readme, performance, results = copies
    bench = bench_findings.result_with_tf32()
    bench["device"]["name"] = "NVIDIA H100"
    (results / "bench-h100.json").write_text(json.dumps(bench))
    readme_table.main([])
    assert "one NVIDIA H100, back to back" in performance.read_text()
    assert "NVIDIA H100" not in readme.read_text().split(readme_table.BEGIN)[1].split(readme_table.END)[0]


# docs/losses.md's, docs/kernels.md's


def lpips_record():
    def step(by, count, form, ms, order=""):
        named = {"by": by, "count": count, "size": 256, "form": form, "order": order}
        return {**named, "median_ms": ms, "memory_nbytes": 3 << 29, "distance": 0.02}

    failed = {"by": "torch autocast bf16", "count": 1, "size": 256, "form": "eager", "order": "NCHW", "error": "failed"}
    steps = [step("vgg16gpu bf16", count, form, 1.5 * count) for count in (1, 16) for form in ("eager", "CUDA graph")]
    steps += [failed, step("torch autocast bf16", 16, "compiled", 30.0, "NCHW")]
    steps += [step("torch autocast bf16", 16, "compiled", 20.0, "channels_last")]
    return {"lpips": steps, "environment": bench_findings.result()["environment"]}


def test_a_way_of_lpips_has_its_faster_order_of_memory():
    rows = result_tables.lpips_table(lpips_record()).splitlines()
    assert rows[2] == "| **vgg16gpu bf16** | 1.50 | 1.50 |  | 24.0 | 24.0 |  | 1.50 | 2.0e-02 |"
    assert rows[3] == "| torch autocast bf16 |  |  |  |  |  | 20.0 | 1.50 | 2.0e-02 |"


def test_the_short_table_of_lpips_has_the_best_form_of_each_way():
    assert result_tables.lpips_short_table(lpips_record()).splitlines()[2:] == [
        "| 1x256x256 | 1.50 |  |  |  |  |",
        "| 16x256x256 | 24.0 |  |  | 20.0 |  |",
    ]


def test_plain_layers_stand_beside_the_layer_that_computes_them():
    def layer(name, kernel, *shape):
        return {"name": name, "kernel": kernel, "output": shape, "ms": 1.0}

    conv, pool = "conv3x3_relu", "maxpool2x2"
    layers = [layer("a", conv, 64, 8, 8), layer("b", conv, 64, 8, 8), layer("c", pool, 64, 4, 4)]
    layers += [layer("d", conv, 128, 4, 4), layer("e", "gemm_reduce", 10)]
    found = [{"names": names, "ms": 0.01 * (1 + i)} for i, names in enumerate((["a", "b", "c"], ["d"], ["e"]))]
    engine = {"fp16": {"ms": 0.05, "errors": [1e-3, 2e-3], "layers": found}}
    plain = {"ms": 5.0, "errors": [1e-6], "layers": layers}
    record = {"plain": plain, "engine": engine, "environment": bench_findings.result()["environment"]}
    record["environment"]["device"] = {"name": "a card"}
    assert result_tables.plain_table(record).splitlines()[2:8] == [
        "| conv1_1, 64x8x8 | 1.00 | 0.0100 |",
        "| conv1_2 and pool, 64x8x8 | 2.00 | with the one above |",
        "| conv2_1, 128x4x4 | 1.00 | 0.0200 |",
        "| fc6, 10 | 1.00 | 0.0300 |",
        "| **whole net** | **5.00** | **0.0500** |",
        "| worst error of ten pictures | 1.0e-06 | 2.0e-03 |",
    ]


# docs/performance.md's


def test_rows_are_ours_the_best_peer_the_ratio_and_the_energy():
    rows = result_tables.whole_table(bench_findings.result()).splitlines()
    assert rows[0].endswith("| batch 1 | batch 32, sustained |")
    assert rows[2:6] == [
        "| **fp16, vgg16gpu** | **0.160** | **1.54** |",
        "| best fp16 peer of torch 2.11.0, jax 0.11.2, error 1.0e-06 | 0.300 jax | 2.09 jax |",
        "| ratio | 1.87x | 1.36x |",
        "| mJ per image, ours / theirs |  | 33.2 / 45.1 |",  # 690 W, 32 images
    ]
    assert rows[7] == "| best int8 peer, random data of jax 0.11.2 | 0.290 jax | 1.65 jax |"
    assert len(rows) == 2 + 4 + 4


@pytest.mark.parametrize("name", ["vgg16gpu", "jax"])
def test_energy_has_a_row_only_where_power_was_read_of_both(name):
    bench = bench_findings.result()
    for record in select(bench, name=name, precision="fp16"):
        record["gpu"] = None if name == "jax" else {**(record["gpu"] or {}), "power_w": None}
    rows = result_tables.whole_table(bench).splitlines()
    assert len(rows) == 2 + 3 + 4
    assert rows[4].startswith("| ratio")
    assert rows[5].startswith("| **int8")


def test_rows_of_tf32_stand_beside_the_same_figures_of_ours():
    rows = result_tables.whole_table(bench_findings.result_with_tf32()).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| **fp32, vgg16gpu**",
        "| best strict fp32 peer of torch 2.11.0, jax 0.11.2, onnxruntime 1.31.1, error 1.0e-06",
        "| ratio",
        "| mJ per image, ours / theirs",
        "| best TF32 peer of torch 2.11.0, jax 0.11.2, onnxruntime 1.31.1, error 4.0e-03",
        "| ratio",
        "| mJ per image, ours / theirs",
    ]
    assert rows[-2] == "| ratio | 1.36x | 0.83x |"


def test_the_text_says_how_and_who_is_missing():
    text = result_tables.whole_text(bench_findings.result_with_tf32())
    for part in (
        "1.0e-06 (fp32)",
        "a process of its own",
        "Sustained: 3 s of load",
        "In short bursts, before the card is warm, batch 32: fp32 4.10.",
        "Without a time: tensorrt: tensorrt is not installed",
        "Without a time: onnxruntime, fp32, batch 32: failed twice: its process died of SIGSEGV.",
        "Without a time: torch, fp32, batch 1, NCHW, eager, TF32: its scores differ",
    ):
        assert part in text


def test_a_second_size_stands_in_the_docs_alone(copies):
    readme, performance, results = copies
    bench = bench_findings.result()
    bench["model"]["input_shape"] = [3, 244, 244]
    bench["failures"] = ["fp32, batch 1: the scores differ", "int8, batch 8: the scores differ"]
    (results / "bench-h200-244.json").write_text(json.dumps(bench))
    readme_table.main([])
    assert "VGG16, 3x224x224, ms per batch" in performance.read_text()
    assert "VGG16, 3x244x244, ms per batch" in performance.read_text()
    assert "Not timed, for the reasons in the record: fp32, batch 1; int8, batch 8." in performance.read_text()
    assert "244" not in readme.read_text().split(readme_table.BEGIN)[1].split(readme_table.END)[0]


def test_a_sweep_has_a_row_for_each_size_and_arithmetic(copies):
    _, performance, results = copies
    for recorded in results.glob("sweep-*.json"):
        recorded.unlink()
    readme_table.main([])
    assert "best peer's time by ours" not in performance.read_text()
    for size in (320, 224):
        bench = bench_findings.result_with_tf32()
        bench["model"]["input_shape"] = [3, size, size]
        (results / f"sweep-h200-{size}-fp32.json").write_text(json.dumps(bench))
    readme_table.main([])
    _, table = performance.read_text().split("best peer's time by ours")
    assert [line.partition(" | ")[0] for line in table.splitlines()[2:6]] == [
        "| NVIDIA H200, best strict fp32 peer, 3x224x224",
        "| NVIDIA H200, best TF32 peer, 3x224x224",
        "| NVIDIA H200, best strict fp32 peer, 3x320x320",
        "| NVIDIA H200, best TF32 peer, 3x320x320",
    ]
    assert table.splitlines()[3].endswith("| 1.36 | 0.83 |")
    bench["batches"] = [each for each in bench["batches"] if each["batch"] == 1]
    bench["records"] = [record for record in bench["records"] if record["batch"] == 1]
    with pytest.raises(ValueError, match="no rows of one table"):
        result_tables.sweep_table([bench_findings.result_with_tf32(), bench])


def test_the_chart_is_drawn_from_the_same_result(copies):
    pytest.importorskip("matplotlib")
    readme, _, results = copies
    (results / "chart-h200.png").write_bytes(b"old")
    readme_table.main([])
    assert (results / "chart-h200.png").read_bytes()[1:4] == b"PNG"
    assert "(testbench/results/chart-h200.png)" in readme.read_text()


@pytest.mark.parametrize(("value", "text"), [(1.9, "1.90"), (22.456, "22.5"), (800.2, "800"), (0.1234, "0.123")])
def test_three_digits(value, text):
    assert result_tables.figure(value) == text
