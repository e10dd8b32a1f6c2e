"""No command writes over a file that it reads: every output of every command against everything that it may read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.picture_files import pixels
from vgg16gpu.cli import COMMANDS, cli
from vgg16gpu.cli.common.written import WRITTEN, WRITTEN_FOLDERS, WritingCommand
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import heldout

ROOT = Path(__file__).resolve().parents[2]

# Options and arguments that name files, of all commands: what is read, and folders whose files get names on the way.
READS = {
    *("images", "files_from", "model", "models", "named", "labels", "inputs", "references", "compare", "pictures"),
    *("token_file", "tls_cert", "tls_key", "pipeline", "data", "folder", "ladder", "positional", "file"),
}
FOLDERS = {("testbench", "save"), ("lab run", "output"), ("model weights", "output"), ("lab new", "folder")}
NO_FILES = {  # texts that are no names of files
    *("device", "devices", "batch", "batches", "size", "sizes", "outputs", "name", "names", "host", "urls", "column"),
    *("shard", "ray", "precisions", "iterations", "rungs", "against", "memory", "decode", "server", "clients", "rates"),
    *("bodies", "client_cores", "channels", "strides", "blocks", "mean", "std", "host_names"),
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """All of them, by their words."""

    def below(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            for name, each in command.commands.items():
                yield from below(f"{words} {name}", each)
        else:
            yield words, command

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield from below(name, command)


ALL = dict(commands())


def test_each_option_is_known_to_be_read_or_written() -> None:
    """A new option is read, unless it is one of WRITTEN; a command that has one of these looks at its files."""
    for words, command in ALL.items():
        for option in command.params:
            text = getattr(option, "help", "") or ""
            if not isinstance(option.type, click.Path | click.types.StringParamType):
                continue
            if getattr(option, "hidden", False) or option.name in NO_FILES | READS:
                assert not text.startswith(("Write ", "Draw ", "Append ", "Also write")) or words == "cache"
            elif (words, option.name) not in FOLDERS:
                assert option.name in WRITTEN, f"{words}: {option.opts}: read or written?"
                assert isinstance(command, WritingCommand), words


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its scales and weights, pictures, arrays, a list, labels, references, records."""
    place = tmp_path_factory.mktemp("furnished")
    model = place / "m.onnx"
    shutil.copy(digits_model(), model)
    shutil.copy(f"{digits_model()}.int8.json", f"{model}.int8.json")
    onnx.save(onnx.load(model), place / "split.onnx", save_as_external_data=True, location="split.bin")
    (place / "models").mkdir()
    shutil.copy(model, place / "models" / "vgg16.onnx")
    (place / "photos").mkdir()
    images = heldout()[0][:3]
    for number, image in enumerate(images):
        Image.fromarray(image[:, :, 0]).save(place / "photos" / f"{number}.png")
    Image.fromarray(pixels(32, 32)[..., 0]).save(place / "one.png")
    np.save(place / "x.npy", images)
    np.savez(place / "x.npz", images)
    np.savetxt(place / "x.txt", np.zeros(1024))
    (place / "list.csv").write_text("photos/0.png\nphotos/1.png\n")
    (place / "labels.txt").write_text("\n".join("0123456789") + "\n")
    (place / "token").write_text("token\n")
    (place / "bench.json").write_text("{}")
    np.savetxt(place / "references.txt", np.zeros((3, 10)))
    (place / "references.txt.run.json").write_text((ROOT / "testbench" / "results" / "testbench-cpu.json").read_text())
    return place


