"""Signals end a command in one line, with their exit code, and leave no file; once all is told they change nothing."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code, folder):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("number", "exit_code", "said"),
    [
        (signal.SIGTERM, 143, "vgg16gpu: terminated\n"),
        (signal.SIGHUP, 129, "vgg16gpu: its terminal was closed\n"),
    ],
)
def test_a_signal_is_one_line_and_its_code_and_leaves_no_file(tmp_path, number, exit_code, said):
    code = (
        f"import signal; signal.signal({int(number)}, signal.SIG_DFL)\n"
        "import os, signal, sys; from pathlib import Path; from vgg16gpu import cli; from vgg16gpu.io import files\n"
        "from vgg16gpu.cli.model import command as model\n"
        "def make(path, **_):\n"
        "    with files.atomic_writer(path) as stream:\n"
        "        stream.write(b'half')\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        signal.pause()\n"
        "model.make_vgg = make\n"
        "sys.argv[1:] = ['model', 'make', '--output', 'a.onnx']\n"
        "cli.main()\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr) == (exit_code, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_ends_changes_nothing(tmp_path, number):
    code = (
        "import atexit, os, signal, sys; from vgg16gpu import cli\n"
        f"atexit.register(os.kill, os.getpid(), {number:d})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where the tests are a background job
        "sys.argv[1:] = ['--version']\n"
        "cli.main()\n"
    )
    done = run(code, tmp_path)
    assert done.stdout.startswith("vgg16gpu ")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "ending", ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGTERM)", "raise click.Abort"]
)
def test_a_second_signal_ends_what_a_first_one_does_not(number, ending):
    code = (
        "import click, os, signal, sys, threading, time; from vgg16gpu import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where the tests are a background job
        "def stuck(*_, **__):\n"
        "    threading.Thread(target=time.sleep, args=(100,)).start()\n"
        f"    {ending}\n"
        "cli.cli.invoke = stuck\n"
        "sys.argv[1:] = ['info']\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        try:
            said = next(line.strip() for line in running.stderr if line.strip())
            assert said in ("vgg16gpu: interrupted", "vgg16gpu: terminated")
            assert running.poll() is None
            for _ in range(20):  # one that comes before the first has ended all else is a first one, too
                running.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    running.wait(timeout=1)
                    break
            assert running.poll() in (-number, 128 + number)
        finally:
            running.kill()
