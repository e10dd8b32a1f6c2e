"""Starts the processes of a server, starts again those that die or stall, and ends them all."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import DeviceError, Error, InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.server import front_end
from vgg16gpu.server.children import BEAT, Child, started
from vgg16gpu.server.device import process as device_process
from vgg16gpu.server.front_end import Door
from vgg16gpu.server.page import process as explaining
from vgg16gpu.server.page.messages import BACKLOG, socket_beside
from vgg16gpu.server.pictures import DECODERS, PIXEL_NBYTES
from vgg16gpu.server.protocol import MOST_VALUES, VALUE_NBYTES
from vgg16gpu.server.served import Description, EngineChoice, Served, Warm
from vgg16gpu.server.slots import SlotLayout

_NEEDED: Final = ("granian", "prometheus_client", "uvloop")
_PAUSE: Final = 0.5  # seconds before a process is started again: one that dies at once must not take all time
_LEAVE: Final = 10.0  # seconds that processes have to end before they are killed
_BACKLOG: Final = 64
_BASE_NBYTES: Final = 1 << 16  # of a connection and its buffers, as an estimate

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Post:
    """Who is to be there: it is started again when it dies."""

    name: str
    start: Callable[[], Child]
    child: Child


def check_installed() -> None:
    """Raise InputError where the extra is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed, which serve needs: pip install 'vgg16gpu[serve]'")


