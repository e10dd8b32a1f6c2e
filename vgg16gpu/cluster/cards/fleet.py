"""The processes of several cards, all started at the same time, and the engines that they build."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from vgg16gpu.cluster.cards.engine import CardEngine
from vgg16gpu.cluster.cards.memory import held
from vgg16gpu.cluster.cards.messages import Build, IsOpen
from vgg16gpu.cluster.cards.process import CardProcess
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.several import thread_shares
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.runtime.closing import Closing

_log: Final = logging.getLogger("vgg16gpu.cluster.pool")  # whose lines these are for who filters the log


class CardProcesses(Closing):
    """A process for each device, which opens it and builds an engine there.

    This process opens none of them. Raises DeviceError where a process cannot be started.
    """

    def __init__(self, model: Model, names: Sequence[str], options: Mapping[str, Any]) -> None:
        """Start a process for each of `names`, as from `resolve_devices`. options: those of `Engine` but `device`."""
        self._model, self._options = model, options
        shares = thread_shares(names.count("cpu"))
        path = model.path.absolute() if model.is_on_disk else None
        with ExitStack() as undo, ExitStack() as started:
            content = None if path else undo.enter_context(held(model.file.content))
            self.processes: list[CardProcess] = []
            for name in names:
                build = Build(name, shares.pop(0) if name == "cpu" else None, path, options)
                self.processes.append(started.enter_context(CardProcess(build, content)))
            started.pop_all()

    def engines(self) -> tuple[CardEngine, ...]:
        """Return the built engines, once all are tried; a device that fails is left out while another works.

        Raises what opening devices raises, and what building an `Engine` does.
        """
        with stage("cards"):
            return self._engines()

    def _engines(self) -> tuple[CardEngine, ...]:
        opened: list[IsOpen] = [process.building.receive().content for process in self.processes]
        engines, failures = [], []
        for process, device in zip(self.processes, opened, strict=True):
            try:
                built = process.building.receive().content
                engines.append(CardEngine(self._model, self._options, process, device, built))
            except (DeviceError, KernelError) as error:
                failures.append((device.choice, error, process))
        for choice, failure, process in failures:
            if not engines:
                raise failure
            _log.warning("%s is left out: %s", choice, failure)
            process.close()
        return tuple(engines)

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        for process in self.processes:
            process.hang_up()
        for process in self.processes:
            process.close()