@pytest.fixture
def place(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, the current folder."""
    shutil.copytree(furnished, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


CPU = ("--model", "m.onnx", "--device", "cpu", "-q")

CASES = [  # the words of a command, an option that writes, what it reads: the output is to be that file
    (("infer", *CPU, "x.npy"), "--output", "x.npy"),
    (("infer", *CPU, "x.npz"), "--output", "x.npz"),
    (("infer", *CPU, "x.txt"), "--output", "x.txt"),
    (("infer", *CPU, "photos", "--files-from", "list.csv"), "--output", "list.csv"),
    (("infer", *CPU, "photos", "--labels", "labels.txt"), "--output", "labels.txt"),
    (("infer", *CPU, "one.png"), "--output", "one.png"),
    (("infer", *CPU, "photos"), "--output", "photos/1.png"),
    (("infer", *CPU, "--files-from", "list.csv"), "--output", "photos/1.png"),
    (("infer", *CPU, "one.png"), "--output", "m.onnx"),
    (("infer", *CPU, "one.png"), "--output", "m.onnx.int8.json"),
    (("infer", "--model", "split.onnx", "one.png"), "--output", "split.bin"),
    (("infer", "one.png"), "--output", "models/vgg16.onnx"),
    (("infer", *CPU, "one.png", "--labels", "labels.txt", "--output", "new.csv"), "new.csv.run.json", "labels.txt"),
    (("testbench", "m.onnx", "--inputs", "x.npy"), "--output", "x.npy"),
    (("testbench", "m.onnx", "--inputs", "photos"), "--output", "photos/2.png"),
    (("testbench", "m.onnx", "--inputs", "x.npy", "--references", "references.txt"), "--output", "references.txt"),
    (
        ("testbench", "m.onnx", "--inputs", "x.npy", "--references", "references.txt"),
        "--output",
        "references.txt.run.json",
    ),
    (("testbench", "m.onnx", "--labels", "labels.txt"), "--output", "labels.txt"),
    (("testbench", "m.onnx"), "--output", "m.onnx"),
    (("testbench",), "--output", "models/vgg16.onnx"),
    (("testbench", "m.onnx", "--inputs", "x.txt"), "--save", "x.txt"),
    (("testbench", "m.onnx", "--images", "photos"), "--output", "photos/0.png"),
    (("bench", "m.onnx"), "--output", "m.onnx"),
    (("bench", "m.onnx"), "--plot", "m.onnx.int8.json"),
    (("bench", "m.onnx", "--compare", "bench.json"), "--output", "bench.json"),
    (("bench",), "--output", "models/vgg16.onnx"),
    (("tune", "m.onnx"), "--output", "m.onnx"),
    (("tune", "--model", "m.onnx"), "--table", "m.onnx.int8.json"),
    (("ladder", "m.onnx", "--inputs", "x.npy"), "--output", "x.npy"),
    (("ladder", "m.onnx", "--inputs", "photos"), "--plot", "photos/0.png"),
    (("ladder", "split.onnx"), "--output", "split.bin"),
    (("report", "--results", "references.txt.run.json"), "--output", "references.txt.run.json"),
    (("lab", "profile", "direct-hwc", "--dir", "photos"), "--output", "photos/0.png"),
    (("lab", "run", "S5", "--model", "m.onnx", "--inputs", "x.npy", "--output", "out"), "out/S5.json", "x.npy"),
    (("lab", "run", "S5", "--model", "m.onnx", "--output", "out"), "out/S5.csv", "m.onnx"),
    (("calibrate", "m.onnx", "--images", "x.npy"), "m.onnx.int8.json", "x.npy"),
    (("calibrate", "m.onnx", "--images", "photos"), "m.onnx.int8.json", "photos/0.png"),
    (("model", "weights", "m.onnx", "--output", "out", "--force"), "out/weights.json", "m.onnx"),
    (
        ("infer", *CPU, "--shard", "0/1", "photos", "--labels", "labels.txt", "--output", "out"),
        "out/_summary.json",
        "labels.txt",
    ),
    (("serve", "m.onnx"), "--access-log", "m.onnx"),
    (("serve", "m.onnx", "--token-file", "token"), "--access-log", "token"),
    (("serve", "m.onnx", "--labels", "labels.txt"), "--access-log", "labels.txt"),
]


@pytest.mark.parametrize("is_hard", [False, True], ids=["a link", "a hard link"])
def test_an_output_is_no_input(place: Path, is_hard: bool) -> None:
    for words, option, read in CASES[is_hard::2]:
        output = (
            Path(option) if not option.startswith("--") else Path("out/input.txt" if option == "--save" else "output")
        )
        if option.startswith("--") and option != "--save":
            output = output.with_suffix(_ending(words[0], option, read))
        output.parent.mkdir(exist_ok=True)
        kept = output.read_bytes() if output.exists() else None
        output.unlink(missing_ok=True)
        if is_hard:
            os.link(read, output)
        else:
            output.symlink_to(Path(read).absolute())
        given = {"--save": ("--save", "out")}.get(option, (option, str(output)) if option.startswith("--") else ())
        refused(place, *words, *given)
        output.unlink()
        if kept is not None:
            output.write_bytes(kept)


def refused(place: Path, *words: str) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2, (words, done.output)
    assert "which this run reads and would replace; name another file" in done.output, (words, done.output)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before, words


def _ending(command: str, option: str, read: str) -> str:
    """What the option takes."""
    if option == "--plot":
        return ".png"
    return (
        ".csv" if command == "infer" and Path(read).suffix not in (".npy", ".npz", ".txt", ".csv", ".json") else ".json"
    )


def test_each_command_that_writes_has_a_case() -> None:
    covered = {" ".join(words[: 2 if words[0] in ("lab", "model") else 1]) for words, _, _ in CASES}
    writing = {words for words, command in ALL.items() if isinstance(command, WritingCommand)}
    # What makes models and samples reads nothing.
    assert writing - covered == {"model make", "model fetch", "model sample"}


@pytest.mark.usefixtures("place")
def test_a_command_may_be_repeated() -> None:
    """An output that is there, in a folder of inputs, is none of these."""
    for output in ("photos/rows.csv", "photos/rows.npy"):
        for _ in range(2):
            done = CliRunner().invoke(cli, ["infer", *CPU, "photos", "--output", output])
            assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("place")
def test_a_list_on_standard_input() -> None:
    before = Path("photos/1.png").read_bytes()
    Path("output.csv").symlink_to("photos/1.png")
    done = CliRunner().invoke(
        cli, ["infer", *CPU, "--files-from", "-", "--output", "output.csv"], input="photos/0.png\nphotos/1.png\n"
    )
    assert done.exit_code == 2
    assert "--output 'output.csv' is an input ('photos/1.png'), which this run reads" in done.output
    assert Path("photos/1.png").read_bytes() == before


def test_names_of_parameters() -> None:
    assert set(WRITTEN_FOLDERS) == {"save"}
