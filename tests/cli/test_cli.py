"""cli/__init__.py and the contract of every command: exit codes, one line for bad input, cheap start, JSON alone."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import vgg16gpu
from tests.support.onnx_single import single
from vgg16gpu.cli import COMMANDS, cli
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import digit_sample

ROOT = Path(__file__).resolve().parents[2]


def invoke(*args):
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def refused(*args):
    """The one line on stderr of a command that must exit with 2 and print nothing."""
    result = invoke(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("vgg16gpu: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def process(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "vgg16gpu", *map(str, args)], capture_output=True, text=True, check=False, **options
    )


def test_version_and_help():
    result = process("--version")
    assert (result.returncode, result.stdout) == (0, f"vgg16gpu {vgg16gpu.__version__}\n")
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)


def test_the_package_and_the_command_line_cost_no_heavy_import():
    code = (
        "import sys, vgg16gpu, vgg16gpu.cli; vgg16gpu.Error; vgg16gpu.__version__;"
        "print(sorted({'numpy', 'onnx', 'PIL', 'rich', 'pycuda'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_lazy_attributes():
    from vgg16gpu.runtime.engine import Engine

    assert vgg16gpu.Engine is Engine
    assert set(vgg16gpu.__all__) <= set(dir(vgg16gpu))
    with pytest.raises(AttributeError, match="nothing"):
        vgg16gpu.nothing  # noqa: B018


def test_wrong_usage():
    assert "nonsense" in refused("nonsense")
    assert "--nonsense" in refused("infer", "--nonsense", "a.png")
    assert "infer --help" in refused("infer")
    assert "'fp32', 'fp16', 'bf16', 'int8'" in refused("infer", "a.png", "--precision", "int4")
    for command in (("infer", "a.png"), ("info", "digits"), ("bench", "digits"), ("testbench",)):
        assert "'auto', 'wgmma', 'mma', 'ffma'" in refused(*command, "--kernels", "cublas")
    assert "not a size" in refused("infer", "a.png", "--size", "big")
    assert "list of numbers" in refused("infer", "a.png", "--mean", "x")
    assert "list of positive" in refused("testbench", "--iterations", "1,0")


@pytest.mark.parametrize("command", ["info", "testbench", "bench", "ladder", "calibrate"])
def test_a_model_is_named_by_place_or_by_option(command):
    images = ("--images", digit_sample()) if command == "calibrate" else ()
    assert "MODEL and --model are the same" in refused(command, "digits", "--model", "digits", *images)
    for named in (("missing.onnx",), ("--model", "missing.onnx")):
        assert "missing.onnx: no such file" in refused(command, *named, *images)
    shown = invoke(command, "--help").stdout
    assert "--model FILE" in shown
    assert "MODEL" in shown.splitlines()[0]


def test_other_platforms_get_one_line(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "Darwin" in refused("info", digits_model())


def test_model_files_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = digits_model().read_bytes()
    for name, content in {
        "empty.onnx": b"",
        "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "text.onnx": b"hello world, this is no model\n" * 10,
        "short.onnx": whole[: len(whole) // 2],
        "image.onnx": digit_sample().read_bytes(),
    }.items():
        (tmp_path / name).write_bytes(content)
        for command in (("infer", digit_sample(), "--model"), ("info",), ("testbench", "--model")):
            assert name in refused(*command, name)
    for command in (("infer", digit_sample(), "--model"), ("info",), ("testbench", "--model")):
        assert "missing.onnx" in refused(*command, "missing.onnx")
        assert "folder" in refused(*command, tmp_path)


def model_of(nodes, initializers=()):
    """x -> y, both (1, 3, 8, 8)."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_models_that_are_refused(tmp_path):
    nodes = [
        helper.make_node("Erf", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Sinh", ["b"], ["y"], name="second"),
    ]
    onnx.save(model_of(nodes), tmp_path / "nodes.onnx")
    words = ("nodes.onnx", "Erf", "first", "Sinh", "second")
    for command in (("infer", digit_sample(), "--model"), ("testbench", "--model")):
        result = invoke(*command, tmp_path / "nodes.onnx")
        assert result.exit_code == 2
        assert result.stdout == ""
        assert all(word in result.stderr for word in words)
    told = invoke("info", tmp_path / "nodes.onnx")  # what it was asked for
    assert told.exit_code == 1
    assert all(word in told.stdout for word in words)
    weight = numpy_helper.from_array(np.zeros((3, 3, 1, 1), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../weights.bin")
    outside = model_of([helper.make_node("Conv", ["x", "w"], ["y"])], [weight])
    (tmp_path / "outside.onnx").write_bytes(outside.SerializeToString())
    assert "weights.bin" in refused("info", tmp_path / "outside.onnx")


def test_no_model_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (("infer", digit_sample()), ("info",), ("testbench",)):
        line = refused(*command)
        assert "model make" in line
        assert "vgg16" in line
    assert "model make --size 244" in refused("testbench")


def bad_inputs(folder):
    """Files that no model of (1, 32, 32) takes, and a word that the refusal must hold."""
    (folder / "count.txt").write_text("1 2 3")
    yield "count.txt", "3 numbers"
    (folder / "size.txt").write_text("0.5 " * (33 * 33))
    yield "size.txt", "the size of this model is fixed"
    (folder / "words.txt").write_text("1 2\n3 four")
    yield "words.txt", "line 2, column 3"
    (folder / "nan.txt").write_text("nan " + "1 " * 1023)
    yield "nan.txt", "--allow-nonfinite"
    np.save(folder / "rank.npy", np.zeros((32, 32), np.float32))
    yield "rank.npy", "rank 2"
    np.save(folder / "inf.npy", np.full((1, 32, 32), np.inf, np.float32))
    yield "inf.npy", "infinite"
    np.savez(folder / "empty.npz")
    yield "empty.npz", "holds no arrays"
    np.save(folder / "none.npy", np.zeros((0, 1, 32, 32), np.float32))
    yield "none.npy", "holds no inputs"
    np.save(folder / "pickled.npy", np.array([{}], dtype=object))
    yield "pickled.npy", "pickled"
    (folder / "text.png").write_text("no image")
    yield "text.png", "not a readable image"
    (folder / "data.bin").write_bytes(b"\0")
    yield "data.bin", ".npz"
    (folder / "nothing").mkdir()
    yield "nothing", "no images"
    yield "missing.png", "does not exist"


def test_bad_inputs_leave_nothing_behind(tmp_path):
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for name, words in bad_inputs(inputs):
        line = refused("infer", inputs / name, "--model", "digits", "--output", tmp_path / "scores.npy")
        assert name in line
        assert words in line
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


def test_wrong_sizes_channels_labels_outputs(tmp_path):
    image = digit_sample()
    digits = ("infer", image, "--model", "digits")
    assert "fixed" in refused(*digits, "--size", "64")
    assert "--mean has 3 values" in refused(*digits, "--mean", "0.1,0.2,0.3")
    assert "above zero" in refused(*digits, "--std", "0")
    (tmp_path / "labels.txt").write_text("zero\none\n")
    assert "2 class names" in refused(*digits, "--labels", tmp_path / "labels.txt")
    assert ".npz" in refused(*digits, "--output", tmp_path / "scores.pdf")
    assert "create it first" in refused(*digits, "--output", tmp_path / "no" / "scores.npy")


def test_kernels_that_can_do_nothing_here():
    digits = (digit_sample(), "--model", "digits", "--device", "cpu")
    assert "kernels 'mma': none of them computes an op of this model in fp32" in refused(
        "infer", *digits, "--kernels", "mma"
    )
    assert "accepted: auto, wgmma, mma, ffma" in refused("info", "digits", "--device", "cpu", "--kernels", "wgmma")


def test_int8_without_scales_names_the_remedy(tmp_path):
    shutil.copy(digits_model(), tmp_path / "bare.onnx")
    for command in (("infer", digit_sample(), "--model"), ("info",)):
        line = refused(*command, tmp_path / "bare.onnx", "--device", "cpu", "--precision", "int8")
        assert "bare.onnx.int8.json does not exist" in line
        assert "calibrate" in line


def test_another_python_than_that_of_the_environment_is_one_line():
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-S", "-m", "vgg16gpu", "--version"]  # -S: no packages but Python's own
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(
        r"vgg16gpu: \w+ is not installed for .*: `\. \.venv/bin/activate` after `make demo`\n", done.stderr
    )


@pytest.mark.slow(reason="tests/io/results/test_kill.py fills disks")
@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.slow(reason="more of the same"))])
def test_a_full_standard_output_is_one_line(options):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        result = subprocess.run(
            [sys.executable, "-m", "vgg16gpu", "info", str(digits_model()), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr.startswith("vgg16gpu: ")
    assert "No space left on device" in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.mark.slow(reason="a process of its own; test_small_messages.py has what is compiled")
def test_warnings_are_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    np.save(tmp_path / "x.npy", np.ones((1, 3, 4, 4), np.float32))
    model = single(tmp_path, "Flatten", ("N", 3, 4, 4), [])  # one kernel, which each process compiles
    arguments = ("infer", tmp_path / "x.npy", "--model", model, "--device", "cpu")
    environment = os.environ | {"VGG16GPU_CACHE": str(tmp_path / "file"), "VGG16GPU_OPTIMIZE": "3"}
    result = process(*arguments, env=environment)
    assert result.returncode == 0, result.stderr
    first, second = result.stderr.splitlines()
    assert first.startswith("vgg16gpu: the kernel cache")
    assert second.startswith("vgg16gpu: compiling 2 kernels")


@pytest.mark.parametrize("error", [RuntimeWarning("odd things"), OSError(28, "odd things")])
def test_warnings_made_errors_and_failing_streams_are_one_line(monkeypatch, error):
    def failing():
        raise error

    monkeypatch.setattr(vgg16gpu.cli, "supported_machine", failing)
    assert "odd things" in refused("info", digits_model())


def test_outputs_that_are_no_regular_files_stay(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "link.npy").symlink_to("target.npy")
    digits = ("infer", digit_sample(), "--model", "digits", "--device", "cpu", "--output")
    assert "is no regular file" in refused(*digits, tmp_path / "pipe.npy")
    assert invoke(*digits, tmp_path / "link.npy").exit_code == 0
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "target.npy").shape == (1, 10)
    assert "--plot and --output" in refused("bench", "digits", "--output", "a.png", "--plot", "a.png")


def test_json_is_alone_on_stdout(tmp_path):
    Image.open(digit_sample()).save(tmp_path / "a.png")
    for command in (("infer", tmp_path, "--model", "digits"), ("info", digits_model())):
        result = invoke(*command, "--json")
        assert result.exit_code == 0, result.output
        assert isinstance(json.loads(result.stdout), dict)
