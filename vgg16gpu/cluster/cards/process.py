"""A card's process, seen from the one that started it: channels to talk to it, and what is known of its end."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import threading
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.reduction import recv_handle, send_handle
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from vgg16gpu.cluster.cards.memory import map_shared
from vgg16gpu.cluster.cards.messages import BUILDING, Build, Failed
from vgg16gpu.devices.base import Bytes
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.pictures.loading.job import how_it_ended, start_child
from vgg16gpu.runtime.closing import Closing

CHILD: Final = "vgg16gpu.cluster.cards.child"  # its `main`
PATIENCE: Final = 5.0  # seconds from its pipe's end to its own, at most: then it is killed

_log = logging.getLogger(__name__)


class Message(NamedTuple):
    """A message, and the descriptor that came with it, which is the reader's to close."""

    content: Any
    descriptor: int | None = None

    def mapped(self, nbytes: int) -> Bytes:
        """Map the memory that came with the message, and close its descriptor."""
        assert self.descriptor is not None
        try:
            return map_shared(self.descriptor, nbytes)
        finally:
            self.drop()

    def drop(self) -> None:
        """Close the descriptor of a message that is not read."""
        if self.descriptor is not None:
            os.close(self.descriptor)


class CardProcess(Closing):
    """The process of one device, from its start on. It ends when the pipe to it does: with this process at the latest.

    Raises DeviceError where no process can be started.
    """

    def __init__(self, build: Build, model: int | None) -> None:
        """Start the process; model: a memory file with the model's bytes, where `build` names no path."""
        self.device = build.device
        self._sending, self._state = threading.Lock(), threading.Lock()
        self._channels: dict[int, SimpleQueue[Message]] = {}
        self._numbers = itertools.count(BUILDING)
        self._end: Failed | None = None  # why it says nothing more
        self._is_closed = False
        self._pipe, theirs = connection.Pipe()
        try:
            self._child = start_child(CHILD, [theirs.fileno()])
        except OSError as error:
            self._pipe.close()
            raise DeviceError(f"no process can be started for {self.device}: {error}") from error
        finally:
            theirs.close()
        self._listener = threading.Thread(target=self._listen, name=f"vgg16gpu-card-{self.device}", daemon=True)
        self._listener.start()
        self.building = self.channel()
        try:
            self.building.send(build, model)
        except BaseException:  # options that cannot be sent
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    def channel(self) -> Channel:
        """Open a new channel."""
        with self._state:
            number = next(self._numbers)
            heard: SimpleQueue[Message] = SimpleQueue()
            self._channels[number] = heard
            if self._end:
                heard.put(Message(self._end))
        return Channel(self, number, heard)

    def send(self, channel: int, content: Any, descriptor: int | None = None) -> None:
        """Send a message, with a descriptor or without; nothing once the process is gone: `Channel.receive` says so."""
        with self._sending, suppress(OSError):
            self._pipe.send((channel, content, descriptor is not None))
            if descriptor is not None:
                send_handle(self._pipe, descriptor, self.pid)

    def leave(self, channel: int) -> None:
        """Close a channel."""
        with self._state:
            self._channels.pop(channel, None)

    def kill(self) -> None:
        """Kill the process; callers that wait for it get an error."""
        self._child.kill()

    def hang_up(self) -> None:
        """Close the connection, which ends the process. Safe to call twice."""
        with self._state:
            self._is_closed = True
        with suppress(OSError), socket.fromfd(self._pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.shutdown(socket.SHUT_RDWR)  # closing it would leave who reads there waiting

    def close(self) -> None:
        """End the process, and wait for that; in any state of it this does not take long. Safe to call twice."""
        self.hang_up()
        self._wait()
        self._listener.join()
        self._pipe.close()

    def _wait(self) -> int | None:
        """Return the exit status; kill a process that does not end. None: not even then, which only a driver can do."""
        for give_up in (self._child.kill, lambda: None):
            try:
                return self._child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                give_up()
        _log.warning("process %d of %s does not end", self.pid, self.device)
        return None

    def _listen(self) -> None:
        problem = ""
        try:
            while True:
                self._hear()
        except (EOFError, OSError):
            pass
        except Exception as error:  # a descriptor that this process has no number left for, say
            problem = f"is not understood, and ended: {error}"
            self.kill()
        status = self._wait()
        with self._state:
            if self._is_closed:
                self._end = Failed(InputError.__name__, "the pool is closed; build a new one")
            else:
                cause = problem or ("does not answer" if status is None else how_it_ended(status))
                self._end = Failed(DeviceError.__name__, f"process of {self.device} {cause}")
            for heard in self._channels.values():
                heard.put(Message(self._end))

    def _hear(self) -> None:
        """Deliver one message to its channel. Raises what reading it does."""
        number, content, has_descriptor = self._pipe.recv()
        told = Message(content, recv_handle(self._pipe) if has_descriptor else None)
        with self._state:
            if number in self._channels:
                self._channels[number].put(told)
                return
        told.drop()


class Channel:
    """One conversation with a card's process. One thread may send and another receive."""

    def __init__(self, process: CardProcess, number: int, heard: SimpleQueue[Message]) -> None:
        self._process, self._number, self._heard = process, number, heard

    def send(self, content: Any, descriptor: int | None = None) -> None:
        """Send a message; see `CardProcess.send`."""
        self._process.send(self._number, content, descriptor)

    def receive(self) -> Message:
        """Wait for the next message and return it. Raises the other side's error, and DeviceError once it is gone."""
        told = self._heard.get()
        if isinstance(told.content, Failed):
            self._heard.put(told)  # nothing comes behind it
            raise told.content.error()
        return told

    def ask(self, content: Any, descriptor: int | None = None) -> Any:
        """Send a message and return the answer. Raises as `receive` does."""
        self.send(content, descriptor)
        return self.receive().content

    def close(self) -> None:
        """Close the channel and drop its messages. Safe to call twice."""
        self._process.leave(self._number)
        with suppress(Empty):
            while True:
                self._heard.get_nowait().drop()
