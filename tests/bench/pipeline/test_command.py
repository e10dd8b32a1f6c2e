"""`bench --pipeline` on the digits model: its record, its screen, the report of it, and what it refuses."""

import json

import pytest
from click.testing import CliRunner

from tests.bench.pipeline.conftest import COUNT, watched, write_rows
from tests.support.small_photos import small_photos
from vgg16gpu.bench.pipeline import whole_runs
from vgg16gpu.cli import cli
from vgg16gpu.cli.common import show
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.kinds import Kind
from vgg16gpu_lab.report.sections.pipeline import pipelines


def bench(*words):
    return CliRunner().invoke(cli, ["bench", "digits", "--device", "cpu", *map(str, words)])


@pytest.fixture(scope="module")
def recorded(pictures, tmp_path_factory):
    """The screen of 80 columns, and the record."""
    path = tmp_path_factory.mktemp("recorded") / "pipeline-made.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "_PIPE_WIDTH", 80)
        effort = ("--repeats", 1, "--seconds", 0.01, "--batch", 4)
        result = bench("--pipeline", pictures, *effort, "--against", "torch", "--memory", "3,30", "--output", path)
    assert result.exit_code == 0, result.stderr
    return result.stdout, path, json.loads(path.read_text())


@pytest.mark.slow(reason="of a measure that authors run; test_rows_that_differ_end_with_1 runs the command")
def test_the_record_has_what_the_former_one_has(recorded):
    from pathlib import Path

    content = recorded[2]
    former = json.loads((Path(__file__).resolve().parents[3] / "testbench/results/pipeline-cpu.json").read_text())
    assert set(former) <= set(content)
    assert set(former["methods"]) <= set(content["methods"])
    assert set(former["runs"][0]) <= set(content["runs"][0])
    assert set(former["verdicts"][0]) <= set(content["verdicts"][0])
    assert set(former["verdicts"][0]["ceiling"]) <= set(content["verdicts"][0]["ceiling"])
    assert {key for stage in former["stages"] for key in stage} <= {key for each in content["stages"] for key in each}
    names = {stage["stage"] for stage in content["stages"]}
    assert {stage["stage"] for stage in former["stages"]} | {"decoding, without a lock"} == names


def test_what_was_found(recorded, pictures):
    content = recorded[2]
    assert content["pipeline"]["pictures"]["count"] == COUNT
    assert content["pipeline"]["pictures"]["nbytes"] == sum(path.stat().st_size for path in pictures.iterdir())
    (run,) = content["runs"]
    assert (run["batch"], run["precision"], len(run["whole_samples_s"])) == (4, "fp32", 1)
    assert 4 <= run["rows"]["first"] <= COUNT
    assert run["stages"]["limit"]
    assert all(20e6 < peak < 1e9 for peak in run["peak_memory_nbytes"])
    assert [each["pictures"] for each in content["memory"]] == [3, 30]
    assert content["memory_is_flat"] in (True, False)
    assert [each["name"] for each in content["absent"]] == ["torch, DataLoader", "torch, nvJPEG"]
    (verdict,) = content["verdicts"]
    assert verdict["ceiling"]["stages"] == ["decoding, resized", "computing"]
    if run["rows_per_s"]:  # on a machine that is busy with others all rows may be seen at once
        assert verdict["share"] == pytest.approx(run["rows_per_s"] / verdict["ceiling"]["pictures_per_s"])
        assert verdict["cpu"] > 0
    assert content["failures"] == []


def test_the_screen_has_80_columns(recorded):
    lines = recorded[0].splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(recorded[0].split())
    for part in (
        "decoding, without a lock",
        "vgg16gpu infer",
        "Absent: torch, DataLoader",
        "at most",
        "verdicts: share",
    ):
        assert part in text, part


def test_a_report_shows_the_record(recorded):
    results = find_results([recorded[1].parent])
    assert [record.kind for record in results.found] == [Kind.PIPELINE]
    shown = pipelines(results)
    for part in ("digits.onnx", "computing, fp32", "torch, nvJPEG", "decoding, without a lock", f"{COUNT} pictures"):
        assert part in shown, part


def test_rows_that_differ_end_with_1(pictures, tmp_path, monkeypatch):
    number = iter(range(9))

    def instead(_, output, __):
        write_rows(output, [next(number)] * COUNT)
        return watched()

    monkeypatch.setattr(whole_runs, "watch", instead)
    path = tmp_path / "pipeline.json"
    result = bench("--pipeline", pictures, "--repeats", 2, "--seconds", 0.01, "--batch", 4, "--output", path, "--json")
    assert result.exit_code == 1
    assert "vgg16gpu: fp32, decoded by the CPU: the rows of whole runs differ: 2 files of 2 runs" in result.stderr
    assert json.loads(result.stdout)["failures"] == json.loads(path.read_text())["failures"] != []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--iterations", "1,5"], "--pipeline measures a folder to its rows: it goes without --iterations"),
        (["--compile", "--cold-start"], "it goes without --compile, --cold-start"),
        (["--compare", "old.json"], "it goes without --compare"),
        (["--plot", "a.png"], "it goes without --plot"),
        (["--sustained", "0"], "it goes without --sustained"),
        (["--outputs", "y"], "it goes without --outputs"),
        (["--batch", "1,8"], "--pipeline runs one batch size, and --batch has 2; give one"),
        (["--against", "jax,torch"], "--against jax: --pipeline is compared with torch alone"),
    ],
)
def test_options_that_do_not_go_together(words, said, tmp_path):
    result = bench("--pipeline", tmp_path, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("--memory", "1000"), ("--decode", "gpu")])
def test_what_is_of_a_folder_alone_is_refused(words):
    result = bench(*words)
    assert result.exit_code == 2
    assert f"{words[0]}: of --pipeline DIR" in result.stderr


@pytest.mark.parametrize("decode", ["gpu", "cpu,gpu"])
def test_where_no_gpu_decodes_it_says_so_before_it_measures(pictures, decode):
    result = bench("--pipeline", pictures, "--decode", decode, "--device", "cpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("vgg16gpu: decode gpu: ")
    assert result.stderr.count("\n") == 1


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("nowhere", "' does not exist; name a folder of pictures"),
        ("file", "' is no folder; name a folder of pictures"),
        ("empty", "' has no images"),
    ):
        result = bench("--pipeline", tmp_path / name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_folder_whose_pictures_are_all_broken(tmp_path):
    (tmp_path / "a.jpg").write_text("no picture")
    result = bench("--pipeline", tmp_path)
    assert result.exit_code == 2
    assert "--pipeline: infer ended with 2: '" in result.stderr


@pytest.mark.slow(reason="test_a_folder_whose_pictures_are_all_broken stands for it")
def test_a_broken_picture_costs_the_exit_code(tmp_path):
    folder = small_photos(tmp_path / "pictures", 9)
    (folder / "05x.jpg").write_text("no picture")
    result = bench("--pipeline", folder, "--repeats", 1, "--seconds", 0.01, "--batch", 2, "--json")
    assert result.exit_code == 1, result.stderr
    assert "fp32, decoded by the CPU: 1 of 10 have no answer, the first: '" in result.stderr
