"""Commands that must come to their end: where one does not, the test shows where its threads are."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest


def begun(*words: object, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """This Python with these words behind it, which on SIGABRT says where every thread is."""
    command = [sys.executable, "-X", "faulthandler", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def ended(child: subprocess.Popen[str], seconds: float = 60.0) -> tuple[str, str]:
    """What one that has `begun` wrote to stdout and stderr, once it is over by itself."""
    try:
        return child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        pytest.fail(f"{child.args} was not over after {seconds:g} s:\n{child.communicate()[1]}")
