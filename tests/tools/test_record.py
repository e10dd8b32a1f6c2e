"""tools/record.py: each command that it would run is one of today's, some of it runs here, and what is told of it."""

import argparse
import contextlib
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import record
from recording import machine, recipes
from recording.says import says

from vgg16gpu.cli import cli

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "testbench" / "results"
PARTS = {
    "suite": ["suite"],
    "suite-alone": ["suite-alone"],
    "bench": ["bench"],
    "sweep int8": ["sweep", "int8", "224", "244", "512"],
    "pipeline": ["pipeline"],
    "devices": ["devices"],
    "lab a": ["lab", "a"],
    "lab b": ["lab", "b"],
    "lab c": ["lab", "c"],
    "lab claims": ["lab", "claims"],
    "promises": ["promises", "--photographs", "photographs"],
    "decode": ["decode", "--photographs", "photographs"],
    "server": ["server"],
    "server-faults": ["server-faults"],
    "server-soak": ["server-soak"],
    "perceptual": ["perceptual"],
    "lpips": ["lpips"],
    "public-api": ["public-api"],
    "first-command": ["first-command", "--packages", "packages"],
    "compare": ["compare", str(ROOT)],
    "compare fp32": ["compare", str(ROOT), "--precision", "fp32", "--batch", "32,128", "--rounds", "5"],
    "starts": ["starts", str(ROOT)],
}


@pytest.fixture
def options(tmp_path):
    return ["--output", str(tmp_path / "records"), "--work", str(tmp_path / "work")]


@pytest.fixture
def h200(monkeypatch):
    monkeypatch.setattr(machine, "find_card", lambda: machine.Card("h200", "sm_90"))


# ---- Each command is one of today's


