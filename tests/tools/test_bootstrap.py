"""tools/bootstrap.py: what it refuses, what it installs, and that it does nothing when there is nothing to do."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import bootstrap
import pytest


def test_an_old_python_can_read_it():
    ast.parse(Path(bootstrap.__file__).read_text(), feature_version=(3, 6))


def test_machines_that_are_welcome_or_refused():
    for machine in ("x86_64", "aarch64"):
        bootstrap.check_machine("Linux", machine, (3, 11, 0))
    for machine, message in (
        (("Linux", "x86_64", (3, 10, 13)), r"Python 3\.10 is too old, 3\.11 or newer is needed"),
        (("Darwin", "arm64", (3, 12, 1)), "Darwin on arm64 is not supported"),
        (("Linux", "armv7l", (3, 12, 1)), "Linux on armv7l is not supported"),
    ):
        with pytest.raises(bootstrap.SetupError, match=message):
            bootstrap.check_machine(*machine)


def test_compiler(tmp_path):
    with pytest.raises(bootstrap.SetupError, match=r"No C\+\+ compiler.*apt install g\+\+"):
        bootstrap.check_compiler("", str(tmp_path))
    compiler = tmp_path / "clang++"
    compiler.touch(mode=0o755)
    bootstrap.check_compiler("", str(tmp_path))
    bootstrap.check_compiler("clang++ -stdlib=libc++", str(tmp_path))
    with pytest.raises(bootstrap.SetupError, match="icpx"):
        bootstrap.check_compiler("icpx", str(tmp_path))


def test_a_python_without_venv():
    bootstrap.check_venv()
    with pytest.raises(bootstrap.SetupError, match="no module not_there: apt install python3-venv"):
        bootstrap.check_venv(("sys", "not_there"))


class Commands:
    """Stands for `subprocess.call` and `Popen`: keeps the commands, fails those that hold a given word."""

    def __init__(self, fails=""):
        self.fails = fails
        self.seen = []

    def __call__(self, command, **_):
        self.seen.append([str(word) for word in command])
        return int(bool(self.fails) and any(self.fails in word for word in self.seen[-1]))

    def start(self, command, **_):
        return Process(self(command))

    def with_word(self, word):
        return [command for command in self.seen if any(word in part for part in command)]


class Process:
    """Of a command that has ended."""

    stdout = ("Collecting numpy>=1.26 (from vgg16gpu==0.1.0)\n",)

    def __init__(self, returncode):
        self.returncode = returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait(self):
        return self.returncode


def run_main(monkeypatch, venv, *extras, driver=0, fails=""):
    commands = Commands(fails)
    monkeypatch.setattr(subprocess, "call", commands)
    monkeypatch.setattr(subprocess, "Popen", commands.start)
    monkeypatch.setattr(bootstrap, "driver_version", lambda: driver)
    venv.mkdir(exist_ok=True)
    code = bootstrap.main([str(venv), *extras])
    return code, commands


def test_the_second_call_does_nothing(monkeypatch, tmp_path):
    venv = tmp_path / "venv"
    code, commands = run_main(monkeypatch, venv, "test")
    assert code == 0
    (install,) = commands.with_word("--editable")
    root = bootstrap.ROOT
    assert [word for word in install if word.startswith(str(root))] == [
        f"{root}[test]",
        f"{root}/serving[test]",
        f"{root}/lab",
    ]
    code, commands = run_main(monkeypatch, venv)
    assert code == 0
    assert commands.seen == [[str(venv / "bin" / "python"), "-c", "import vgg16gpu"]]


def test_extras_add_up(monkeypatch, tmp_path):
    run_main(monkeypatch, tmp_path / "venv", "plot")
    _, commands = run_main(monkeypatch, tmp_path / "venv", "test")
    assert f"{bootstrap.ROOT}[plot,test]" in commands.with_word("--editable")[0]


def test_pycuda_only_with_a_driver(monkeypatch, tmp_path):
    _, commands = run_main(monkeypatch, tmp_path / "venv")
    assert commands.with_word("cuda_setup") == []
    _, commands = run_main(monkeypatch, tmp_path / "venv", driver=13000)
    beside, last = commands.with_word("cuda_setup")
    assert beside[-1] == "--wheel"  # begun before pip, which takes shorter
    assert commands.seen.index(beside) < commands.seen.index(commands.with_word("--editable")[0])
    assert last == commands.seen[-1]
    assert last[-1] == "vgg16gpu.cuda_setup"


def test_a_slow_pip_says_what_it_is_at(monkeypatch, capfd):
    monkeypatch.setattr(bootstrap, "PERIOD", 0.05)
    script = "import sys, time; print('Collecting numpy', flush=True); time.sleep(0.3); sys.exit('ERROR: no numpy')"
    assert bootstrap.run_pip([sys.executable, "-c", script]) == 1
    captured = capfd.readouterr()
    assert "pip: collecting numpy, " in captured.out
    assert captured.err == "ERROR: no numpy\n"  # as it is, at once


def test_a_failure_of_the_gpu_part_leaves_the_rest(monkeypatch, tmp_path, capsys):
    code, _ = run_main(monkeypatch, tmp_path / "venv", driver=13000, fails="cuda_setup")
    assert code == 0
    assert "make cuda" in capsys.readouterr().out
    _, commands = run_main(monkeypatch, tmp_path / "venv", driver=13000)
    assert commands.with_word("cuda_setup") == []  # not minutes again at each call


def test_a_failure_of_pip_is_one_line_and_is_tried_again(monkeypatch, tmp_path, capsys):
    code, _ = run_main(monkeypatch, tmp_path / "venv", fails="--editable")
    assert code == 1
    assert "make VENV= PYTHON=python3" in capsys.readouterr().err
    _, commands = run_main(monkeypatch, tmp_path / "venv")
    assert len(commands.with_word("--editable")) == 1


def test_a_folder_that_is_no_environment_is_left_alone(monkeypatch, tmp_path, capsys):
    (tmp_path / "precious").touch()
    code, commands = run_main(monkeypatch, tmp_path, fails="import pip")
    assert code == 1
    assert "is not a Python environment" in capsys.readouterr().err
    assert commands.with_word("venv") == []
    assert (tmp_path / "precious").exists()


def test_a_broken_environment_is_not_removed(monkeypatch, tmp_path, capsys):
    (tmp_path / "pyvenv.cfg").touch()
    code, _ = run_main(monkeypatch, tmp_path, fails="import pip")
    assert code == 1
    assert f"remove it (rm -r {tmp_path})" in capsys.readouterr().err


def test_one_line_for_the_user(tmp_path):
    script = [sys.executable, bootstrap.__file__, str(tmp_path / "venv")]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("make: No C++ compiler")
    assert done.stderr.count("\n") == 1


def test_cuda_setup_is_a_program(monkeypatch):
    monkeypatch.setattr("vgg16gpu.devices.cuda.install.setup.main", lambda: 3)
    monkeypatch.delitem(sys.modules, "vgg16gpu.cuda_setup", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("vgg16gpu.cuda_setup", run_name="__main__")
    assert ended.value.code == 3
