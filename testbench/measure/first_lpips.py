"""Time the way from a wheel to the first value of LPIPS, in an environment that has torch and a driver alone.

    python -m testbench.measure.first_lpips WHEELS [--hide FOLDER] [--output FILE]

WHEELS: a folder with this package's wheel, and with what `[torch]` wants that the environment of this Python lacks. A
new environment sees the packages of this one. The clock begins with `pip install` (no index) and ends with the value
of `LPIPS()` of two pictures of 256x256 pixels, in a new process with an empty home: nothing is cached, PATH has the
environment's own programs alone, so no nvcc and no C++ compiler. VGG16's weights, random ones, lie where torch hub
keeps its file. --hide: a folder that is empty for these processes, /usr/local/cuda say (as root, by a mount of
their own).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.devices import open_device

BACKBONE: Final = """
import torch, torchvision
net = torchvision.models.vgg16(weights=None)
torch.save(net.state_dict(), "{path}")
"""
VALUE: Final = """
import torch
import vgg16gpu.pytorch as lpips
loss = lpips.LPIPS(check_backbone=False)
x, y = (torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(k)).cuda() * 2 - 1 for k in (0, 1))
print(float(loss(x, y)))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print; 1 if a step fails."""
    parser = argparse.ArgumentParser(prog="python -m testbench.measure.first_lpips", description="From wheel to value.")
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--hide", type=Path, help="a folder that is empty meanwhile")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        content = _measured(Path(folder), options.wheels.resolve(), options.hide)
    device = open_device("cuda").device
    content |= {"what": __doc__, "environment": environment(device)}
    device.close()
    if options.output:
        write(options.output, content)
    print(json.dumps({key: content[key] for key in ("install_s", "value_s", "seconds", "value", "hidden")}))
    return 0


def _measured(folder: Path, wheels: Path, hide: Path | None) -> dict[str, Any]:
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(folder / "env")], check=True)
    programs = folder / "env" / "bin"
    python = str(programs / "python")
    _share_packages(folder / "env")
    checkpoints = folder / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    subprocess.run([python, "-c", BACKBONE.format(path=checkpoints / "vgg16-397923af.pth")], check=True)
    environ = {"HOME": str(folder / "home"), "TORCH_HOME": str(folder / "torch"), "PATH": str(programs)}
    environ |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES") if name in os.environ}
    (folder / "home").mkdir()
    install = (python, "-m", "pip", "install", "--no-index", "--find-links", str(wheels), "vgg16gpu[torch]")
    began = time.perf_counter()
    _run(install, environ, folder, hide)
    installed = time.perf_counter()
    value = float(_run((python, "-c", VALUE), environ, folder, hide).split()[-1])
    ended = time.perf_counter()
    doctor = _run((python, "-m", "vgg16gpu", "doctor"), environ, folder, hide, check=False)
    return {
        "install_s": round(installed - began, 2),
        "value_s": round(ended - installed, 2),
        "seconds": round(ended - began, 2),
        "value": value,
        "hidden": str(hide) if hide else None,
        "doctor": [re.sub(r"/\S+", "...", line).rstrip() for line in doctor.splitlines()],
    }


def _share_packages(env: Path) -> None:
    """Let an environment see this one's packages, also where this one is an environment itself."""
    folders = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = (env / "lib").glob("python*/site-packages")
    (site / "shared.pth").write_text("\n".join(folders))


def _run(
    command: Sequence[str], environ: dict[str, str], folder: Path, hide: Path | None, *, check: bool = True
) -> str:
    """Return what a command prints, run in `folder`. hide: a folder that is empty for it. Raises CalledProcessError."""
    if hide:
        script = f'/usr/bin/mount -t tmpfs none "{hide}" && exec "$@"'
        command = ("/usr/bin/unshare", "--mount", "/bin/sh", "-c", script, "sh", *command)
    done = subprocess.run(
        command, env=environ, cwd=folder, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed = done.stdout.decode(errors="replace")
    if check and done.returncode:
        print(printed[-3000:], file=sys.stderr)
        done.check_returncode()
    return printed


if __name__ == "__main__":
    sys.exit(main())
