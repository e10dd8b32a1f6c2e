"""bench: statistics, turns, verdicts, and the command on a narrow VGG on the cpu device."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from vgg16gpu.bench import cold_start, environment, peers, plot, session
from vgg16gpu.bench.ceilings import Ceilings, measure_ceilings
from vgg16gpu.bench.compare import check_comparable, compare
from vgg16gpu.bench.layers import LayerTime, measure_layers
from vgg16gpu.bench.ours import NAME, EngineContender
from vgg16gpu.bench.peers import PeerError
from vgg16gpu.bench.report import SCHEMA, best_entry, read
from vgg16gpu.bench.timing import (
    CPU_EFFORT,
    GPU_EFFORT,
    MIN_REPEATS,
    Effort,
    Method,
    best,
    measure_in_turns,
    measure_iterations,
    summarise,
)
from vgg16gpu.cli import cli
from vgg16gpu.engine import Engine
from vgg16gpu.errors import Error, InputError
from vgg16gpu.zoo.generate import make_vgg

MILLISECOND = 1e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "narrow.onnx"
    make_vgg(path, width=8, hidden=64, size=32, classes=10)
    return path


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments), "--device", "cpu"])


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of the command."""
    path = tmp_path_factory.mktemp("result") / "result.json"
    result = bench(
        model, "--batch", "1,2", "--repeats", 2, "--iterations", 1, "--against", "onnxruntime", "--output", path
    )
    assert result.exit_code == 0, result.stderr
    return path


@pytest.fixture
def content(written: Path) -> dict[str, Any]:
    return json.loads(written.read_text())


# Statistics


def test_summary_of_known_samples() -> None:
    samples = [float(i) for i in range(1, 101)]
    found = summarise(samples[::-1], runs=7)
    assert (found.median_s, found.p95_s, found.min_s, found.samples, found.runs) == (50.5, 95.0, 1.0, 100, 7)


def test_summary_of_one_sample() -> None:
    found = summarise([2.0])
    assert (found.median_s, found.p95_s, found.min_s, found.samples) == (2.0, 2.0, 2.0, 1)


def test_one_slow_run_of_ten_is_in_p95_and_not_in_the_median() -> None:
    found = summarise([1.0] * 9 + [100.0])
    assert (found.median_s, found.p95_s) == (1.0, 100.0)


@pytest.mark.parametrize("effort", [GPU_EFFORT, CPU_EFFORT])
@pytest.mark.parametrize("one", [1e-6, 1e-3, 0.02, 0.9, 100.0])
def test_effort_stays_in_its_bounds(effort: Effort, one: float) -> None:
    turns, runs = effort.share(one)
    assert turns <= effort.rounds
    assert turns * runs >= MIN_REPEATS
    assert turns * runs <= effort.most + effort.rounds
    assert turns * runs * one <= max(effort.seconds + effort.rounds * one, (MIN_REPEATS + 1) * one)


@pytest.mark.parametrize(("repeats", "share"), [(1, (1, 1)), (3, (3, 1)), (5, (5, 1)), (7, (5, 2)), (100, (5, 20))])
def test_repeats_are_done_at_least(repeats: int, share: tuple[int, int]) -> None:
    assert Effort(1.0, 200, 5, repeats).share(1e-3) == share


class Fake:
    """A contender whose runs take what it is told; `log` has who was measured, how and how often."""

    def __init__(
        self, name: str, seconds: float, log: list[tuple[str, Method, int]], methods: tuple[Method, ...]
    ) -> None:
        self.name, self.variant, self.methods = name, "", methods
        self._seconds, self._log = seconds, log

    def scores(self) -> None:
        raise NotImplementedError

    def measure(self, method: Method, runs: int) -> list[float]:
        self._log.append((self.name, method, runs))
        return [self._seconds] * (1 if method is Method.BACK_TO_BACK else runs)


def test_contenders_take_turns_and_warm_up_in_each() -> None:
    log: list[tuple[str, Method, int]] = []
    host = Method.HOST_TO_HOST
    a, b = Fake("a", 1.0, log, (Method.BACK_TO_BACK, host)), Fake("b", 2.0, log, (host,))
    times = measure_in_turns([a, b], Effort(1.0, 100, rounds=2, repeats=4))
    turn = [("a", host, 1), ("a", Method.BACK_TO_BACK, 2), ("a", host, 2), ("b", host, 1), ("b", host, 2)]
    assert log == [("a", host, 1)] * 2 + [("b", host, 1)] * 2 + turn * 2
    assert set(times[0]) == {Method.BACK_TO_BACK, host}
    assert set(times[1]) == {host}
    assert (times[0][host].samples, times[0][host].runs, times[0][host].median_s) == (4, 1, 1.0)
    assert (times[0][Method.BACK_TO_BACK].samples, times[0][Method.BACK_TO_BACK].runs) == (2, 2)
    assert best(times, host) == 0
    assert best(times, Method.ISOLATED) is None