class Supervisor:
    """A process for each of `choices`, the devices, and `workers` front ends. In `with`; `run` serves until a signal.

    served: makes what front ends know of what the device processes tell. stall: seconds that a process may go without
    an answer before it is killed.
    """

    def __init__(
        self,
        choices: Sequence[EngineChoice],
        served: Callable[[Description], Served],
        door: Door,
        workers: int,
        stall: float,
    ) -> None:
        self._choices, self._make, self._door, self._workers = choices, served, door, workers
        self._stall = stall
        self._stack = ExitStack()
        self._is_ending = False
        self._devices: list[Post] = []
        self._ends: list[Post] = []
        self._explainers: list[Post] = []  # one, or none

    def __enter__(self) -> Supervisor:
        """Reserve the address. Raises InputError where it cannot be had."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="vgg16gpu-"))  # for this user alone
        self._paths = [f"{folder}/device-{number}" for number in range(len(self._choices))]
        self._metrics = Path(folder, "metrics")
        self._metrics.mkdir()
        self._listeners = [self._listener(path) for path in self._paths]
        self._questions = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._questions.bind(socket_beside(self._paths[0]))
        self._questions.listen(BACKLOG)
        reserved, self._door = _reserved(self._door)
        self._stack.enter_context(reserved)
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        for end in (self._wake, self._woken):
            self._stack.callback(os.close, end)
        return self

    def _listener(self, path: str) -> socket.socket:
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(_BACKLOG)
        return listener

    def __exit__(self, *_: object) -> None:
        children = [post.child for post in (*self._ends, *self._devices, *self._explainers)]
        for child in children:
            child.pipe.close()
        last = time.monotonic() + _LEAVE
        for child in children:
            child.process.join(max(0.0, last - time.monotonic()))
            child.process.kill()
            child.process.join()
        self._stack.close()

    def run(self, tell: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT, and end what is under way. Raises what building an engine raises."""
        before = {each: signal.signal(each, self._end) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            for number in range(len(self._choices)):
                start = partial(self._start_device, number)
                self._devices.append(Post(f"device process {number}", start, start()))
            devices = self._warmed_up()
            if not devices:
                return
            self._served = self._make(devices[0].description)
            if self._served.explainable:
                self._explainers.append(
                    Post("the process that explains", self._start_explainer, self._start_explainer())
                )
            for number in range(self._workers):
                start = partial(self._start_end, number)
                self._ends.append(Post(f"front end {number}", start, start()))
            self._listening()
            tell(self._line(devices))
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

    def _warmed_up(self) -> list[Warm]:
        """What the device processes tell once all are warm; nothing where a signal ends all before."""
        found: dict[Post, Warm] = {}
        while len(found) < len(self._devices) and not self._is_ending:
            building = [post for post in self._devices if post not in found]
            wait([*(post.child.pipe for post in building), self._wake])
            for post in building:
                told = post.child.hear()
                if isinstance(told, Error):
                    raise told
                if isinstance(told, Warm):
                    found[post] = told
                elif not post.child.process.is_alive():
                    raise DeviceError(f"{post.name} ended with code {post.child.process.exitcode}")
        return [] if self._is_ending else [found[post] for post in self._devices]

    def _listening(self) -> None:
        """Wait until all front ends take requests, or one has ended: who reads the line may ask at once."""
        while not self._is_ending and (silent := [post.child for post in self._ends if not post.child.is_up]):
            if not all(child.process.is_alive() for child in silent):
                return
            wait([*(each for child in silent for each in (child.pipe, child.process.sentinel)), self._wake])
            for child in silent:
                child.hear()

    def _watch(self) -> None:
        """Wait until something happens, or for a beat; start again who died or does not answer."""
        posts = [*self._devices, *self._ends, *self._explainers]
        began = time.monotonic()
        wait([*(post.child.process.sentinel for post in posts), self._wake], BEAT)
        if self._is_ending:
            return
        # A pause of this process itself, a machine that slept say, is nobody's silence.
        passed = min(time.monotonic() - began, 2 * BEAT)
        for post in posts:
            child = post.child
            told = child.hear()
            if isinstance(told, Error):
                _log.error("%s: %s", post.name, told)
            child.ask(passed)
            if child.is_stalled:
                _log.warning("%s has not answered for %.1f s; it is killed", post.name, child.silent)
                child.process.kill()
                child.process.join()
            if not child.process.is_alive():
                self._replace(post)

    def _replace(self, post: Post) -> None:
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - of the extra

        _log.warning("%s ended with code %s; it is started again", post.name, post.child.process.exitcode)
        mark_process_dead(post.child.process.pid, str(self._metrics))
        post.child.pipe.close()
        time.sleep(_PAUSE)
        post.child = post.start()

    def _drain(self) -> None:
        """Front ends first: they wait for their answers."""
        for post in self._ends:
            post.child.pipe.close()
        last = time.monotonic() + 2 * self._served.bounds.deadline + _PAUSE  # of what began before, and since then
        for post in self._ends:
            post.child.process.join(max(0.0, last - time.monotonic()))

    def _start_device(self, number: int) -> Child:
        given = (self._choices[number], number, self._listeners[number], str(self._metrics))
        return started(device_process.main, given, f"vgg16gpu-device-{number}", self._stall)

    def _start_explainer(self) -> Child:
        """It answers no question while it builds an engine, and nobody's answer waits for it: it is never killed."""
        given = (self._choices[0], self._served.description, self._served.bounds.body, self._questions)
        return started(explaining.main, given, "vgg16gpu-explainer", math.inf)

    def _start_end(self, number: int) -> Child:
        given = (self._served, self._door, self._paths, str(self._metrics))
        return started(front_end.main, given, f"vgg16gpu-front-end-{number}", self._stall)

    def _line(self, devices: Sequence[Warm]) -> str:
        scheme = "https" if self._door.certificate else "http"
        host = f"[{self._door.host}]" if ":" in self._door.host else self._door.host
        bounds, description = self._served.bounds, self._served.description
        slots = SlotLayout.of(description).stride * bounds.queue * self._workers
        decoding = DECODERS * PIXEL_NBYTES * bounds.pixels
        values = MOST_VALUES * VALUE_NBYTES
        held = self._workers * (2 * bounds.bodies + bounds.connections * _BASE_NBYTES + decoding + values)
        names = [each.description.device for each in devices]
        where = names[0] if len(names) == 1 else f"{len(names)} devices: {', '.join(names)}"
        engines = f"{sum(each.resident_nbytes for each in devices) / 1e6:.0f} MB"
        if on_cards := sum(each.card_nbytes for each in devices):
            engines += f" (GPU memory in use: {on_cards / 1e6:.0f} MB)"
        if self._served.explainable:
            held += 2 * (BACKLOG + 2) * bounds.body  # answers of who is explained and who waits
        return (
            f"serving '{self._served.name}' at {scheme}://{host}:{self._door.port}, on {where}; batches "
            f"of up to {description.largest}; engines take {engines}, slots {slots / 1e6:.1f} MB, requests at most "
            f"{held / 1e6:.0f} MB"
        )


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
