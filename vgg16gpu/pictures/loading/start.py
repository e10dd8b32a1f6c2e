"""Processes of this package's own, started beside the one that runs: the same interpreter, and no script of a user's.

`multiprocessing` would run the user's script once more in each of them, which only one with a guard bears.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start_child(module: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run `main` of a module, whose arguments are numbers of descriptors that it shares with this process.

    It imports what this process would. Ctrl-C does not reach it: that is for this process, which ends its children.
    Raises OSError.
    """
    paths = [path or str(Path.cwd()) for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {module} import main; main()", *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )


def how_it_ended(status: int) -> str:
    """What to say of a process that ended before its work did: "was ended by SIGKILL"."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
