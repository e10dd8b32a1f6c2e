"""bench: ceilings, layers, and the command on a narrow VGG on the cpu device; peers have their own file."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from vgg16gpu.bench import session
from vgg16gpu.bench.measure import environment
from vgg16gpu.bench.measure.ceilings import Ceilings, tensor_flops
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime, Summary, summarise
from vgg16gpu.bench.records.findings import BenchmarkConfig
from vgg16gpu.bench.records.record import SCHEMA, read, select
from vgg16gpu.cli import cli
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import KernelError
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.engine import Engine

# One test measures the ceilings, the others take what was measured once.
pytestmark = pytest.mark.usefixtures("measured_ceilings")


def bench(*arguments: object) -> Result:
    """`bench` with little effort, where `arguments` do not say otherwise."""
    return CliRunner().invoke(cli, ["bench", "--seconds", "0.01", *map(str, arguments), "--device", "cpu"])


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of the command."""
    path = tmp_path_factory.mktemp("result") / "result.json"
    options = ("--batch", "1,2", "--repeats", 2, "--iterations", 1, "--sustained", 0.01, "--against", "onnxruntime")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "FROM_BATCH", 2)
        result = bench(model, *options, "--output", path)
    assert result.exit_code == 0, result.stderr
    return path


@pytest.fixture
def content(written: Path) -> dict[str, Any]:
    return json.loads(written.read_text())


# Ceilings and layers


def test_the_floor_is_the_larger_of_arithmetic_and_memory() -> None:
    ceilings = Ceilings(bytes_per_s=100.0, flop_per_s=1000.0, copy_nbytes=0, description="")
    assert ceilings.floor(flop=2000, nbytes=100) == 2.0
    assert ceilings.floor(flop=500, nbytes=100) == 1.0


def test_tensor_cores_by_data_sheet() -> None:
    h200 = DeviceFacts("cuda", "NVIDIA H200", 132, (9, 0), 232448, 1, 1)
    found = tensor_flops(h200)
    assert found["fp16"] == found["bf16"] == pytest.approx(989.4e12, rel=1e-3)
    assert found["int8"] == pytest.approx(1979e12, rel=1e-3)
    assert found["fp32"] == pytest.approx(989.4e12 / 3, rel=1e-3)
    a100 = DeviceFacts("cuda", "NVIDIA A100", 108, (8, 0), 166912, 1, 1)
    assert tensor_flops(a100)["fp16"] == pytest.approx(312e12, rel=1e-2)
    assert tensor_flops(DeviceFacts("cpu", "a CPU", 2, (0, 0), 1, 1, 1)) == {}


# The command and its JSON


SUMMARY_KEYS = {"median_s", "p95_s", "min_s", "samples", "runs"}


def test_the_json_is_complete(content: dict[str, Any], model: Path) -> None:
    assert content["schema"] == SCHEMA
    assert content["model"]["path"] == str(model)
    assert content["model"]["input_shape"] == [3, 32, 32]
    assert len(content["model"]["sha256"]) == 64
    assert content["device"]["kind"] == "cpu"
    assert content["arithmetic"] == {"fp32": "ffma"}
    assert {"date", "system", "cpu", "cores", "device", "cuda", "versions", "commit"} <= set(content["environment"])
    assert {"vgg16gpu", "python", "numpy", "onnx"} <= set(content["environment"]["versions"])
    described = {"layers", "ceilings", "iterations", "cold_start", "order", "peers"}
    assert {*described, *tuple(Method), *tuple(Regime)} == set(content["methods"])
    assert all(content["methods"].values())
    verified = content["verification"]
    assert 0 <= verified["worst_errors"]["fp32"] <= verified["tolerances"]["fp32"]
    assert content["ceilings"]["bytes_per_s"] > 0
    assert content["ceilings"]["flop_per_s"] > 0
    assert content["cold_start"] is None
    assert content["notes"] == content["failures"] == content["absent"] == []


def test_every_batch_has_times_and_layers(content: dict[str, Any]) -> None:
    assert [(batch["precision"], batch["batch"]) for batch in content["batches"]] == [("fp32", 1), ("fp32", 2)]
    for batch in content["batches"]:
        records = select(content, precision="fp32", batch=batch["batch"])
        cool = [(record["name"], record["method"]) for record in records if record["regime"] == Regime.COOL]
        assert cool == [*((NAME, method) for method in Method), ("onnxruntime", Method.HOST_TO_HOST)]
        sustained = [(record["name"], record["method"]) for record in records if record["regime"] == Regime.SUSTAINED]
        assert sustained == [(NAME, Method.BACK_TO_BACK)] * (batch["batch"] == 2)
        for record in records:
            assert set(record) >= SUMMARY_KEYS | {"images_per_s", "gpu", "unchecked", "tf32"}
            assert 0 < record["min_s"] <= record["median_s"] <= record["p95_s"]
            assert record["images_per_s"] == pytest.approx(batch["batch"] / record["median_s"])
            assert record["error"] is not None
        for layer in batch["layers"]:
            assert layer["flop_per_s"] == pytest.approx(layer["flop"] / layer["median_s"])
            assert layer["bytes_per_s"] == pytest.approx(layer["nbytes"] / layer["median_s"])
            assert layer["percent_of_ceiling"] == pytest.approx(100 * layer["floor_s"] / layer["median_s"])
    assert content["batches"][1]["flop"] == 2 * content["batches"][0]["flop"]