def test_a_fast_contender_gets_more_runs_than_a_slow_one() -> None:
    log: list[tuple[str, Method, int]] = []
    fakes = [Fake("fast", MILLISECOND, log, (Method.HOST_TO_HOST,)), Fake("slow", 10.0, log, (Method.HOST_TO_HOST,))]
    fast, slow = measure_in_turns(fakes, Effort(1.0, 50, rounds=5))
    assert fast[Method.HOST_TO_HOST].samples == 50
    assert slow[Method.HOST_TO_HOST].samples == MIN_REPEATS


def test_iterations_run_every_input_as_often_as_asked() -> None:
    seen: list[int] = []
    mean, summary = measure_iterations(seen.append, [1, 2, 3], 4)
    assert seen == [1] * 4 + [2] * 4 + [3] * 4
    assert summary.samples == 12
    assert summary.min_s <= mean


# Ceilings and layers


def test_the_floor_is_the_larger_of_arithmetic_and_memory() -> None:
    ceilings = Ceilings(bytes_per_s=100.0, flop_per_s=1000.0, copy_nbytes=0, description="")
    assert ceilings.floor(flop=2000, nbytes=100) == 2.0
    assert ceilings.floor(flop=500, nbytes=100) == 1.0


def test_percent_of_the_ceiling() -> None:
    layer = LayerTime("conv", "k", ("y",), median_s=4.0, samples=1, flop=1, nbytes=1, floor_s=1.0)
    assert layer.percent == 25.0


def test_layers_and_ceilings_of_a_real_engine(model: Path) -> None:
    with Engine(model, device="cpu") as engine:
        allocations = engine.device.counters.allocations
        ceilings = measure_ceilings(engine.device)
        assert engine.device.counters.allocations == allocations + 1
        assert 1e8 < ceilings.bytes_per_s < 1e13
        assert 1e8 < ceilings.flop_per_s < 1e14
        x = session.sample_inputs((3, 32, 32))[:1]
        before = engine.run(x)
        layers = measure_layers(engine, engine.program, ceilings)
        np.testing.assert_array_equal(engine.run(x), before)
        assert [layer.label for layer in layers][1:] == [step.label for step in engine.program.steps]
        assert sum(layer.flop for layer in layers[1:]) == sum(step.flop for step in engine.program.steps)
        assert all(layer.median_s > 0 and layer.samples >= 3 and layer.percent > 0 for layer in layers)


def test_our_contender_measures_with_each_method(model: Path) -> None:
    with Engine(model, device="cpu", batch=2) as engine:
        ours = EngineContender(engine, session.sample_inputs((3, 32, 32))[:2])
        assert ours.scores().shape == (2, 10)
        counts = {method: len(ours.measure(method, 3)) for method in Method}
        assert counts == {Method.ISOLATED: 3, Method.BACK_TO_BACK: 1, Method.HOST_TO_HOST: 3}
        ours.scores()
        before = engine.counters
        ours.measure(Method.BACK_TO_BACK, 3)
        after = engine.counters.since(before)
        assert (after.copies_in, after.copies_out) == (0, 0)
        assert after.launches == 3 * (1 + len(engine.program.steps))


# The command and its JSON


SUMMARY_KEYS = {"median_s", "p95_s", "min_s", "samples", "runs"}


def test_the_json_is_complete(content: dict[str, Any], model: Path) -> None:
    assert content["schema"] == SCHEMA
    assert content["model"]["path"] == str(model)
    assert content["model"]["input_shape"] == [3, 32, 32]
    assert len(content["model"]["sha256"]) == 64
    assert content["device"]["kind"] == "cpu"
    assert {"date", "system", "cpu", "cores", "device", "cuda", "versions", "commit"} <= set(content["environment"])
    assert {"vgg16gpu", "python", "numpy", "onnx"} <= set(content["environment"]["versions"])
    assert {
        *(method.value for method in Method),
        "layers",
        "ceilings",
        "iterations",
        "cold_start",
        "order",
        "peers",
    } == set(content["methods"])
    assert all(content["methods"].values())
    assert 0 <= content["verification"]["worst_error"] <= content["verification"]["tolerance"]
    assert content["ceilings"]["bytes_per_s"] > 0
    assert content["ceilings"]["flop_per_s"] > 0
    assert content["cold_start"] is None
    assert content["notes"] == []


