"""The process of one card: a device, an engine, and a thread for each channel that is opened.

It is started by `process.py`, and ends when the pipe to its parent does, whatever it is at: what it computes nobody
would hear of, and the driver gives back what it holds.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from queue import SimpleQueue
from typing import Any

from vgg16gpu.cluster.cards.memory import read_held
from vgg16gpu.cluster.cards.messages import BUILDING, Build, End, Failed, IsBuilt, IsOpen
from vgg16gpu.cluster.cards.process import Message
from vgg16gpu.cluster.cards.served import SERVICES, Card, Service
from vgg16gpu.cluster.cards.slots import Line
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.pictures.loading.pace import SWITCHING
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.runtime.engine import Engine


def main() -> None:
    """Run as `process.py` starts it: with the descriptor of the pipe."""
    sys.setswitchinterval(SWITCHING)
    CardChild(Connection(int(sys.argv[1]))).run()


class CardChild:
    """What this process is."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending, self._state = threading.Lock(), threading.Lock()
        self._lines: dict[int, SimpleQueue[Message]] = {BUILDING: SimpleQueue()}
        self._device = ""
        self._card: Card | None = None

    def run(self) -> None:
        """Until the pipe ends. The engine is built in a thread, while this one reads the pipe."""
        threading.Thread(target=self._build, name="vgg16gpu-card-build", daemon=True).start()
        with suppress(EOFError, OSError):
            while True:
                number, content, has_descriptor = self._pipe.recv()
                self._hear(number, Message(content, recv_handle(self._pipe) if has_descriptor else None))
        os._exit(0)  # threads may be anywhere, in a kernel's compiler or a copy: nobody waits for them

    def _hear(self, number: int, told: Message) -> None:
        with self._state:
            if number in self._lines:
                self._lines[number].put(told)
                return
            service = SERVICES.get(type(told.content))
            if service is None:  # a last word to a channel that has failed
                told.drop()
                return
            line = self._lines[number] = SimpleQueue()
        threading.Thread(target=self._serve, args=(number, service, told, line), daemon=True).start()

    def _say(self, number: int, content: Any, descriptor: int | None = None) -> None:
        with self._sending, suppress(OSError):
            self._pipe.send((number, content, descriptor is not None))
            if descriptor is not None:
                send_handle(self._pipe, descriptor, os.getppid())

    def _build(self) -> None:
        told = self._lines[BUILDING].get()
        build: Build = told.content
        self._device = build.device
        try:
            opened = open_device(build.device, build.threads)
            self._say(BUILDING, IsOpen(opened.device.facts, opened.choice))
            engine = Engine(_model(build, told), device=opened, **build.options)
            self._card = Card(engine)
            self._say(BUILDING, _described(engine))
        except BaseException as error:
            self._say(BUILDING, Failed.of(error, self._device))

    def _serve(self, number: int, service: Service, first: Message, heard: SimpleQueue[Message]) -> None:
        try:
            assert self._card is not None  # nobody asks before it is built
            stop = partial(heard.put, Message(End(is_left=True)))
            service(self._card, first, Line(heard.get, partial(self._say, number), stop))
        except BaseException as error:
            self._say(number, Failed.of(error, self._device))
        with self._state:
            del self._lines[number]


def _model(build: Build, told: Message) -> Model:
    if build.path is not None:
        return Model(build.path)
    assert told.descriptor is not None
    try:
        return Model(read_held(told.descriptor))
    finally:
        told.drop()


def _described(engine: Engine) -> IsBuilt:
    programs = tuple(map(_without_steps, engine.plan.programs))
    takes_any = None in (engine.inputs[0].shape or ())[1:]
    return IsBuilt(programs, engine.inputs, engine.outputs, engine.timings, takes_any)


def _without_steps(program: LaunchPlan) -> LaunchPlan:
    entries = {name: replace(entry, steps=()) for name, entry in program.input.entries.items()}
    return replace(program, input=replace(program.input, entries=entries), steps=(), output_steps=())