def shown(capsys, arguments):
    """(expected seconds, the words of the command) of each line of a dry run, its folder and environment left away."""
    assert record.main([*arguments, "--dry-run"]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    found = []
    for line in lines:
        seconds, text = re.fullmatch(r" *(\d+) s  (.+)", line).groups()
        words = shlex.split(text.rpartition(" && ")[2])
        words = words[: words.index(">")] if ">" in words else words
        if words[0] == "env":
            words = words[next(i for i, word in enumerate(words) if word in ("make",) or word.endswith("/python")) :]
        found.append((float(seconds), words))
    assert total.startswith(f"{sum(seconds for seconds, _ in found):6.0f} s in all")
    return found


def parse_click(words, monkeypatch):
    """Raises click.UsageError for what the command line does not know; files need not be there."""
    command, context = cli, click.Context(cli, info_name="vgg16gpu")
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(context, name)
        if command is None:
            raise click.UsageError(f"no command {name}")
        context = click.Context(command, parent=context, info_name=name)
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    if rest:
        raise click.UsageError(f"left: {rest}")
    with monkeypatch.context() as patch:
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                patch.setattr(parameter, "type", click.Path(path_type=Path))
            parameter.handle_parse_result(context, values, [])


def parse_argparse(main, words, monkeypatch):
    """Runs a tool's `main` up to where its parser has read `words`; SystemExit for what it does not know."""

    class ParsedError(Exception):
        pass

    parse = argparse.ArgumentParser.parse_known_args

    def and_stop(self, args=None, namespace=None):
        raise ParsedError(parse(self, args, namespace))

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", and_stop)
        with pytest.raises(ParsedError) as stopped:
            main(list(words))
    _, unknown = stopped.value.args[0]
    if unknown:
        raise SystemExit(f"unknown: {unknown}")


def check(words, monkeypatch):
    match words:
        case ["python", "-m", "vgg16gpu", *rest]:
            parse_click(rest, monkeypatch)
        case ["python", "-m", "pytest", *rest]:
            places = [word for word in rest if word.startswith("tests/")]
            assert all((ROOT / place).is_dir() for place in places)
            known = subprocess.check_output([sys.executable, "-m", "pytest", "--help"], cwd=ROOT, text=True)
            assert all(word in known for word in rest if word.startswith("--"))
        case [
            "python",
            "-m",
            (
                "tests.measure.gradient_errors"
                | "tests.measure.layer_errors"
                | "tests.measure.lpips_step"
                | "tests.measure.optimise"
                | "tests.measure.perceptual"
                | "tests.measure.public_api"
            ) as module,
            *rest,
        ] if find_spec("torch") is None:
            text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
            assert all(f'add_argument("{word}"' in text for word in rest if word.startswith("--"))
        case ["python", "-m", module, *rest]:
            parse_argparse(importlib.import_module(module).main, rest, monkeypatch)
        case ["python", script, *rest]:
            assert (ROOT / script).is_file()
            module = ".".join(Path(script).relative_to("tools").with_suffix("").parts)
            parse_argparse(importlib.import_module(module).main, rest, monkeypatch)
        case ["make", target, *rest]:
            environ = {**os.environ, "MAKEFLAGS": "", "VENV": ""}
            done = subprocess.run(
                ["make", "-n", target, *rest], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
            )
            assert all(word.partition("=")[2] in done.stdout for word in rest if word.startswith("PYTEST_ARGS="))
        case [python, "-c", code] if python.endswith("/.venv/bin/python"):
            with contextlib.redirect_stdout(None):
                exec(compile(code, "first command", "exec"), {"print": json.dumps})
        case ["git", "clone", *_]:
            assert shutil.which("git")
        case _:
            pytest.fail(f"nobody checks {words}")


@pytest.mark.parametrize("device", [["--device", "cuda"], ["--device", "cpu", "--quick"]], ids=["cuda", "quick"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("h200")
def test_every_command_is_one_of_todays(part, device, options, capsys, monkeypatch):
    found = shown(capsys, [*PARTS[part], *options, *device])
    assert found
    assert sum(seconds for seconds, _ in found) < record.LIMIT
    seen = set()
    for _, words in found:
        if (key := re.sub(r"\d+-\d-|profile [\w-]+|profile-[\w-]+", "", shlex.join(words))) not in seen:
            seen.add(key)  # turns and profiles differ by a name alone
            check(words, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        ["benchmark"],
        ["lab", "play"],
        ["bench", "digits", "--peers", "torch"],
        ["bench", "digits", "--against", "caffe"],
        ["bench", "digits", "--seconds"],
        ["lab", "run", "S1", "--size", "x"],
        ["calibrate", "digits"],
        ["lab", "profile", "one", "another"],
    ],
)
def test_a_renamed_command_would_be_seen(words, monkeypatch):
    with pytest.raises(click.UsageError):
        parse_click(words, monkeypatch)


def test_a_renamed_option_of_a_tool_would_be_seen(monkeypatch):
    from tests.measure import host_path

    parse_argparse(host_path.main, ["a.onnx", "--batch", "8"], monkeypatch)
    with pytest.raises(SystemExit):
        parse_argparse(host_path.main, ["a.onnx", "--batches", "8"], monkeypatch)
    with pytest.raises(SystemExit):
        parse_argparse(host_path.main, [], monkeypatch)


@pytest.mark.usefixtures("h200")
def test_records_are_called_as_those_that_there_are(options, capsys):
    names = set()
    for part in PARTS.values():
        for _, words in shown(capsys, [*part, *options]):
            names |= {Path(word).name for word in words if word.endswith(".json")}
    assert {
        *("bench-h200.json", "tests-h200.json", "ladder-h200.json", "ladder-h200-244.json", "stress-h200.json"),
        *("testbench-h200.json", "testbench-h200-int8.json", "testbench-digits-h200-bf16.json"),
        *("conformance-h200.json", "host-path-h200.json", "layer-errors-h200-b1.json"),
    } <= names
    assert {f"S{number}" for number in range(1, 6)} == {*recipes.BESIDE_CUDNN, *recipes.EXPERIMENTS, recipes.S5}
    assert recipes.lab_c(settings(Path("/records"))).steps[0].stdout == Path("/records/lab/usage-sm_90.json")


def settings(output, **changed):
    return recipes.Settings("cuda", machine.Card("h200", "sm_90"), output, Path("/work"), **changed)


# ---- A little of it really runs


def test_a_quick_benchmark_on_the_cpu(options, tmp_path, capsys):
    archive = tmp_path / "records.tgz"
    assert record.main(["bench", "--device", "cpu", "--quick", *options, "--archive", str(archive)]) == 0
    content = json.loads((tmp_path / "records" / "bench-cpu.json").read_text())
    assert content["device"]["kind"] == "cpu"
    assert [batch["batch"] for batch in content["batches"]] == [1, 2]
    printed = capsys.readouterr().out
    assert re.search(r"^bench +403 +[\d.]+  done +bench-cpu\.json: fp32 x2 [\d.]+ ms$", printed, re.MULTILINE)
    with tarfile.open(archive) as packed:
        assert "./bench-cpu.json" in packed.getnames()
    assert sorted(path.name for path in (tmp_path / "work" / "pictures").iterdir())[:2] == ["00.png", "01.png"]


@pytest.mark.slow(reason="the lab's own tests run it, and the dry run holds its commands")
def test_an_experiment_on_the_cpu(options, tmp_path, capsys):
    assert record.main(["lab", "b", "--device", "cpu", "--quick", *options, "--only", "S4"]) == 0
    assert {"S4.json", "S4.csv"} <= {path.name for path in (tmp_path / "records" / "lab").iterdir()}
    assert re.search(r"S4\.json: \d+ right", capsys.readouterr().out)


def test_claims_are_judged_where_the_records_lie(options, tmp_path, capsys, monkeypatch):
    """At home, where no card names the ladder."""
    monkeypatch.setattr(machine, "find_card", lambda: None)
    lab = tmp_path / "records" / "lab"
    shutil.copytree(RESULTS / "lab", lab, ignore=lambda _, names: [name for name in names if name[0] != "S"])
    for name in ("ladder-h200.json", "ladder-h200-244.json"):
        shutil.copy(RESULTS / name, lab.parent)
    assert record.main(["lab", "claims", *options]) == 0
    assert {"claims.json", "claims.csv"} <= {path.name for path in lab.iterdir()}
    judged = json.loads((lab / "claims.json").read_text())
    assert [each["file"] for each in judged["records"]][-1] == "ladder-h200.json"
    assert "claims.json: theirs " in capsys.readouterr().out


@pytest.mark.slow(reason="its figures are tested on turns that are made up, its commands by the dry run")
def test_a_checkout_beside_itself(options, tmp_path, capsys):
    arguments = ["compare", str(ROOT), "--device", "cpu", "--quick", "--rounds", "1", "--within", "10000", *options]
    assert record.main(arguments) == 0
    content = json.loads((tmp_path / "records" / "compare-cpu.json").read_text())
    assert content["checkouts"]["this"] == content["checkouts"]["other"]
    assert {figure["verdict"] for figure in content["figures"]} == {"same"}
    assert {figure["regime"] for figure in content["figures"]} == {"cool", "start"}
    assert "to the answer" in capsys.readouterr().out


# ---- What is told


def test_without_a_gpu_nothing_is_recorded(options, capsys, monkeypatch):
    monkeypatch.setattr(machine, "find_card", lambda: None)
    assert record.main(["suite", *options]) == 2
    assert "no GPU: nvidia-smi names none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["bench", "--only", "bench", "sing"],
            "there is no step sing; there are: pictures, model-224, scales-224, bench",
        ),
        (["compare", "/nowhere"], "'/nowhere' is no checkout"),
        (["first-command"], "--packages DIR"),
    ],
)
@pytest.mark.usefixtures("h200")
def test_what_cannot_be_done_is_said(arguments, said, options, capsys):
    assert record.main([*arguments, *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("printed", "card"),
    [
        ("NVIDIA H200, 9.0", ("h200", "sm_90")),
        ("NVIDIA H100 80GB HBM3, 9.0", ("h100", "sm_90")),
        ("NVIDIA A100-SXM4-40GB, 8.0\nNVIDIA T4, 7.5", ("a100-sxm4", "sm_80")),
        ("NVIDIA GeForce RTX 4090, 8.9", ("rtx-4090", "sm_89")),
        ("No devices were found", None),
        ("", None),
    ],
)
def test_the_card_by_its_short_name(printed, card, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{printed}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = machine.find_card()
    assert (found and (found.name, found.arch)) == card


def test_without_a_driver_there_is_no_card(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.find_card() is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bench-h200.json", r"fp32 x128 16\.31 / \d\S+ ms, fp16 x128 4\.992 / 6\.746 ms, .*int8 x128 .* ms"),
        ("pipeline-cpu.json", r"fp32 x8 [\d,]+ pictures/s, \d+% of the ceiling"),
        ("tests-h200.json", r"\d+ passed, \d+ skipped"),
        ("sanitize-memcheck-h200.json", r"\d+ passed"),
        ("ladder-h200.json", r"\d+ of \d+ rungs, A \d+ ms to [P-Z] 0\.\d+ ms"),
        ("stress-h200.json", "passed"),
        ("host-path-h200.json", ".+"),
        ("first-command-h100.json", r"make demo [\d.]+ s, pycuda 21 s, make test 255 s"),
        ("server-h100.json", r"vgg16gpu, jpeg [\d,]+/s; .*; fastapi, uint8 [\d,]+/s.*"),
        ("server-h100-other.json", r"vgg16gpu, jpeg [\d,]+/s; .*"),
        ("server-faults-h100.json", "all promises hold"),
        ("server-soak-h100.json", r"overload: process \d+ holds more: .*"),
        ("server-cpu.json", r"vgg16gpu, jpeg [\d,]+/s; vgg16gpu, uint8 [\d,]+/s"),
        ("tests-h100.json", r"\d+ passed, \d+ skipped|\d+ skipped, \d+ passed"),
        ("gradient-errors-h100.json", r"fp32, vgg16gpu 0\.000\d+, torch 0\.00\d+; fp16, .*"),
        ("devices-h100.json", r"fp16 x2 [\d,]+/s, 2\.0\d+ of one; int8 x2 .*"),
        ("jobs-h100.json", r"2 devices: Ray 13\d\.\d% of the pool's rate"),
        ("lab/S2.json", r"\d+ right, \d+ invalid launch"),
        ("lab/claims.json", r"theirs \d+ holds, \d+ does not, \d+ cannot tell; ours .*"),
        ("lab/usage-sm_90.json", r"\d+ kernels"),
        ("lab/S1-roofline.png", r"\d+ KiB"),
    ],
)
def test_what_a_record_says(name, said):
    found = says(RESULTS / name)
    assert re.fullmatch(said, found), found


def test_a_broken_record_says_so(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"tests": 7}')
    assert says(path).startswith("cannot be read: AttributeError")
    path.write_text("{")
    assert says(path).startswith("cannot be read: JSONDecodeError")
