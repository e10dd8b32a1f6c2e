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
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from vgg16gpu.errors import DeviceError, Error, InputError
from vgg16gpu.io.shown import printable
from vgg16gpu_serving.children import BEAT, SIGNALS, Child, is_ignored, started
from vgg16gpu_serving.device import process as device_process
from vgg16gpu_serving.front_end import process as front_end
from vgg16gpu_serving.front_end.bodies import CONNECTION_NBYTES, bodies_nbytes
from vgg16gpu_serving.front_end.decoding import decoding_nbytes
from vgg16gpu_serving.front_end.door import Door
from vgg16gpu_serving.page import process as explaining
from vgg16gpu_serving.page.messages import BACKLOG, socket_beside
from vgg16gpu_serving.parent.identity import Identity
from vgg16gpu_serving.parent.posts import Post
from vgg16gpu_serving.protocol.requests import MOST_VALUES, VALUE_NBYTES
from vgg16gpu_serving.served import Description, EngineChoice, Served, Warm
from vgg16gpu_serving.slots import SlotLayout

_NEEDED: Final = ("granian", "prometheus_client", "uvloop")
_LEAVE: Final = 10.0  # seconds that processes have to end before they are killed
_DRAIN: Final = 1.0  # seconds beside the deadlines until front ends are killed
_BACKLOG: Final = 64

_log = logging.getLogger(__name__)


