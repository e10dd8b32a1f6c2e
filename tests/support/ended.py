"""Commands that must come to their end: where one does not, the test shows where its threads are."""

from __future__ import annotations

import signal
import subprocess

import pytest

TELLS_STACKS = ("-X", "faulthandler")  # of Python: on SIGABRT it says where every thread is


def ended(child: subprocess.Popen[str], seconds: float = 60.0) -> tuple[str, str]:
    """What it wrote to stdout and stderr, once it is over by itself. It was started with TELLS_STACKS."""
    try:
        return child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        pytest.fail(f"{child.args} was not over after {seconds:g} s:\n{child.communicate()[1]}")