def test_every_batch_has_times_and_layers(content: dict[str, Any]) -> None:
    assert [batch["batch"] for batch in content["batches"]] == [1, 2]
    for batch in content["batches"]:
        assert [entry["name"] for entry in batch["entries"]] == [NAME, "onnxruntime"]
        ours, theirs = batch["entries"]
        assert set(ours["times"]) == {method.value for method in Method}
        assert set(theirs["times"]) == {Method.HOST_TO_HOST.value}
        for summary in (*ours["times"].values(), *theirs["times"].values()):
            assert set(summary) == SUMMARY_KEYS | {"images_per_s"}
            assert 0 < summary["min_s"] <= summary["median_s"] <= summary["p95_s"]
            assert summary["images_per_s"] == pytest.approx(batch["batch"] / summary["median_s"])
        for layer in batch["layers"]:
            assert layer["flop_per_s"] == pytest.approx(layer["flop"] / layer["median_s"])
            assert layer["bytes_per_s"] == pytest.approx(layer["nbytes"] / layer["median_s"])
            assert layer["percent_of_ceiling"] == pytest.approx(100 * layer["floor_s"] / layer["median_s"])
    assert content["batches"][1]["flop"] == 2 * content["batches"][0]["flop"]


def test_iterations_are_means_over_ten_inputs(content: dict[str, Any]) -> None:
    (item,) = content["iterations"]
    assert (item["iterations"], item["samples"]) == (1, 10)
    assert set(item) == {"iterations", "mean_s"} | SUMMARY_KEYS


