"""Several devices for one model: what their names mean, and all of them opened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Final

from vgg16gpu.devices import Opened, is_device_name, open_device
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import DeviceError
from vgg16gpu.io.shown import shown

ALL: Final = "all"
ACCEPTED: Final = "all, names with commas (cuda:0,cuda:1), or cpu:N (N engines that share the cores)"
MAX_ENGINES: Final = 64  # of the CPU device

_CPUS: Final = re.compile(r"cpu:(\d{1,4})", re.ASCII)


def split_devices(text: str) -> tuple[str, ...]:
    """Split 'all' -> ('all',); 'cuda:0,cuda:1' -> ('cuda:0', 'cuda:1'); 'cpu:3' -> ('cpu', 'cpu', 'cpu').

    No device is looked at. Raises DeviceError for what is none of these.
    """
    if text == ALL:
        return (ALL,)
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        cpus = _CPUS.fullmatch(part)
        if cpus and 1 <= int(cpus[1]) <= MAX_ENGINES:
            names += ["cpu"] * int(cpus[1])
        elif is_device_name(part):
            names.append(part)
        else:
            raise DeviceError(f"{shown(part)} is not a device, nor several: give {ACCEPTED}")
    if len({name == "cpu" for name in names}) > 1:
        raise DeviceError(f"{shown(text)}: the CPU beside a GPU would give answers that depend on who computes them")
    return tuple(names)


def open_devices(devices: str | Sequence[str]) -> list[Opened]:
    """Open all of `resolve_devices`.

    Devices of the CPU share its threads fairly. Raises DeviceError for an unknown name, and where one of them does not
    work; then none stays open.
    """
    names = resolve_devices(devices)
    shares = thread_shares(names.count("cpu"))
    with ExitStack() as undo:
        opened: list[Opened] = []
        for name in names:
            opened.append(open_device(name, shares.pop(0) if name == "cpu" else None))
            undo.enter_context(closing(opened[-1].device))
        undo.pop_all()
    return opened


def resolve_devices(devices: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the devices of a text as in `split_devices`, or of several names as in `open_device`.

    "all": every GPU that the driver names; without one what "auto" is. Raises DeviceError for an unknown name.
    """
    names = split_devices(devices if isinstance(devices, str) else ",".join(devices))
    return _all() if names == (ALL,) else names


def _all() -> tuple[str, ...]:
    from vgg16gpu.devices.cuda.probe import probe_driver  # noqa: PLC0415 - for who asks for all

    driver = probe_driver()
    count = len(driver.gpus) if driver else 0
    return tuple(f"cuda:{ordinal}" for ordinal in range(count)) or ("auto",)


def thread_shares(count: int) -> list[int | None]:
    """Return the threads of each of `count` CPU devices: as many as a single one together, one at least."""
    if count < 2:
        return [None]
    from vgg16gpu.devices.cpu.device import threads_from_environment  # noqa: PLC0415 - ctypes is for who computes there

    threads = threads_from_environment(usable_cores())
    return [max(1, threads // count + (number < threads % count)) for number in range(count)]
