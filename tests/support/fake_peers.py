"""A peer that computes with onnxruntime and fails as it is told. It runs in a process of its own.

FAKE_PEER has what it does: "raise", "die", "hang", "refuse" or nothing; where: "open", "make", "scores" or
"measure"; and how often in all of its processes, which count in files beside the model. Several stand with commas.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from vgg16gpu.bench.measure.timing import Method
from vgg16gpu.bench.peers.base import PeerError, RunMethod, Setting
from vgg16gpu.checks.onnxruntime_oracle import Oracle

SECONDS = 1e-3  # that every run takes, it says


class HungError(BaseException):
    """What a peer raises in place of its silence."""


class Contender:
    """The first way computes in fp32, the second says that it is TF32."""

    name = "torch"
    methods: Sequence[Method] = (Method.BACK_TO_BACK, Method.HOST_TO_HOST)
    unchecked = ""

    def __init__(self, path: Path, x: np.ndarray, variant: str, tf32: bool) -> None:
        self.variant, self.tf32 = variant, tf32
        if not tf32:
            fail(path, "make")
        self._path, self._x = path, x

    def scores(self) -> np.ndarray:
        fail(self._path, "scores")
        scores = Oracle(self._path).scores(self._x)
        return scores + (SECONDS if self.tf32 else 0) * np.abs(scores).max()

    def measure(self, method: Method, runs: int) -> list[float]:
        fail(self._path, "measure")
        return [SECONDS] * (1 if method is Method.BACK_TO_BACK else runs)


class Peer:
    """Two ways, the first of which may fail."""

    notes: Sequence[str] = ("a remark",)

    def __init__(self, setting: Setting) -> None:
        print("loud", file=sys.stderr, flush=True)
        self._path = setting.path
        fail(self._path, "open")

    def ways(self, x: np.ndarray) -> Sequence[RunMethod]:
        return [
            RunMethod(variant, partial(Contender, self._path, x, variant, tf32))
            for variant, tf32 in (("strict", False), ("TF32", True))
        ]

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def fail(path: Path, here: str) -> None:
    """Fail as it is wanted here, unless that was done often enough."""
    done = len(list(path.parent.glob("fault*")))
    plans = (plan.split() for plan in os.environ.get("FAKE_PEER", "").split(",") if plan)
    what = next((what for what, where, times in plans if where == here and done < int(times)), None)
    if what is None:
        return
    (path.parent / f"fault{time.time_ns()}").touch()
    print("last words", file=sys.stderr, flush=True)
    if what == "raise":
        raise RuntimeError("operation failed\nand more")
    if what == "refuse":
        raise PeerError("it does not take the model")
    if what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    raise HungError