def test_json_alone_on_stdout(model: Path) -> None:
    result = bench(model, "--repeats", 1, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert json.loads(result.stdout)["batches"][0]["batch"] == 1


def test_tables_name_what_they_show(model: Path) -> None:
    result = bench(model, "--repeats", 1, "--iterations", 1, "--against", "onnxruntime")
    assert result.exit_code == 0
    for text in (
        "isolated",
        "back to back",
        "host to host",
        "onnxruntime",
        "TFLOP/s",
        "GB/s",
        "% of ceiling",
        "iterations",
    ):
        assert text in result.stdout
    assert "Checked: error" in result.stdout
    assert "conv 3x3 3->8" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--against", "tensorrt"], "tensorrt"),
        (["--batch", "0"], "positive"),
        (["--repeats", "0"], "0"),
        (["--plot", "picture.bmp"], ".bmp"),
        (["--output", "/no/such/folder/file.json"], "does not exist"),
        (["--compare", "/no/such/file.json"], "cannot be read"),
        (["--size", "64"], "size"),
        (["--model", "other.onnx"], "give one"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(model: Path, arguments: list[str], reason: str) -> None:
    result = bench(model, *arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def test_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bench()
    assert result.exit_code == 2
    assert "no model" in result.stderr


# Checking before timing


def test_wrong_scores_are_not_timed(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scores = session.Oracle.scores
    monkeypatch.setattr(session.Oracle, "scores", lambda oracle, x: np.roll(scores(oracle, x), 1, axis=1))
    result = bench(model, "--repeats", 1, "--output", tmp_path / "result.json")
    assert result.exit_code == 1
    assert "differ from onnxruntime's" in result.stderr
    assert not (tmp_path / "result.json").exists()


def test_nan_in_the_scores_is_wrong(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.EngineContender, "scores", lambda _: np.full((1, 10), np.nan, np.float32))
    assert bench(model, "--repeats", 1).exit_code == 1


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Packages that are not installed, as far as anybody asks."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else find_spec(name, *rest)
    )


def test_without_onnxruntime_it_says_that_nothing_was_checked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "onnxruntime")
    result = bench(model, "--repeats", 1, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["verification"]["worst_error"] is None
    assert any("not verified" in note for note in found["notes"])


# Peers


def test_a_missing_peer_is_a_note(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch")
    result = bench(model, "--repeats", 1, "--against", "onnxruntime,torch", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert any("torch is not installed (pip install torch)" in note for note in found["notes"])
    assert {entry["name"] for entry in found["batches"][0]["entries"]} == {NAME, "onnxruntime"}


def test_a_missing_peer_is_an_error_when_nothing_else_was_asked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch")
    result = bench(model, "--repeats", 1, "--against", "torch")
    assert result.exit_code == 2
    assert "torch is not installed" in result.stderr


def test_a_broken_peer_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: peers.Setting) -> peers.Peer:
        raise ImportError("libsomething.so is missing")

    monkeypatch.setattr(peers, "_OPENERS", {"onnxruntime": broken})
    with pytest.raises(PeerError, match="libsomething"):
        peers.open_peer("onnxruntime", peers.Setting(Path("m.onnx"), None, "cpu", 0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_peer_that_computes_something_else_is_not_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from vgg16gpu.bench import peer_onnxruntime

    def scores(_: Any) -> np.ndarray:
        if fault == "raises":
            raise RuntimeError("out of memory\nand more")
        return np.ones((1, 10), np.float32)

    monkeypatch.setattr(peer_onnxruntime._CpuContender, "scores", scores)
    result = bench(model, "--repeats", 1, "--against", "onnxruntime", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [entry["name"] for entry in found["batches"][0]["entries"]] == [NAME]
    (note,) = found["notes"]
    assert "not compared" in note
    assert ("out of memory" if fault == "raises" else "differs") in note
    assert "\n" not in note


def test_torch_computes_what_we_do(model: Path) -> None:
    """Only where torch happens to be installed; nothing else of the package needs it."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    result = bench(model, "--batch", 2, "--repeats", 1, "--against", "torch", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    theirs = [entry for entry in found["batches"][0]["entries"] if entry["name"] == "torch"]
    assert sorted(entry["variant"].split(",")[0] for entry in theirs) == ["NCHW", "channels_last"]
    assert all(entry["error"] <= session.PEER_TOLERANCE for entry in theirs)


# Comparing


def slowed(content: dict[str, Any], factor: float, name: str = NAME) -> dict[str, Any]:
    """The same result with all medians of one contender multiplied."""
    changed = copy.deepcopy(content)
    for batch in changed["batches"]:
        for entry in batch["entries"]:
            for summary in entry["times"].values():
                summary["median_s"] *= factor if entry["name"] == name else 1
    return changed


@pytest.mark.parametrize(("factor", "slower"), [(0.5, False), (1.0, False), (1.029, False), (1.031, True), (2.0, True)])
def test_threshold_of_three_percent(content: dict[str, Any], factor: float, slower: bool) -> None:
    ratios = compare(content, slowed(content, factor), Path("old.json"))
    judged = [ratio for ratio in ratios if ratio.judged and "iterations" not in ratio.what]
    assert len(judged) == 2 * len(Method)
    assert all(ratio.is_slower(3.0) is slower for ratio in judged)
    assert all(ratio.ratio == pytest.approx(factor) for ratio in judged)


def test_iterations_are_judged(content: dict[str, Any]) -> None:
    new = copy.deepcopy(content)
    new["iterations"][0]["median_s"] *= 1.1
    assert [ratio.what for ratio in compare(content, new, Path("old.json")) if ratio.is_slower(3.0)] == [
        f"{NAME}, 1 iterations"
    ]


def test_a_slower_peer_is_not_our_fault(content: dict[str, Any]) -> None:
    ratios = compare(content, slowed(content, 5.0, "onnxruntime"), Path("old.json"))
    assert any(ratio.ratio > 4 for ratio in ratios)
    assert not any(ratio.is_slower(3.0) for ratio in ratios)


def test_the_fastest_variant_of_a_peer_is_the_one_compared(content: dict[str, Any]) -> None:
    batch = content["batches"][0]
    slow = copy.deepcopy(batch["entries"][1])
    slow["times"]["host to host"]["median_s"] *= 10
    batch["entries"].insert(1, slow)
    assert best_entry(batch, "onnxruntime", Method.HOST_TO_HOST) is batch["entries"][2]
    assert best_entry(batch, "onnxruntime", Method.ISOLATED) is None


def test_nothing_in_common(content: dict[str, Any]) -> None:
    new = copy.deepcopy(content)
    new["batches"], new["iterations"] = [{**new["batches"][0], "batch": 7}], []
    with pytest.raises(InputError, match="--batch 1, 2"):
        compare(content, new, Path("old.json"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": {"name": "NVIDIA H200", "kind": "cuda"}}, "device was NVIDIA H200"),
        ({"model": {"sha256": "0" * 64}}, "SHA-256"),
        ({"model": {"input_shape": [3, 244, 244]}}, "input shape"),
        ({"model": {"precision": "fp16"}}, "precision"),
    ],
)
def test_another_device_or_model_is_refused(content: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    old = copy.deepcopy(content)
    for key, values in change.items():
        old[key] |= values
    with pytest.raises(InputError, match=reason):
        check_comparable(old, Path("old.json"), content["model"], content["device"])
    check_comparable(content, Path("old.json"), content["model"], content["device"])


@pytest.mark.parametrize(("factor", "code", "verdict"), [(100.0, 0, "No median is slower"), (0.001, 1, "SLOWER")])
def test_compare_decides_the_exit_code(
    model: Path, content: dict[str, Any], tmp_path: Path, factor: float, code: int, verdict: str
) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps(slowed(content, factor)))
    output = tmp_path / "new.json"
    result = bench(model, "--repeats", 1, "--compare", old, "--output", output)
    assert result.exit_code == code, result.stderr
    assert verdict in result.stdout
    ratios = json.loads(output.read_text())["comparison"]["ratios"]
    assert any(ratio["slower"] for ratio in ratios) is bool(code)


def test_threshold_option(model: Path, content: dict[str, Any], tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps(slowed(content, 0.001)))
    assert bench(model, "--repeats", 1, "--compare", old, "--threshold", 1e9).exit_code == 0


def test_compare_refuses_another_model_before_it_measures(
    model: Path, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it has measured")

    monkeypatch.setattr(session, "measure_ceilings", never)
    content["model"]["sha256"] = "0" * 64
    old = tmp_path / "old.json"
    old.write_text(json.dumps(content))
    result = bench(model, "--compare", old)
    assert result.exit_code == 2
    assert "cannot be compared" in result.stderr


@pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"schema": 1}', '{"schema": 99, "batches": []}'])
def test_reading_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"old\.json"):
        read(path)


def test_reading_back(written: Path, content: dict[str, Any]) -> None:
    assert read(written) == content


# Plot


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_plot_is_written(content: dict[str, Any], tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    content["device"]["kind"] = kind
    path = tmp_path / "bench.png"
    plot.write_plot(content, path)
    with Image.open(path) as image:
        assert min(image.size) > 500
        assert len(image.convert("RGB").getcolors(maxcolors=2**24) or []) > 10
    assert [file.name for file in tmp_path.iterdir()] == ["bench.png"]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_text_lies_on_another(content: dict[str, Any], kind: str) -> None:
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    content["device"]["kind"] = kind
    figure = plot.draw(content)
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


def test_plot_without_matplotlib_says_how_to_get_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "matplotlib")
    result = bench(model, "--plot", tmp_path / "bench.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


# Environment


def test_commit_of_a_checkout_and_of_none(tmp_path: Path) -> None:
    import subprocess

    assert environment.commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    file = tmp_path / "file"
    file.write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    found = environment.commit(tmp_path)
    assert found is not None
    assert len(found["hash"]) == 40
    assert found["dirty"] is False
    file.write_text("2")
    assert (environment.commit(tmp_path) or {})["dirty"] is True


def test_gpu_readings_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, 1980, 3201, 76.50, 700.00, 31'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.gpu_readings("cpu") == []
    (reading,) = environment.gpu_readings("cuda")
    assert reading["name"] == "NVIDIA H200"
    assert reading["clocks.sm"] == "1980"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert environment.gpu_readings("cuda") == []


# Cold start


def test_cold_start_runs_infer_in_processes_of_its_own(model: Path) -> None:
    found = cold_start.measure_cold_start(model, "cpu", session.sample_inputs((3, 32, 32))[0])
    assert len(found.results_s) == len(found.exits_s) == cold_start.RUNS
    assert 0 < found.to_result_s <= found.to_exit_s
    assert all(result <= end for result, end in zip(found.results_s, found.exits_s, strict=True))


def test_cold_start_reports_what_infer_says(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"missing\.onnx"):
        cold_start.measure_cold_start(tmp_path / "missing.onnx", "cpu", np.zeros((3, 32, 32), np.float32))


def test_cold_start_counts_to_the_first_byte() -> None:
    script = "import sys, time; print('answer', flush=True); time.sleep(0.5)"
    result, end = cold_start._one_start([sys.executable, "-c", script])
    assert end - result > 0.4
