"""`bench --server` on a server of the digits, and how it refuses what does not go with it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from PIL import Image

from tests.serving.running import require_extra, serving
from vgg16gpu.bench.serving.plot import draw
from vgg16gpu.cli import cli


def bench(*words):
    return CliRunner().invoke(cli, ["bench", *map(str, words)])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    require_extra()
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("secret\n")
    with serving("--batch", "4", "--workers", "1", "--token-file", str(tokens)) as running:
        yield running, f"http://127.0.0.1:{running.port}", tokens


def test_every_form_and_load_is_measured_written_drawn_and_shown(server, tmp_path):
    _, url, tokens = server
    output, plot = tmp_path / "record.json", tmp_path / "plot.png"
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("L", (40, 40)).save(pictures / "one.png")
    words = ("--server", url, "--token-file", tokens, "--seconds", 0.3, "--bodies", "jpeg,uint8,fp32")
    words = (*words, "--pictures", pictures, "--clients", 2, "--rates", 20, "--connections", 4, "--processes", 1)
    result = bench(*words, "--output", output, "--plot", plot)
    assert result.exit_code == 0, result.output
    record = json.loads(output.read_text())
    loads = {(row["form"], row["load"]): row for row in record["loads"]}
    assert loads.keys() == {(form, kind) for form in ("jpeg", "uint8", "fp32") for kind in ("closed", "open")}
    for row in record["loads"]:
        assert row["requests"] == row["answers"] + sum(row["errors"].values())
        assert row["errors"] == {}
        assert row["mean_batch"] >= 1
        assert row["latency_s"]["p50"] <= row["latency_s"]["p99.9"]
    assert loads["fp32", "closed"]["body_nbytes"] > 4096 > loads["uint8", "closed"]["body_nbytes"] > 1024
    assert record["environment"]["cpu"]
    assert plot.stat().st_size > 10_000
    figure = draw(record)
    assert [len(axes.get_lines()) for axes in figure.axes] == [8, 8, 8]
    for word in ("vgg16gpu", "uint8", "2 clients", "20/s", "p99.9"):
        assert word in result.stdout


def test_rates_are_shares_of_the_best_closed_loop_and_a_wrong_token_is_one_line(server, tmp_path):
    _, url, tokens = server
    words = ("--server", url, "--bodies", "uint8", "--clients", "1,2", "--seconds", 0.3, "--json", "--batch", 2)
    words = (*words, "--connections", 4)
    result = bench(*words, "--token-file", tokens)
    rows = json.loads(result.stdout)["loads"]
    best = max(row["answers_per_s"] for row in rows[:2])
    assert [row["amount"] for row in rows[2:]] == [max(1, round(share * best)) for share in (0.25, 0.5, 0.8)]
    assert rows[0]["images_per_s"] == pytest.approx(2 * rows[0]["answers_per_s"])
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    result = bench(*words, "--token-file", wrong)
    assert (result.exit_code, "answers 401" in result.stderr) == (2, True)


def test_a_peer_that_is_missing_is_absent(server, monkeypatch):
    _, url, tokens = server
    monkeypatch.setattr("vgg16gpu.bench.serving.peer._NEEDS", ("torch", "not_there"))
    words = ("digits", "--server", url, "--token-file", tokens, "--seconds", 0.2, "--rates", 10, "--against", "fastapi")
    result = bench(*words, "--device", "cpu", "--bodies", "uint8,fp32", "--json")
    reasons = {each["form"]: each["reason"] for each in json.loads(result.stdout)["absent"]}
    assert "not_there" in reasons["uint8"]
    assert "takes pictures and pixels" in reasons["fp32"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--clients", 3), "--clients: of --server URL"),
        (("--against", "fastapi"), "--against fastapi: of --server URL"),
        (("--server", "http://x:1", "--cold-start"), "it goes without --cold-start"),
        (("--server", "http://x:1", "--pipeline", "x"), "it goes without --pipeline"),
        (("--server", "http://x:1", "--devices", "cpu:2"), "it goes without --devices"),
        (("--server", "http://x:1", "--batch", "1,2"), "give one"),
        (("--server", "http://x:1", "--against", "torch"), "compared with fastapi alone"),
        (("--server", "http://x:1", "--against", "fastapi"), "name the MODEL"),
        (("--server", "nothing"), "give http://HOST:PORT"),
        (("--server", "http://127.0.0.1:1"), "start one with"),
    ],
)
def test_what_does_not_go_together_is_refused(words, said):
    result = bench(*words)
    assert result.exit_code == 2
    assert said in result.stderr
