"""A process that holds one peer: started, asked, watched for death and silence, ended. Its output is kept aside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.messages import PeerRefusal, PeerReply, Reply, Request
from vgg16gpu.errors import Error

START_SECONDS = 300.0  # to import a framework, from a disk that has never read it
_END_SECONDS = 30.0  # for the system to end a process that was killed
_TAIL_NBYTES, _TAIL_LINES, _TAIL_COLUMNS = 16384, 30, 300
_PACKAGES = str(Path(__file__).resolve().parents[3])  # so that it is this very package, wherever the command runs


class PeerFailureError(Error):
    """A peer raised something, hung, or its process died. `output`: the last lines that the process wrote."""

    def __init__(self, reason: str, output: tuple[str, ...] = (), *, hung: bool = False) -> None:
        super().__init__(reason)
        self.output, self.hung = output, hung


class PeerProcess:
    """The process of the peer `name`, whose class is `target` ("module:class"). Nothing runs before `start`."""

    def __init__(self, name: str, target: str) -> None:
        self._name, self._target = name, target
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._output: IO[bytes] | None = None
        self._is_ready = False

    @property
    def is_started(self) -> bool:
        """Return whether `start` was the last that was done, not `stop`."""
        return self._process is not None

    def start(self) -> None:
        """Begin to import the framework, in place of a process that was there before; waits for nothing."""
        self.stop()
        ours, theirs = Pipe()
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed by `stop`; appended to: no offset is shared
        options = ["-P", "-u", "-X", "faulthandler", "-X", "no_debug_ranges"]
        command = [sys.executable, *options, "-m", "vgg16gpu.bench.peers.worker"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), self._name, self._target],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # what it starts itself ends with it
            )
        self._connection = ours

    def wait_until_ready(self) -> None:
        """Wait until the framework is imported. Raises PeerError when it does not load here, PeerFailureError."""
        if not self._is_ready:
            self._receive(START_SECONDS)
            self._is_ready = True

    def ask(self, request: Request, patience: float) -> Any:
        """Return the answer, at most after `patience` seconds. Raises PeerError for a refusal, and PeerFailureError."""
        self.post(request)
        return self._receive(patience)

    def post(self, request: Request) -> None:
        """Ask and do not wait; `collect` has the answer."""
        self.wait_until_ready()
        assert self._connection is not None  # it has answered
        with suppress(BrokenPipeError, ConnectionResetError):  # who is dead does not answer either
            self._connection.send(request)

    def collect(self, patience: float) -> Any:
        """Return the answer to the posted request, as `ask`."""
        return self._receive(patience)

    def output(self) -> tuple[str, ...]:
        """Return the last lines that the process wrote."""
        if self._output is None:
            return ()
        descriptor = self._output.fileno()
        text = os.pread(descriptor, _TAIL_NBYTES, max(0, os.fstat(descriptor).st_size - _TAIL_NBYTES))
        lines = [line.strip()[:_TAIL_COLUMNS] for line in text.decode(errors="replace").splitlines()]
        return tuple(line for line in lines if line)[-_TAIL_LINES:]

    def stop(self) -> None:
        """End the process, and whatever it has started, at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        if self._connection is not None:
            self._connection.close()
        if self._output is not None:
            self._output.close()
        self._process = self._connection = self._output = None
        self._is_ready = False

    def _receive(self, patience: float) -> Any:
        if self._connection is None:
            raise PeerFailureError("its process is not running")
        try:
            if not self._connection.poll(patience):
                raise PeerFailureError(f"no answer in {patience:g} s", self.output(), hung=True)
            reply: Reply = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise PeerFailureError(self._death(), self.output()) from error
        match reply:
            case PeerReply():
                return reply.value
            case PeerRefusal():
                raise PeerError(reply.text)
            case _:
                raise PeerFailureError(reply.text, self.output())

    def _death(self) -> str:
        assert self._process is not None  # it was started
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process has hung up"
        if code >= 0:
            return f"its process ended with exit code {code}"
        why = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process died of {_signal_name(-code)}{why}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment() -> Mapping[str, str]:
    """Return our environment, with this very package, and without JAX taking most of the card for itself alone."""
    environ = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    environ["PYTHONPATH"] = os.pathsep.join([_PACKAGES, environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return environ
