"""FastAPI and torch beside ours, in a process of their own, on the same device and the same requests' content."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbench.server.bodies import JPEG, UINT8, plain
from testbench.server.session import Contender
from testbench.server.target import Address, Body
from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.process import PeerFailureError
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.errors import InputError

NAME: Final = "fastapi"
FORMS: Final = (JPEG, UINT8)

_NEEDS: Final = ("torch", "fastapi", "uvicorn")
_BATCH: Final = {"cuda": 64, "cpu": 8}
_PATIENCE: Final = 300.0  # seconds for a start
_PACKAGES = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class PeerSetting:
    """model: the ONNX file that the other server has, too. device: as --device. sample: (C, H, W)."""

    model: Model
    device: str
    sample: tuple[int, int, int]


def check_installed() -> None:
    """Raise PeerError, in one line, where the peer cannot be started. Nothing is imported."""
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        raise PeerError(f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed")


@contextmanager
def running(setting: PeerSetting) -> Iterator[Address]:
    """The peer, ready. Raises PeerError where it is not installed, PeerFailureError where it does not start."""
    check_installed()
    device, _ = open_device(setting.device)
    kind = device.facts.kind
    device.close()
    graph = setting.model.graph()
    asked = {
        "model": str(setting.model.path),
        "device": (setting.device if ":" in setting.device else "cuda:0") if kind == "cuda" else "cpu",
        "shape": setting.sample,
        "preprocess": setting.model.preprocess(graph, (1, *setting.sample)).fields(),
        "batch": _BATCH[kind],
        "port": _free_port(),
    }
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        file, log = Path(folder, "asked.json"), Path(folder, "log")
        file.write_text(json.dumps(asked))
        command = [sys.executable, "-P", "-m", "testbench.peers.serving_fastapi", str(file)]
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environ
            )
        try:
            address = Address("http", "127.0.0.1", int(str(asked["port"])))
            _await(process, address, log)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def contender(address: Address, form: str, bodies: Sequence[Body]) -> Contender:
    """The same images as they go to ours, one a request, without the protocol around them."""
    return Contender(NAME, form, address, f"/{form}", plain(bodies), lambda: None)


def _await(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    last = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < last:
        try:
            address.ask("/health")
            return
        except InputError:
            time.sleep(0.1)
    said = log.read_text(errors="replace").strip().splitlines()
    raise PeerFailureError(f"{NAME} did not start: {(said or ['no message'])[-1]}", tuple(said[-10:]))


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])
