"""The programs of testbench/ that measure: one journey each, and how they refuse what does not go together."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from PIL import Image

from testbench.pipeline.__main__ import pipeline_command
from testbench.server.__main__ import server_command
from tests.serving.running import require_extra, serving
from tests.support.small_photos import small_photos
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections.pipeline import pipelines

COUNT = 12


def run(command, *words):
    return CliRunner().invoke(command, [*map(str, words)], prog_name="measure")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return small_photos(tmp_path_factory.mktemp("pipeline") / "pictures", COUNT)


@pytest.mark.slow(reason="of a measure that authors run")
def test_a_folder_to_rows_and_each_stage_alone(pictures, tmp_path):
    path = tmp_path / "pipeline-made.json"
    words = ("digits", "--device", "cpu", "--pictures", pictures, "--repeats", 1, "--seconds", 0.01, "--batch", 4)
    result = run(pipeline_command, *words, "--against", "torch", "--memory", "3", "--output", path)
    assert result.exit_code == 0, result.stderr
    content = json.loads(path.read_text())
    assert content["pipeline"]["pictures"]["count"] == COUNT
    assert [(each["batch"], each["precision"]) for each in content["runs"]] == [(4, "fp32")]
    assert [each["pictures"] for each in content["memory"]] == [3]
    assert content["failures"] == []
    assert "decoding, without a lock" in result.stdout
    results = find_results([tmp_path])
    assert [record.kind for record in results.found] == [Kind.PIPELINE]
    assert f"{COUNT} pictures" in pipelines(results)


@pytest.mark.slow(reason="of a measure that authors run; test_several.py has arrays in memory")
def test_a_folder_on_one_device_and_on_two(pictures):
    words = ("digits", "--devices", "cpu:2", "--pictures", pictures, "--repeats", 1, "--seconds", 0.05, "--json")
    result = run(pipeline_command, *words)
    assert result.exit_code == 0, result.output
    runs = json.loads(result.stdout)["pictures"]
    assert [each["devices"] for each in runs] == [1, 2]
    assert not any(each["failures"] for each in runs)


def test_what_a_folder_cannot_be_measured_with():
    for words, said in {
        "--pictures nowhere": "does not exist; name a folder of pictures",
        "--pictures . --against jax": "jax",
        "--pictures . --devices cpu:2 --memory 3": "it goes without --against, --memory, --decode",
    }.items():
        result = run(pipeline_command, "digits", *words.split())
        assert (result.exit_code, result.stdout) == (2, ""), words
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.fixture
def server(tmp_path_factory):
    require_extra()
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("secret\n")
    with serving("--batch", "4", "--workers", "1", "--token-file", str(tokens)) as running:
        yield f"http://127.0.0.1:{running.port}", tokens


@pytest.mark.slow(reason="a program of the authors; its parts are tested beside it")
def test_every_form_and_load_of_a_server_and_what_is_refused(server, tmp_path):
    url, tokens = server
    output, plot, pictures = tmp_path / "record.json", tmp_path / "plot.png", tmp_path / "pictures"
    pictures.mkdir()
    Image.new("L", (40, 40)).save(pictures / "one.png")
    words = (url, "--token-file", tokens, "--seconds", 0.1, "--bodies", "jpeg,fp32", "--pictures", pictures)
    words = (*words, "--clients", 2, "--rates", 20, "--connections", 4, "--processes", 1)
    result = run(server_command, *words, "--output", output, "--plot", plot)
    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text())["loads"]
    assert {(row["form"], row["load"]) for row in rows} == {
        (form, kind) for form in ("jpeg", "fp32") for kind in ("closed", "open")
    }
    assert all(row["errors"] == {} and row["requests"] == row["answers"] for row in rows)
    assert plot.stat().st_size > 10_000
    (tmp_path / "wrong").write_text("wrong")
    for words, said in (
        ((url, "--token-file", tmp_path / "wrong"), "answers 401"),
        ((url, "--against", "fastapi"), "name the --model"),
        (("nothing",), "give http://HOST:PORT"),
        (("http://127.0.0.1:1",), "start one with"),
    ):
        result = run(server_command, *words)
        assert result.exit_code == 2
        assert said in result.stderr
