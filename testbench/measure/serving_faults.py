"""What `vgg16gpu serve` does while its processes die, at three times its capacity, and in a long time.

    python -m testbench.measure.serving_faults MODEL --pictures DIR --output FILE [--soak SECONDS]

The server has a quarter of the cores, so that the others are enough for its clients. JPEG
files, a picture a request, from clients that arrive at random and wait for nobody. First the capacity. Then, at three
tenths of it, a front end is killed, and a device process: requests that they had may get 503 or a broken connection,
all others are answered, and both come again. Then three times the capacity for `--seconds`: only 200 and 429, p99 of
those accepted, from when they are sent. Then `--soak` seconds at half of the capacity. What the processes hold, and how
much of the device's memory is taken, of a GPU by anybody, is looked at ten times in each; from the middle to the end it
must not grow. Exit code 1 where a promise does not hold.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from testbench.measure.serving import Cores, on_cores, parser_of
from testbench.server.bodies import JPEG, bodies
from testbench.server.load import Load
from testbench.server.session import Contender, Wanted, measured
from testbench.server.target import Address, Served
from tests.serving.held import Usage, usage
from tests.serving.running import Running, serving
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.devices import open_device

CLIENTS: Final = 64
CONNECTIONS: Final = 1024  # of open loops: more than images may wait
OF_CAPACITY: Final = {"kills": 0.3, "overload": 3.0, "soak": 0.5}
KILLS: Final = {"front-end": 0.25, "device": 0.5}  # at which part of their load
ALLOWED: Final = {
    "kills": {"503", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError", "ConnectionRefusedError"},
    "overload": {"429"},
    "soak": set[str](),
}
LOOKS: Final = 10  # of what processes hold, in a load
GROWTH: Final = Usage(rss=8.0, handles=8, threads=4)  # MB, and numbers, of a process
DEVICE_GROWTH: Final = 32e6  # bytes
QUEUE: Final = 512  # images that wait
OF_QUEUE: Final = 2.0  # p99 of accepted requests, by the time in which the capacity empties the queue
MORE: Final = 0.1  # seconds beside that

_STEP: Final = 0.05  # seconds between two questions whether a load has begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, say what did not hold."""
    options = _options(arguments)
    opened = open_device(options.device)
    told = environment(opened.device)
    opened.device.close()
    devices = ("--devices", "cuda:0") if options.device == "cuda" else ()
    cores = Cores.split(4)
    count = cores.front_ends(options.device)
    asked = ("--precision", options.precision, "--workers", str(count), "--queue", str(QUEUE), "--no-page")
    content: dict[str, Any] = {"what": __doc__, "environment": told}
    with on_cores(cores.server), serving(*asked, *devices, model=options.model, threads=None) as server:
        loads = _Loads(server, options.pictures, cores)
        capacity = loads.under(Load("closed", CLIENTS), 3.0)["answers_per_s"]
        content["capacity"] = capacity
        content["kills"] = _kills(server, loads, count, OF_CAPACITY["kills"] * capacity, options.seconds / 3)
        for phase, seconds in (("overload", options.seconds), ("soak", options.soak)):
            if seconds:
                content[phase] = _watched(server, loads, OF_CAPACITY[phase] * capacity, seconds)
    content["broken"] = _broken(content)
    write(options.output, content)
    for phase in ("kills", "overload", "soak"):
        if phase in content:
            load = content[phase]["load"]
            print(f"{phase}: {load['answers']} of {load['requests']}, {load['errors']}, {load['latency_s']}")
    print("\n".join(content["broken"]) or "all promises hold")
    return int(bool(content["broken"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of three times the capacity")
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS")
    return parser.parse_args(arguments)


class _Loads:
    """Loads of one server."""

    def __init__(self, server: Running, pictures: Path, cores: Cores) -> None:
        self._served = Served.find(Address.of(f"http://127.0.0.1:{server.port}"))
        self._bodies = bodies(JPEG, self._served, 1, pictures)
        self._cores = cores.clients

    def under(self, load: Load, seconds: float) -> Mapping[str, Any]:
        """A row of `testbench.server`; the server's own counts are left out, as its processes may come anew."""
        served = self._served
        contender = Contender("vgg16gpu", JPEG, served.address, served.path, self._bodies, lambda: None)
        processes = len(self._cores)
        wanted = Wanted(seconds=seconds, processes=processes, connections=CONNECTIONS, cores=self._cores)
        return measured(contender, wanted, load, print)


def _kills(server: Running, loads: _Loads, front_ends: int, rate: float, seconds: float) -> dict[str, Any]:
    killed: dict[str, int] = {}

    def kill(name: str) -> None:
        killed[name] = server.children(name)[0]
        os.kill(killed[name], signal.SIGKILL)

    def kill_all() -> None:
        began = _begun(server, ended)
        for name, part in KILLS.items():
            if ended.wait(began + part * seconds - time.monotonic()):
                return
            kill(name)

    ended = threading.Event()
    load = _beside(kill_all, ended, lambda: loads.under(Load("open", rate), seconds))
    server.ready()
    deadline = time.monotonic() + 30
    while len(server.children("front-end")) < front_ends and time.monotonic() < deadline:
        time.sleep(0.2)
    again = loads.under(Load("closed", CLIENTS), 2.0)
    return {"load": load, "killed": sorted(killed), "after": again}


def _watched(server: Running, loads: _Loads, rate: float, seconds: float) -> dict[str, Any]:
    """A load, and what the processes hold meanwhile, by their numbers; device_nbytes: of each look."""
    looks: list[dict[int, Usage]] = []
    device: list[float] = []
    ended = threading.Event()

    def look() -> None:
        began = _begun(server, ended)
        for number in range(1, LOOKS + 1):
            if ended.wait(began + number * seconds / LOOKS - time.monotonic()):
                return
            with suppress(OSError):  # a process that ends while it is looked at; `gone` tells of it
                looks.append(usage(server))
                device.append(_device_nbytes(server))

    load = _beside(look, ended, lambda: loads.under(Load("open", rate), seconds))
    looks.append(usage(server))
    device.append(_device_nbytes(server))
    staying = set.intersection(*map(set, looks))
    held = {str(pid): [asdict(each[pid]) for each in looks] for pid in sorted(staying)}
    return {"load": load, "held": held, "gone": len(looks[0].keys() - staying), "device_nbytes": device}


def _begun(server: Running, ended: threading.Event) -> float:
    """The time at which a load begins, some seconds after its clients are started: once images are answered."""
    before = _answered(server)
    while _answered(server) == before and not ended.wait(_STEP):
        pass
    return time.monotonic()


def _answered(server: Running) -> float:
    return server.metric('vgg16gpu_images_total{device="0"}')


def _beside(
    what: Callable[[], None], ended: threading.Event, load: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The row of a load, while a thread does something until the event is set."""
    thread = threading.Thread(target=what)
    thread.start()
    try:
        return load()
    finally:
        ended.set()
        thread.join()


def _device_nbytes(server: Running) -> float:
    """Of its memory, as /metrics has it."""
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vgg16gpu_device_memory_bytes{"))


def _broken(content: Mapping[str, Any]) -> list[str]:
    """The promises that do not hold."""
    found: list[str] = []
    for phase, allowed in ALLOWED.items():
        if phase not in content:
            continue
        what = content[phase]
        if others := {name: count for name, count in what["load"]["errors"].items() if name not in allowed}:
            found.append(f"{phase}: {others}")
        if what.get("gone"):
            found.append(f"{phase}: {what['gone']} processes are not there any more")
        for pid, held in what.get("held", {}).items():
            grown = {name: held[-1][name] - _middle(held)[name] for name in held[-1]}
            if any(grown[name] > most for name, most in asdict(GROWTH).items()):
                found.append(f"{phase}: process {pid} holds more: {grown}")
        device = what.get("device_nbytes", [0.0])
        if (more := device[-1] - _middle(device)) > DEVICE_GROWTH:
            found.append(f"{phase}: {more / 1e6:.0f} MB more of the device's memory are taken")
    if "overload" in content:
        p99 = content["overload"]["load"]["answer_s"]["p99"] or 0.0
        if p99 > (most := OF_QUEUE * QUEUE / content["capacity"] + MORE):
            found.append(f"overload: 1 % of the accepted took {p99:.2f} s or more, beyond {most:.2f}")
    if content["kills"]["after"]["errors"]:
        found.append(f"after the kills: {content['kills']['after']['errors']}")
    if len(content["kills"]["killed"]) < len(KILLS):
        found.append(f"only {content['kills']['killed']} were killed")
    return found


def _middle(looks: Sequence[Any]) -> Any:
    return looks[len(looks) // 2 - 1] if len(looks) > 1 else looks[0]


if __name__ == "__main__":
    sys.exit(main())
