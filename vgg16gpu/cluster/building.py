"""The engines of a pool: in this process, or, of several cards, in a process for each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from vgg16gpu.cluster.cards import have_processes
from vgg16gpu.cluster.planning import SharedPlanner, shared_planners
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened
from vgg16gpu.devices.several import open_devices, resolve_devices
from vgg16gpu.errors import DeviceError, Error, KernelError
from vgg16gpu.runtime.answers.codec_choice import codec_for
from vgg16gpu.runtime.answers.stream import LocalWorkerFactory, WorkerFactory
from vgg16gpu.runtime.arrays import Images, Input
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.outputs import Outputs

if TYPE_CHECKING:
    from vgg16gpu.cluster.cards.engine import CardEngine
    from vgg16gpu.cluster.cards.fleet import CardProcesses

PoolEngine: TypeAlias = Union[Engine, "CardEngine"]
Devices: TypeAlias = str | Sequence[str] | Sequence[Opened]

_log = logging.getLogger("vgg16gpu.cluster.pool")  # whose lines these are for who filters the log


def built_engines(model: Model, devices: Devices, options: Mapping[str, Any]) -> tuple[PoolEngine, ...]:
    """Build an engine on each device, in parallel; a device that fails is left out while another works.

    Devices, and processes, are closed on failure. Raises as `EnginePool` does.
    """
    found = _found(model, devices, options)
    if isinstance(found, list):
        try:
            return _built(model, found, shared_planners(model, found, options), options)
        except BaseException:
            for each in found:
                each.device.close()
            raise
    try:
        return found.engines()
    except BaseException:
        found.close()
        raise


def outputs_of_none(engine: PoolEngine, x: Input, images: Images) -> Outputs:
    """Return the outputs of `Engine.run` for x without rows. images: the same, `checked`."""
    return engine.run(x) if isinstance(engine, Engine) else engine.outputs_of_none(images)


def seat_of(engine: PoolEngine, decode: str | None) -> WorkerFactory:
    """Return the factory of workers for a folder's files. decode: the device's decoder. Raises DeviceError."""
    if isinstance(engine, Engine):
        return LocalWorkerFactory(engine, codec_for(engine.device, decode) if decode else None)
    from vgg16gpu.cluster.cards.feeding import CardWorkerFactory  # noqa: PLC0415 - for who has cards

    return CardWorkerFactory(engine, decode)


def kill_processes(engines: Sequence[PoolEngine]) -> None:
    """End the processes of those that have one at once: whoever waits for them hears of it."""
    for engine in engines:
        if not isinstance(engine, Engine):
            engine.process.kill()


def close_engines(engines: Sequence[PoolEngine]) -> None:
    """Close all. Raises what the first that fails raises, once all have been tried."""
    for engine in engines:
        if not isinstance(engine, Engine):
            engine.process.hang_up()  # so that they end at the same time
    failure: Error | None = None
    for engine in engines:
        try:
            engine.close()
        except Error as error:
            failure = failure or error
    if failure:
        raise failure


def _found(model: Model, devices: Devices, options: Mapping[str, Any]) -> list[Opened] | CardProcesses:
    """Return the opened devices, or the processes that have them. Raises DeviceError."""
    given = [devices] if isinstance(devices, str) else list(devices)
    opened = [each for each in given if isinstance(each, Opened)]
    if not given or (opened and len(opened) < len(given)):
        raise DeviceError("devices: give names of devices, or some that are open, at least one")
    if opened:
        return opened
    names = resolve_devices(devices if isinstance(devices, str) else [str(name) for name in given])
    if not have_processes(names):
        return open_devices(names)
    from vgg16gpu.cluster.cards.fleet import CardProcesses  # noqa: PLC0415 - for who has cards

    return CardProcesses(model, names, options)


def _built(
    model: Model, opened: Sequence[Opened], planners: Sequence[SharedPlanner], options: Mapping[str, Any]
) -> tuple[Engine, ...]:
    """Build an engine on each device, in parallel; a device that fails is left out while another works."""

    def build(device: Opened, planner: SharedPlanner) -> Engine | Error:
        try:
            return Engine(model, device=device, planner=planner, **options)
        except (DeviceError, KernelError) as error:
            return error

    with ThreadPoolExecutor(len(opened), "vgg16gpu-build") as threads:
        tried = list(threads.map(build, opened, planners))
    engines = tuple(each for each in tried if isinstance(each, Engine))
    for device, failure in zip(opened, tried, strict=True):
        if isinstance(failure, Error):
            if not engines:
                raise failure
            _log.warning("%s is left out: %s", device.choice, failure)
    return engines