def check_installed() -> None:
    """Raise InputError where what serves HTTP is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed, which serve needs: pip install ./serving")


class Supervisor:
    """A process for each of `choices`, the devices, and `workers` front ends. In `with`; `run` serves until a signal.

    served: makes what front ends know of what the device processes tell. identity: of the files that they load; others
    are never loaded in their place. stall: seconds that a process may go without an answer before it is killed.
    """

    def __init__(
        self,
        choices: Sequence[EngineChoice],
        served: Callable[[Description], Served],
        door: Door,
        workers: int,
        stall: float,
        identity: Identity,
    ) -> None:
        self._choices, self._make, self._door, self._workers = choices, served, door, workers
        self._stall, self._identity = stall, identity
        self._stack = ExitStack()
        self._is_ending = False
        self._devices: list[Post] = []
        self._ends: list[Post] = []
        self._explainers: list[Post] = []  # one, or none

    def __enter__(self) -> Supervisor:
        """Create the sockets between processes. From here on signals end the server. Raises InputError."""
        with ExitStack() as stack:
            self._wake, self._woken = os.pipe()
            os.set_blocking(self._woken, False)
            for end in (self._wake, self._woken):
                stack.callback(os.close, end)
            for each in SIGNALS:
                if each != signal.SIGHUP or not is_ignored(each):
                    stack.callback(signal.signal, each, signal.signal(each, self._end))
            folder = stack.enter_context(_folder())
            self._paths = [f"{folder}/device-{number}" for number in range(len(self._choices))]
            self._metrics = Path(folder, "metrics")
            self._metrics.mkdir()
            self._listeners = [
                stack.enter_context(_listener(path, socket.SOCK_SEQPACKET, _BACKLOG)) for path in self._paths
            ]
            self._questions = stack.enter_context(_listener(socket_beside(self._paths[0]), socket.SOCK_STREAM, BACKLOG))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        children = [post.child for post in (*self._ends, *self._devices, *self._explainers) if post.child]
        for child in children:
            child.pipe.close()
        last = time.monotonic() + _LEAVE
        for child in children:
            child.process.join(max(0.0, last - time.monotonic()))
            child.process.kill()
            child.process.join()
        self._stack.close()

    def run(self, tell: Callable[[str], None]) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP, and end what is under way.

        Raises what building an engine raises, and the Error of a front end that cannot listen.
        """
        for number in range(len(self._choices)):
            self._devices.append(self._post(f"device process {number}", partial(self._start_device, number)))
        devices = self._warmed_up()
        if not devices:
            return
        if words := self._identity.changed():
            raise InputError(words)
        self._served = self._make(devices[0].description)
        if self._served.explainable:
            self._explainers.append(self._post("the process that explains", self._start_explainer))
        for number in range(self._workers):
            self._ends.append(self._post(f"front end {number}", partial(self._start_end, number)))
        self._listening()
        if not self._is_ending:
            tell(self._line(devices))
            self._identity.learn()
        while not self._is_ending:
            self._watch()
        self._drain()

    def _post(self, name: str, start: Callable[[], Child]) -> Post:
        reads_files = not name.startswith("front end")
        post = Post(name, start, self._identity.changed if reads_files else lambda: None)
        post.fill()
        return post

    def _end(self, *_: object) -> None:
        self._is_ending = True
        with suppress(OSError):
            os.write(self._woken, b"x")

    def _warmed_up(self) -> list[Warm]:
        """Wait until all device processes are warm; return their messages, none where a signal ends all before."""
        found: dict[Post, Warm] = {}
        while len(found) < len(self._devices) and not self._is_ending:
            building = [(post, post.child) for post in self._devices if post not in found and post.child]
            wait([*(child.pipe for _, child in building), self._wake])
            for post, child in building:
                told = child.hear()
                if isinstance(told, Error):
                    raise told
                if isinstance(told, Warm):
                    found[post] = told
                elif not child.process.is_alive() and not self._is_ending:
                    raise DeviceError(f"{post.name} ended with code {child.process.exitcode}")
        return [] if self._is_ending else [found[post] for post in self._devices]

    def _listening(self) -> None:
        """Wait until all front ends take requests: who reads the line may ask at once. Raises the Error of one."""
        while not self._is_ending and (
            silent := [(post, post.child) for post in self._ends if post.child and not post.child.is_up]
        ):
            wait([*(each for _, child in silent for each in (child.pipe, child.process.sentinel)), self._wake])
            for post, child in silent:
                told = child.hear()
                if isinstance(told, Error):
                    raise told
                if not child.process.is_alive() and not self._is_ending:
                    raise DeviceError(f"{post.name} ended with code {child.process.exitcode}, and did not listen")

    def _watch(self) -> None:
        """Wait until something happens, or for a beat; start again who died or does not answer."""
        posts = [*self._devices, *self._ends, *self._explainers]
        began = time.monotonic()
        wait([*(post.child.process.sentinel for post in posts if post.child), self._wake], BEAT)
        if self._is_ending:
            return
        # A pause of this process itself, a machine that slept say, is nobody's silence.
        passed = min(time.monotonic() - began, 2 * BEAT)
        for post in posts:
            if post.child:
                self._look_at(post, post.child, passed)
            elif post.due <= time.monotonic():
                self._refill(post)

    def _look_at(self, post: Post, child: Child, passed: float) -> None:
        told = child.hear()
        if isinstance(told, Error) and post.is_news(str(told)):
            _log.error("%s: %s", post.name, told)
        child.ask(passed)
        if child.is_stalled:
            _log.warning("%s has not answered for %.1f s; it is killed", post.name, child.silent)
        other = self._otherwise(told) if isinstance(told, Warm) else None
        if other:
            _log.error("%s: %s; it is killed", post.name, other)
        if child.is_stalled or other:
            child.process.kill()
            child.process.join()
        if not child.process.is_alive():
            self._leave(post, child)

    def _otherwise(self, warm: Warm) -> str | None:
        """Return in a line what a device process that has come again serves in another way; None for nothing."""
        before, now = (replace(each, device="") for each in (self._served.description, warm.description))
        if now != before:
            return "it takes and gives other data than at the start"
        return self._identity.changed()

    def _leave(self, post: Post, child: Child) -> None:
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - slow to import

        again = "" if post.may_start() else "; it is started again"
        _log.warning("%s ended with code %s%s", post.name, child.process.exitcode, again)
        mark_process_dead(child.process.pid, str(self._metrics))
        post.leave()

    def _refill(self, post: Post) -> None:
        if words := post.may_start():
            if post.is_news(words):
                _log.error("%s is not started again: %s", post.name, words)
            post.leave()
        else:
            post.fill()

    def _drain(self) -> None:
        """End the front ends first: they wait for their answers."""
        ends = [post.child for post in self._ends if post.child]
        for child in ends:
            child.pipe.close()
        last = time.monotonic() + 2 * self._served.bounds.deadline + _DRAIN  # of what began before, and since then
        for child in ends:
            child.process.join(max(0.0, last - time.monotonic()))
            child.process.kill()

    def _start_device(self, number: int) -> Child:
        given = (self._choices[number], number, self._listeners[number], str(self._metrics))
        return started(device_process.main, given, f"vgg16gpu-device-{number}", self._stall)

    def _start_explainer(self) -> Child:
        """Start the explainer. It is never killed: it is silent while it builds, and no answer waits for it."""
        given = (self._choices[0], self._served.description, self._served.bounds.body, self._questions)
        return started(explaining.main, given, "vgg16gpu-explainer", math.inf)

    def _start_end(self, number: int) -> Child:
        given = (self._served, self._door, self._paths, str(self._metrics))
        return started(front_end.main, given, f"vgg16gpu-front-end-{number}", self._stall)

    def _line(self, devices: Sequence[Warm]) -> str:
        scheme = "https" if self._door.certificate else "http"
        bounds, description = self._served.bounds, self._served.description
        slots = SlotLayout.of(description).stride * bounds.queue * self._workers
        decoding = decoding_nbytes(bounds)
        values = MOST_VALUES * VALUE_NBYTES
        held = self._workers * (bodies_nbytes(bounds) + bounds.connections * CONNECTION_NBYTES + decoding + values)
        names = [each.description.device for each in devices]
        where = names[0] if len(names) == 1 else f"{len(names)} devices: {', '.join(names)}"
        engines = f"{sum(each.resident_nbytes for each in devices) / 1e6:.0f} MB"
        if on_cards := sum(each.card_nbytes for each in devices):
            engines += f" (GPU memory in use: {on_cards / 1e6:.0f} MB)"
        if self._served.explainable:
            held += 2 * (BACKLOG + 2) * bounds.body  # answers of who is explained and who waits
        return (
            f"serving '{self._served.name}' at {scheme}://{self._door.address}, on {where}; batches "
            f"of up to {description.largest}; engines take {engines}, slots {slots / 1e6:.1f} MB, requests at most "
            f"{held / 1e6:.0f} MB"
        )


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder for this user alone. Raises InputError where there is no place for one."""
    try:
        return tempfile.TemporaryDirectory(prefix="vgg16gpu-")
    except OSError as error:
        raise InputError(f"no temporary folder can be made: {error.strerror}; set TMPDIR to a writable one") from error


def _listener(path: str, kind: socket.SocketKind, backlog: int) -> socket.socket:
    """Create a Unix socket that listens. Raises InputError for a path that is too long for one."""
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(path)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise InputError(
            f"no socket can be made at '{printable(path)}': {reason}; set TMPDIR to a short path"
        ) from error
    return listener
