"""Starts the processes of a server, starts again those that die, and ends them all."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import DeviceError, Error, InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.server import device_process, front_end
from vgg16gpu.server.front_end import Door
from vgg16gpu.server.page import process as explaining
from vgg16gpu.server.page.messages import BACKLOG, socket_beside
from vgg16gpu.server.pictures import DECODERS, PIXEL_NBYTES
from vgg16gpu.server.served import Description, EngineChoice, Served
from vgg16gpu.server.slots import SlotLayout

_NEEDED: Final = ("granian", "prometheus_client", "uvloop")
_PAUSE: Final = 0.5  # seconds before a process is started again: one that dies at once must not take all time
_BACKLOG: Final = 64
_BASE_NBYTES: Final = 1 << 16  # of a connection and its buffers, as an estimate

_log = logging.getLogger(__name__)
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Child:
    """A process, and the end of a pipe whose closing tells it to end."""

    process: SpawnProcess
    pipe: Connection


def check_installed() -> None:
    """Raise InputError where the extra is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed, which serve needs: pip install 'vgg16gpu[serve]'")


class Supervisor:
    """One device process and `workers` front ends. In `with`; `run` serves until a signal.

    served: without the description, which the device process makes. tell: is told a line when it is ready.
    """

    def __init__(
        self, choice: EngineChoice, served: Callable[[Description], Served], door: Door, workers: int, queue: int
    ) -> None:
        self._choice, self._make, self._door, self._workers = choice, served, door, workers
        self._slots = queue * workers
        self._stack = ExitStack()
        self._is_ending = False
        self._ends: list[Child | None] = [None] * workers
        self._device: Child | None = None
        self._explainer: Child | None = None

    def __enter__(self) -> Supervisor:
        """Reserve the address. Raises InputError where it cannot be had."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="vgg16gpu-"))  # for this user alone
        self._path, self._metrics = f"{folder}/device", Path(folder, "metrics")
        self._metrics.mkdir()
        self._memory = os.memfd_create("vgg16gpu-slots")
        self._stack.callback(os.close, self._memory)
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._listener.bind(self._path)
        self._listener.listen(_BACKLOG)
        self._questions = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._questions.bind(socket_beside(self._path))
        self._questions.listen(BACKLOG)
        reserved, self._door = _reserved(self._door)
        self._stack.enter_context(reserved)
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        for end in (self._wake, self._woken):
            self._stack.callback(os.close, end)
        return self

    def __exit__(self, *_: object) -> None:
        for child in (*self._ends, self._device, self._explainer):
            if child:
                child.pipe.close()
                child.process.join(10)
                child.process.kill()
                child.process.join()
        self._stack.close()

    def run(self, tell: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT, and end what is under way. Raises what building the engine raises."""
        before = {each: signal.signal(each, self._end) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._device = self._start_device()
            description = self._described(self._device)
            if description is None:
                return
            self._served = self._make(description)
            self._explainer = self._start_explainer()
            for number in range(self._workers):
                self._ends[number] = self._start_end(number)
            tell(self._line())
            while not self._is_ending:
                self._watch()
            self._drain()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _end(self, *_: object) -> None:
        self._is_ending = True
        with suppress(OSError):
            os.write(self._woken, b"x")

    def _described(self, device: Child) -> Description | None:
        """What the device process tells once it is warm; None where a signal ends all before."""
        while not self._is_ending:
            if device.pipe in wait([device.pipe, self._wake]):
                try:
                    told: Any = device.pipe.recv()
                except (EOFError, OSError) as error:
                    device.process.join()
                    raise DeviceError(f"the device process ended with code {device.process.exitcode}") from error
                if isinstance(told, Error):
                    raise told
                assert isinstance(told, Description)
                return told
        return None

    def _watch(self) -> None:
        """Wait until something happens, and start again who died."""
        children = [child for child in (*self._ends, self._device, self._explainer) if child]
        wait([*(child.process.sentinel for child in children), self._wake])
        if self._is_ending:
            return
        for number, child in enumerate(self._ends):
            if child and not child.process.is_alive():
                self._tell_death(f"front end {number}", child)
                self._ends[number] = self._start_end(number)
        if self._device and not self._device.process.is_alive():
            self._tell_death("the device process", self._device)
            self._device = self._start_device()
        if self._explainer and not self._explainer.process.is_alive():
            self._tell_death("the process that explains", self._explainer)
            self._explainer = self._start_explainer()

    def _tell_death(self, what: str, child: Child) -> None:
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - of the extra

        _log.warning("%s ended with code %s; it is started again", what, child.process.exitcode)
        mark_process_dead(child.process.pid, str(self._metrics))
        child.pipe.close()
        time.sleep(_PAUSE)

    def _drain(self) -> None:
        """Front ends first: they wait for their answers."""
        for child in filter(None, self._ends):
            child.pipe.close()
        last = time.monotonic() + self._served.bounds.deadline + _PAUSE
        for child in filter(None, self._ends):
            child.process.join(max(0.0, last - time.monotonic()))

    def _start_device(self) -> Child:
        return _started(
            device_process.main, (self._choice, _Memory(self._memory), self._slots, self._listener), "vgg16gpu-device"
        )

    def _start_explainer(self) -> Child | None:
        if self._served.explainable is None:
            return None
        given = (self._choice, self._served.description, self._served.bounds.body, self._questions)
        return _started(explaining.main, given, "vgg16gpu-explainer")

    def _start_end(self, number: int) -> Child:
        metrics = str(self._metrics)
        given = (self._served, self._door, number, self._workers, _Memory(self._memory), self._path, metrics)
        return _started(front_end.main, given, f"vgg16gpu-front-end-{number}")

    def _line(self) -> str:
        scheme = "https" if self._door.certificate else "http"
        host = f"[{self._door.host}]" if ":" in self._door.host else self._door.host
        bounds, description = self._served.bounds, self._served.description
        slots = SlotLayout.of(description).stride * self._slots
        decoding = DECODERS * PIXEL_NBYTES * bounds.pixels
        held = self._workers * (2 * bounds.bodies + bounds.connections * _BASE_NBYTES + decoding)
        if self._served.explainable:
            held += 2 * (BACKLOG + 2) * bounds.body  # answers of who is explained and who waits
        return (
            f"serving '{self._served.name}' at {scheme}://{host}:{self._door.port}, on {description.device}; batches "
            f"of up to {description.largest}; slots take {slots / 1e6:.1f} MB, requests at most {held / 1e6:.0f} MB"
        )


class _Memory:
    """A descriptor that goes to a process that is being started."""

    def __init__(self, memory: int) -> None:
        self._memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (DupFd(self._memory),)


def _same(given: Any) -> Any:
    return given


def _started(target: Callable[..., None], given: tuple[Any, ...], name: str) -> Child:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(*given, theirs), name=name, daemon=True)
    process.start()
    theirs.close()
    return Child(process, ours)


def _reserved(door: Door) -> tuple[socket.socket, Door]:
    """A socket that keeps the address and does not listen, and the door with its port: front ends share it.

    Raises InputError.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)[0]
        _require_unused(family, address)
        kept = socket.socket(family, socket.SOCK_STREAM)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(address)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--host {shown(door.host)} --port {door.port}: {why}; choose others") from error
    host, port = kept.getsockname()[:2]
    return kept, replace(door, host=host, port=port)


def _require_unused(family: int, address: Any) -> None:
    """Raise OSError where somebody listens: with SO_REUSEPORT another server of this user's could share the port."""
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)
