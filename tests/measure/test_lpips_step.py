"""measure/lpips_step.py on the cpu device: every way computes the same; what fails, is far off or left out is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from recording.says import says

from tests.support.torch_here import torch_module
from vgg16gpu.zoo.generate import make_vgg

torch = torch_module()
lpips_step = pytest.importorskip("tests.measure.lpips_step")
lpips_ways = pytest.importorskip("tests.measure.lpips_ways")

OURS = ["vgg16gpu bf16", "vgg16gpu fp16", "vgg16gpu fp32"]
TORCHS = ["torch as it comes (TF32)", "torch autocast bf16", "torch strict float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "narrow.onnx"
    make_vgg(path, variant="vgg16", size=32, width=4, hidden=32, classes=20)
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.0, "ROUNDS": 2, "WARM": 0.0}.items():
        monkeypatch.setattr(lpips_step, name, value)


def measured(model: Path, output: Path, *options: str) -> tuple[int, Any]:
    words = [str(model), "--device", "cpu", "--case", "1x16", "--output", str(output), *options]
    return lpips_step.main(words), json.loads(output.read_text())


def test_every_way_computes_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch.compile, which takes minutes, returns here what it is given."""
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda loss: compiled.append(loss) or loss)
    output = tmp_path / "record.json"
    code, content = measured(model, output, "--case", "1x16,2x16")
    assert code == 0
    assert len(compiled) == 2 * 4
    steps = [(step["count"], step["by"], step["order"], step["form"]) for step in content["lpips"]]
    orders = ["NCHW", "channels_last"]
    assert steps == [
        *((count, by, "", "eager") for count in (1, 2) for by in OURS),
        *((count, by, order, "eager") for count in (1, 2) for by in TORCHS for order in orders),
        *((count, by, order, "compiled") for order in orders[::-1] for count in (1, 2) for by in TORCHS[:2]),
    ]
    bound = dict.fromkeys([*OURS, *TORCHS], 1e-3) | {"torch autocast bf16": 0.6}
    for step in content["lpips"]:
        assert step["median_ms"] >= step["best_ms"] > 0
        assert step["distance"] < bound[step["by"]]
    assert max(step["distance"] for step in content["lpips"]) > 1e-3  # autocast does something
    assert content["left_out"] == []
    assert content["environment"]["device"]["kind"] == "cpu"
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1::7]] == ["1x16x16", "2x16x16"]
    assert len(printed) == 1 + 2 * 7
    assert says(output).startswith("x2 vgg16gpu bf16 ")
    assert "failures" not in says(output)


def test_the_loss_is_that_of_both(model: Path) -> None:
    """The value, which is not recorded, and the gradient of ours by torch's way."""
    case = lpips_ways.case_of(lpips_step.Model(model), "cpu", 2, 24)
    found = {}
    for way in (*lpips_ways.ours(), *lpips_ways.torchs()):
        with way.open(case) as calls:
            found[way.by, way.order] = calls["eager"]()()
    value, gradient = found["torch strict float32", "NCHW"]
    assert value > 0
    for other, slope in (found["vgg16gpu fp32", ""], found["torch strict float32", "channels_last"]):
        torch.testing.assert_close(other.detach(), value.detach(), rtol=1e-5, atol=0)
        assert lpips_step._distance(slope, gradient) < 1e-3
    assert lpips_step._distance(1.25 * gradient, gradient) == pytest.approx(0.25)


def test_what_fails_and_what_is_far_off_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def wrong(_: Any) -> Iterator[Any]:
        def no_graph() -> Any:
            raise MemoryError("no room")

        yield {"eager": lambda: lambda: (None, torch.ones(1, 3, 16, 16)), "CUDA graph": no_graph}
        raise ValueError("checked")

    monkeypatch.setattr(lpips_ways, "ours", lambda: [lpips_ways.Way("nothing", "", 0.1, wrong)])
    output = tmp_path / "record.json"
    code, content = measured(model, output, "--ways", "ours,torch")
    assert code == 1
    far, failed, closed, *others = content["lpips"]
    assert far["is_far"]
    assert (failed["form"], failed["error"]) == ("CUDA graph", "MemoryError: no room")
    assert (closed["form"], closed["error"]) == ("", "ValueError: checked")
    assert len(others) == 6
    printed = capsys.readouterr().out
    assert "1x16, nothing, CUDA graph: MemoryError: no room" in printed
    assert "1x16, nothing, eager: " in printed
    assert says(output).endswith(" ms, 3 failures")


def test_without_a_reference_times_are_left(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: object) -> Any:
        raise RuntimeError("no convolution")

    monkeypatch.setattr(lpips_ways, "exact_gradient", failing)
    code, content = measured(model, tmp_path / "record.json", "--ways", "ours")
    assert code == 1
    reference, *steps = content["lpips"]
    assert reference["error"] == "RuntimeError: no convolution"
    assert [("median_ms" in step, "distance" in step) for step in steps] == [(True, False)] * 3
    assert "1x16, reference: RuntimeError: no convolution" in capsys.readouterr().out


def test_what_a_budget_leaves_out_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, content = measured(model, tmp_path / "record.json", "--budget", "0", "--ways", "ours")
    assert (code, content["lpips"]) == (0, [])
    assert content["left_out"] == [f"1x16, {by}" for by in OURS]
    assert "not begun within the budget: 1x16, vgg16gpu bf16; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--case", "1x16,2y16"), "'1x16,2y16': give pictures x pixels a side"),
        (("--case", "16"), "'16': give pictures x pixels a side"),
        (("--ways", "ours,jax"), "jax: not known; accepted: ours, torch, compile"),
    ],
)
def test_what_is_not_known_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, str], said: str
) -> None:
    with pytest.raises(SystemExit):
        measured(model, tmp_path / "record.json", *options)
    assert said in capsys.readouterr().err


def test_on_a_card_graphs_and_memory_are_measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU by another name is the card; every way takes a megabyte, and it is back when the way is gone."""
    taken = [7 << 20]
    captured: list[Callable[[], Any]] = []

    def capture(call: Any) -> Any:
        captured.append(call)
        taken[0] += 1 << 20
        return call

    def give_back() -> None:
        taken[0] = 7 << 20

    monkeypatch.setattr(lpips_ways, "captured", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 * (1 << 20) - taken[0], 100 * (1 << 20)))
    case = lpips_ways.case_of(lpips_step.Model(model), "cpu:0", 1, 16)
    monkeypatch.setattr(torch, "compile", lambda loss: loss)
    exact = lpips_ways.exact_gradient(case)
    for way, names in (
        (lpips_ways.ours()[0], ["eager", "CUDA graph"]),
        (lpips_ways.torchs()[0], ["eager", "CUDA graph"]),
        (lpips_ways.compiled("NCHW")[1], ["compiled", "compiled, graph"]),
    ):
        give_back()
        steps = lpips_step._measured(case, way, exact)
        assert [step["form"] for step in steps] == names
        assert [step["memory_nbytes"] for step in steps] == [0, 1 << 20]
    assert len(captured) == 3
