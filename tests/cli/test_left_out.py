"""`calibrate` and `testbench` go on without inputs that cannot be read: told, counted, exit code 1."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from vgg16gpu.cli import cli
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import heldout

COUNT = 4
BROKEN = 2


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, a folder of pictures, the same with a broken one between, the same as labelled folders."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(digits_model(), "net.onnx")
    images, _, labels = heldout()
    for folder in ("good", "bad"):
        Path(folder).mkdir()
        for number in range(COUNT):
            Image.fromarray(images[number, :, :, 0]).save(f"{folder}/{number}.png")
    Path(f"bad/{BROKEN}x.png").write_bytes(b"\x89PNG\r\n\x1a\n cut short")
    for number in range(COUNT):
        Path(f"labelled/{labels[number]}").mkdir(parents=True, exist_ok=True)
        shutil.copy(f"bad/{number}.png", f"labelled/{labels[number]}/{number}.png")
    shutil.copy(f"bad/{BROKEN}x.png", f"labelled/{labels[0]}/x.png")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--device", "cpu"])


def told(result: Result) -> None:
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stderr.splitlines() if "left out" in line]
    assert line.startswith("vgg16gpu: left out: '")
    assert "is not a readable image" in line


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("devices", [(), ("--devices", "cpu:2")])
def test_calibrate(devices: tuple[str, ...]) -> None:
    words = ["--device", "cpu"] if not devices else list(devices)

    def calibrate(folder: str) -> tuple[Result, dict[str, object]]:
        done = CliRunner().invoke(cli, ["calibrate", "net.onnx", "--images", folder, "--json", *words])
        return done, json.loads(done.stdout)

    good, expected = calibrate("good")
    assert good.exit_code == 0
    scales = json.loads(Path("net.onnx.int8.json").read_text())
    bad, found = calibrate("bad")
    told(bad)
    assert json.loads(Path("net.onnx.int8.json").read_text()) == scales
    assert found["images"] == expected["images"] == COUNT
    assert expected["left_out"] == []
    if devices:
        shown = CliRunner().invoke(cli, ["calibrate", "net.onnx", "--images", "good", *words]).stdout
        assert shown.count("  cpu: as asked: ") == 2
    assert len(found["left_out"]) == 1  # type: ignore[arg-type]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", [("calibrate", "net.onnx", "--images"), ("testbench", "net.onnx", "--inputs")])
def test_without_any_that_can_be_read_nothing_is_done(command: tuple[str, ...]) -> None:
    for path in Path("bad").iterdir():
        path.write_bytes(b"\xff\xd8\xff broken")
    result = run(*command, "bad")
    assert result.exit_code == 2
    assert f"({COUNT} other inputs cannot be read either)" in result.stderr
    assert not Path("net.onnx.int8.json").exists()


@pytest.mark.usefixtures("place")
def test_a_member_of_an_archive() -> None:
    images = heldout()[0]
    np.savez("a.npz", a=images[0], c=images[1:3])
    with zipfile.ZipFile("a.npz", "a") as archive:
        archive.writestr("b.npy", b"none")
    result = run("testbench", "net.onnx", "--inputs", "a.npz", "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert [entry["name"] for entry in found["inputs"]] == ["a.npz[a]", "a.npz[c][0]", "a.npz[c][1]"]
    assert len(found["left_out"]) == 1


@pytest.mark.usefixtures("place")
def test_many_are_counted() -> None:
    for number in range(30):
        shutil.copy(f"bad/{BROKEN}x.png", f"bad/x{number}.png")
    result = run("calibrate", "net.onnx", "--images", "bad")
    assert result.exit_code == 1
    assert result.stderr.count("left out: '") == 20
    assert "11 other inputs are left out, too; --json names them all" in result.stderr


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("kind", "breaks"), [("csv", "before"), ("npy", "after")])
def test_references(kind: str, breaks: str) -> None:
    """By name and by place: a picture that is broken by now has a row there; one that was then has none."""
    output = f"references.{kind}"
    scores = ["--scores"] if kind == "csv" else []
    folder = "good" if breaks == "after" else "bad"
    assert run("infer", "--model", "net.onnx", folder, "--output", output, *scores).exit_code == (breaks == "before")
    if breaks == "after":
        Path("good/3.png").write_bytes(b"\xff\xd8\xff broken")
    result = run("testbench", "net.onnx", "--inputs", folder, "--references", output, "--json")
    found = json.loads(result.stdout)
    assert found["passed"], result.output
    assert len(found["inputs"]) == COUNT - (breaks == "after")
    assert max(entry["error"] for entry in found["inputs"]) < 1e-4
    if breaks == "after":
        told(result)
    else:  # it has no answer there, and nobody reads it
        assert result.exit_code == 0
        assert found["left_out"] == []
