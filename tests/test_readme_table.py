"""The README's figures are those of the recorded results."""

import json
import shutil

import bench_findings
import pytest
import readme_table

from vgg16gpu.bench.record import select


def test_the_readme_is_up_to_date():
    assert readme_table.main(["--check"]) == 0


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """README and results in a folder of their own, with a benchmark of two precisions."""
    readme, results = tmp_path / "README.md", tmp_path / "results"
    shutil.copy(readme_table.README, readme)
    shutil.copytree(readme_table.RESULTS, results)
    (results / "bench-h200.json").write_text(json.dumps(bench_findings.result()))
    monkeypatch.setattr(readme_table, "README", readme)
    monkeypatch.setattr(readme_table, "RESULTS", results)
    return readme, results


def test_another_result_is_noticed_and_written(copies):
    readme, results = copies
    assert readme_table.main([]) == 0
    assert readme_table.main(["--check"]) == 0
    bench = bench_findings.result()
    for record in select(bench, name="vgg16gpu", precision="fp16", batch=1):
        record["median_s"] = 0.000123
    (results / "bench-h200.json").write_text(json.dumps(bench))
    assert readme_table.main(["--check"]) == 1
    assert readme_table.main([]) == 0
    assert "**0.123**" in readme.read_text()
    assert readme_table.main(["--check"]) == 0


def test_rows_are_ours_the_best_peer_and_the_ratio():
    rows = readme_table.gpu_table(bench_findings.result()).splitlines()
    assert rows[0].endswith("| batch 1 | batch 32, sustained |")
    assert rows[2:5] == [
        "| **fp16, vgg16gpu** | **0.160** | **1.54** |",
        "| best fp16 peer of torch 2.11.0, jax 0.11.2 | 0.300 jax | 2.09 jax |",
        "| ratio | 1.87x | 1.36x |",
    ]
    assert rows[6] == "| best int8 peer of jax 0.11.2; random data | 0.290 jax | 1.65 jax |"
    assert len(rows) == 2 + 3 + 3


def test_remarks_say_how_and_who_is_missing():
    text = readme_table.remarks(bench_findings.result())
    for part in (
        "1.0e-06 (fp16), 1.0e-06 (int8)",
        "queued calls",
        "Sustained: 3 s of load",
        "TensorRT was not compared",
    ):
        assert part in text
    assert "JAX was not" not in text


def test_a_second_size_has_its_own_table(copies):
    readme, results = copies
    bench = bench_findings.result()
    bench["model"]["input_shape"] = [3, 244, 244]
    bench["failures"] = ["fp32, batch 1: the scores differ", "int8, batch 8: the scores differ"]
    (results / "bench-h200-244.json").write_text(json.dumps(bench))
    readme_table.main([])
    assert "VGG16, 3x224x224, ms per batch" in readme.read_text()
    assert "VGG16, 3x244x244, ms per batch" in readme.read_text()
    assert "Not timed, for the reasons in the record: fp32, batch 1; int8, batch 8." in readme.read_text()


def test_the_chart_is_drawn_from_the_same_result(copies):
    pytest.importorskip("matplotlib")
    readme, results = copies
    (results / "chart-h200.png").write_bytes(b"old")
    readme_table.main([])
    assert (results / "chart-h200.png").read_bytes()[1:4] == b"PNG"
    assert "(testbench/results/chart-h200.png)" in readme.read_text()


@pytest.mark.parametrize(("value", "text"), [(1.9, "1.90"), (22.456, "22.5"), (800.2, "800"), (0.1234, "0.123")])
def test_three_digits(value, text):
    assert readme_table.figure(value) == text