def test_wrong_usage_is_one_line_and_exit_code_2(model: Path) -> None:
    for words, reason in {
        "--against caffe": "caffe",
        "--precision fp32,fp7": "fp7",
        "--seconds 0": "0",
        "--sustained -1": "-1",
        "--batch 0": "positive",
        "--repeats 0": "0",
        "--plot picture.bmp": ".bmp",
        "--output /no/such/folder/file.json": "does not exist",
        "--compare /no/such/file.json": "cannot be read",
        "--size 64": "size",
        "--model other.onnx": "give one",
        "--outputs relu1_1 --against onnxruntime": "--against measures whole models",
        "--outputs relu1_1 --cold-start": "--cold-start measures whole models",
        "--outputs nope": "has no value 'nope'",
    }.items():
        result = bench(model, *words.split())
        assert (result.exit_code, result.stdout) == (2, ""), words
        assert reason in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


# Checking before timing


def test_only_what_is_wrong_is_not_timed(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails_at_two(scores: np.ndarray, references: np.ndarray, *rest: str) -> float:
        return checked(scores * (1 + (len(scores) == 2)), references, *rest)

    checked = session.checked
    monkeypatch.setattr(session, "checked", fails_at_two)
    output = tmp_path / "result.json"
    result = bench(model, "--batch", "1,2", "--repeats", 1, "--output", output)
    assert result.exit_code == 1
    assert "batch 2: the scores differ" in result.stderr
    found = read(output)
    assert [batch["batch"] for batch in found["batches"]] == [1]
    assert len(found["failures"]) == 1


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
    assert found["verification"]["worst_errors"] == {"fp32": None}
    assert any("not verified" in note for note in found["notes"])


# A part of the model


def test_what_is_asked_for_is_measured_and_checked(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "part.json"
    part = (model, "--batch", "1,3", "--repeats", 1, "--outputs", "relu2_1,relu1_1")
    result = bench(*part, "--output", output)
    assert result.exit_code == 0, result.stderr
    found = read(output)
    assert found["model"]["outputs"] == ["relu2_1", "relu1_1"]
    labels = [step["label"] for step in found["batches"][0]["layers"]]
    assert [label.startswith("conv") for label in labels].count(True) == 2  # conv1_1, conv2_1
    assert all(0 < record["error"] <= 1e-5 for record in select(found, name=NAME))
    assert "computing relu2_1, relu1_1" in result.stdout
    refused = bench(model, "--repeats", 1, "--compare", output)
    assert refused.exit_code == 2
    assert "was ['relu2_1', 'relu1_1'], now it is None" in refused.stderr
    assert bench(*part, "--compare", output, "--threshold", 1e9).exit_code == 0
    values = session.Oracle.values
    monkeypatch.setattr(
        session.Oracle, "values", lambda oracle, x, names: {n: y + 1 for n, y in values(oracle, x, names).items()}
    )
    assert bench(*part).exit_code == 2


# Comparing


def slowed(content: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same result with all our medians multiplied."""
    changed = copy.deepcopy(content)
    for record in select(changed, name=NAME):
        record["median_s"] *= factor
    return changed


@pytest.mark.first_case(reason="what is compared with itself is in another test")
@pytest.mark.parametrize(("factor", "code", "verdict"), [(0.001, 1, "SLOWER"), (100.0, 0, "No median is slower")])
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


def test_plot_without_matplotlib_says_how_to_get_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "matplotlib")
    result = bench(model, "--plot", tmp_path / "bench.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


# Several precisions and regimes


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Engines that compute in fp32 whatever they are asked for; the list has what that was."""
    asked: list[str] = []

    def make(path: Path, *, precision: str, **options: Any) -> Engine:
        asked.append(precision)
        if precision == "bf16":
            raise KernelError("it does not compile")
        return Engine(path, **options)

    monkeypatch.setattr(session, "Engine", make)
    return asked


def test_a_precision_that_fails_leaves_the_others(model: Path, engines: list[str]) -> None:
    wanted = BenchmarkConfig(Model(model), "cpu", ("fp32", "bf16", "fp16"), repeats=1, seconds=0.01)
    findings = session.run_benchmark(wanted, lambda _: None)
    assert engines == ["fp32", "bf16", "fp16"]
    assert [result.precision for result in findings.batches] == ["fp32", "fp16"]
    assert findings.failures == ["bf16: it does not compile"]


def test_the_fastest_variant_on_the_device_runs_under_load() -> None:
    def contender(name: str, *methods: Method, tf32: bool = False) -> Any:
        return SimpleNamespace(name=name, methods=methods, tf32=tf32)

    def took(seconds: float, *methods: Method) -> dict[Method, Summary]:
        return {method: summarise([seconds]) for method in methods}

    isolated, queued, host = Method
    contenders = [contender(NAME, *Method), contender("a", isolated, queued), contender("a", isolated, queued)]
    contenders += [contender("b", isolated, host), contender("c", host), contender("a", queued, tf32=True)]
    cool = [took(1.0, *Method), took(3.0, isolated, queued), took(2.0, isolated, queued), took(1.0, isolated, host)]
    found = dict(enumerate([*cool, took(0.1, host), took(0.5, queued)]))
    assert session._fastest(contenders, found) == [0, 2, 3, 5]
    del found[2]  # lost on the way
    assert session._fastest(contenders, found) == [0, 1, 3, 5]


def test_runs_that_compute_from_something_else_are_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.EngineContender, "repeats", lambda *_: False)
    found = json.loads(bench(model, "--repeats", 1, "--json").stdout)
    assert any("fp32, batch 1: runs repeated on the device" in note for note in found["notes"])


# Environment


def test_commit_of_a_checkout_and_of_none(tmp_path: Path) -> None:

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
