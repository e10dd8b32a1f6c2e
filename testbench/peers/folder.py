"""A folder of pictures through another framework, in a process of its own: what it is asked, and what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu.bench.peers.base import PRECISIONS, PeerError
from vgg16gpu.bench.peers.process import PeerFailureError
from vgg16gpu.io.preprocessing import Preprocess

LOADER: Final = "torch, DataLoader"
NVJPEG: Final = "torch, nvJPEG"
WAYS: Final = (LOADER, NVJPEG)
BATCH: Final = 128  # images of a run
TOP: Final = 5  # classes of each picture that come to the host

_NEEDS: Final = ("torch", "torchvision")
_PATIENCE: Final = 600.0  # seconds for a process
_LINES, _COLUMNS = 30, 300  # of what it wrote that are kept
_PACKAGES = str(Path(__file__).resolve().parents[2])
_MODULE: Final = "testbench.peers.folder_torch"


@dataclass(frozen=True)
class FolderSetting:
    """What the process is asked; it goes there as JSON. shape: (C, H, W); workers: as many as there are cores."""

    way: str
    model: str
    precision: str
    ordinal: int
    shape: tuple[int, int, int]
    preprocess: Mapping[str, Any]  # a Preprocess' fields
    files: tuple[str, ...]
    workers: int

    def to_json(self) -> str:
        """As text; a name that is no UTF-8 keeps its bytes."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FolderSetting:
        """What `to_json` gave."""
        content = json.loads(text)
        return cls(**{**content, "shape": tuple(content["shape"]), "files": tuple(content["files"])})

    @property
    def fitting(self) -> Preprocess:
        """What is done to pictures."""
        return Preprocess.from_fields(self.preprocess)


@dataclass(frozen=True)
class FolderAnswer:
    """What the process found. seconds: of the loop over all pictures; best: the best class of each, in order."""

    seconds: float
    best: tuple[int, ...]
    whole_s: float  # of the process, from its start to its end

    @property
    def pictures_per_s(self) -> float:
        """Of the loop."""
        return len(self.best) / self.seconds


def check_folder_peer(kind: str, precision: str) -> None:
    """Raise PeerError, in one line, where torch cannot run a folder here. Nothing is imported."""
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        are = "are" if len(missing) > 1 else "is"
        raise PeerError(f"{' and '.join(missing)} {are} not installed")
    if kind != "cuda":
        raise PeerError("measured on a GPU alone, and this device is a CPU")
    if precision not in PRECISIONS["torch"]:
        raise PeerError(f"torch has no {precision} for a whole model here")


def run_folder_peer(setting: FolderSetting) -> FolderAnswer:
    """One process, from its start to its end. Raises PeerError where it refuses, PeerFailureError where it fails."""
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        asked, answer = Path(folder, "asked.json"), Path(folder, "answer.json")
        asked.write_text(setting.to_json())
        command = [sys.executable, "-P", "-m", _MODULE, str(asked), str(answer)]
        start = time.perf_counter()
        code, said = _run(command)
        whole = time.perf_counter() - start
        if code or not answer.is_file():
            raise PeerFailureError(f"its process ended with exit code {code}: {(said or ['no message'])[-1]}", said)
        found = json.loads(answer.read_text())
    if "refused" in found:
        raise PeerError(found["refused"])
    return FolderAnswer(float(found["seconds"]), tuple(found["best"]), whole)


def _run(command: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """The exit code, and the last lines that it wrote."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")]))}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerFailureError(f"no end in {_PATIENCE:g} s", hung=True) from error
    lines = [line.strip()[:_COLUMNS] for line in done.stdout.decode(errors="replace").splitlines()]
    return done.returncode, tuple(line for line in lines if line)[-_LINES:]
