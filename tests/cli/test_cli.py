"""cli/__init__.py and the contract of every command: exit codes, one line for bad input, cheap start, JSON alone."""

import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import vgg16gpu
from vgg16gpu.cli import COMMANDS, cli, main
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


def test_version_and_help(monkeypatch):
    assert invoke("--version").stdout == f"vgg16gpu {vgg16gpu.__version__}\n"
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)
    monkeypatch.setattr(sys, "stdout", None)  # as where it is closed
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0


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


def test_a_command_that_needs_a_model_says_so():
    assert "no model is named: give MODEL, or --model FILE" in refused("calibrate", "--images", digit_sample())


def test_ctrl_c_is_one_line_and_130(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("vgg16gpu.cli.info.command.info_command.callback", lambda **_: interrupted())
    result = invoke("info", "digits")
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (130, "", "vgg16gpu: interrupted")


def test_a_hangup_that_is_ignored_stays_so(monkeypatch):
    """Keep SIGHUP ignored where it was when the command began, as under nohup."""
    handled = {}
    monkeypatch.setattr("vgg16gpu.cli.signal.getsignal", lambda _: signal.SIG_IGN)
    monkeypatch.setattr("vgg16gpu.cli.signal.signal", handled.__setitem__)
    monkeypatch.setattr("vgg16gpu.cli.atexit.register", lambda _: None)
    monkeypatch.setattr("vgg16gpu.cli.gc.set_threshold", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["vgg16gpu", "--version"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert list(handled) == [signal.SIGTERM]


def test_a_stream_that_is_full_is_one_line_and_dropped(monkeypatch):
    class Full(io.StringIO):
        def fileno(self):
            return 1

        def flush(self):
            raise OSError(28, "No space left on device")

    dropped = []
    monkeypatch.setattr("vgg16gpu.cli.os.dup2", lambda _, number: dropped.append(number))
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit) as ended:
        cli.main(["cache"])
    assert ended.value.code == 2
    assert said.getvalue() == "vgg16gpu: reading or writing a stream: No space left on device\n"
    assert dropped == [1]  # what Python would write when it ends goes nowhere


def test_other_platforms_get_one_line(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "Darwin" in refused("info", digits_model())


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
    assert "kernels 'wgmma': none of them computes an op of this model in fp32" in refused(
        "infer", *digits, "--kernels", "wgmma"
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
