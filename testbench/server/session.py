"""One benchmark of a server: loads one after the other, by processes of clients that start at the same time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from testbench.server import client
from testbench.server.client import Tally, Work
from testbench.server.load import SHARES, Load, percentiles, poisson
from testbench.server.target import TIMEOUT, Address, Body
from vgg16gpu.errors import Error

CLIENTS: Final = (1, 8, 32)
SECONDS: Final = 5.0
CONNECTIONS: Final = 128

_AHEAD: Final = 0.2  # seconds from the order to start to the start
_SEED: Final = 20
_MOST_BUSY: Final = 0.85  # of the time of a client process: beyond it Python is the limit
_MOST_LAG: Final = 0.005  # seconds
_MOST_ERRORS: Final = 0.5  # of the requests of a closed loop: rates are not guessed from such a one
_SPAWN = multiprocessing.get_context("spawn")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What to measure. rates: () for shares of the best closed loop. connections: of an open loop, in all.

    cores: that clients stay on; () for all.
    """

    clients: tuple[int, ...] = CLIENTS
    rates: tuple[int, ...] = ()
    forms: tuple[str, ...] = ()
    images: int = 1  # of a request
    seconds: float = SECONDS
    connections: int = CONNECTIONS
    processes: int = 1
    pictures: Path | None = None
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Contender:
    """A server, and requests to it in one form. statistics: images and batches so far; None where it does not tell."""

    name: str
    form: str
    address: Address
    path: str
    bodies: Sequence[Body]
    statistics: Callable[[], tuple[int, int] | None]


def measure(contender: Contender, wanted: Wanted, say: Say) -> list[Mapping[str, Any]]:
    """A row for each load. Raises Error where a client process fails."""
    rows = [measured(contender, wanted, Load("closed", clients), say) for clients in wanted.clients]
    rates: Sequence[float] = wanted.rates
    if not rates:
        whole = [row for row in rows if sum(row["errors"].values()) < _MOST_ERRORS * row["requests"]]
        best = max((row["answers_per_s"] for row in whole), default=0.0)
        rates = [max(1.0, float(round(share * best))) for share in SHARES] if best else []
    rows += [measured(contender, wanted, Load("open", rate), say) for rate in rates]
    return rows


def measured(contender: Contender, wanted: Wanted, load: Load, say: Say) -> Mapping[str, Any]:
    """One load."""
    say(f"{contender.name}, {contender.form}: {load}")
    connections = int(load.amount) if load.kind == "closed" else wanted.connections
    processes = min(wanted.processes, connections)
    works = [
        Work(
            contender.address,
            contender.path,
            contender.bodies,
            connections // processes + (number < connections % processes),
            wanted.seconds,
            poisson(load.amount / processes, wanted.seconds, _SEED + number) if load.kind == "open" else None,
            wanted.cores,
        )
        for number in range(processes)
    ]
    before = contender.statistics()
    tally = run_clients(works)
    return _row(contender, load, works, tally, before, contender.statistics())


def run_clients(works: Sequence[Work]) -> Tally:
    """All processes, which start at the same time; what they found. Raises Error where one fails."""
    started = []
    for work in works:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=client.main, args=(work, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        for _, pipe in started:
            pipe.recv()
        start = time.monotonic() + _AHEAD
        for _, pipe in started:
            pipe.send(start)
        patience = works[0].seconds + client.PATIENCE + 2 * TIMEOUT
        tallies = []
        for _, pipe in started:
            if not pipe.poll(patience):
                raise Error(f"a client process gave no result within {patience:g} s")
            tallies.append(pipe.recv())
        return client.joined(tallies)
    except (EOFError, OSError) as error:
        raise Error("a client process ended before its result; what it wrote above says why") from error
    finally:
        for process, pipe in started:
            pipe.close()
            process.join(1)
            with suppress(OSError):
                process.kill()


def _row(
    contender: Contender,
    load: Load,
    works: Sequence[Work],
    tally: Tally,
    before: tuple[int, int] | None,
    after: tuple[int, int] | None,
) -> Mapping[str, Any]:
    seconds = max(works[0].seconds, tally.last)
    latencies = np.asarray(tally.latencies, np.float64)
    images, runs = (after[0] - before[0], after[1] - before[1]) if before and after else (0, 0)
    return {
        "server": contender.name,
        "form": contender.form,
        "body_nbytes": round(sum(len(body.data) for body in contender.bodies) / len(contender.bodies)),
        "load": load.kind,
        "amount": load.amount,
        "seconds": seconds,
        "requests": tally.requests,
        "answers": len(latencies),
        "errors": dict(sorted(tally.errors.items())),
        "answers_per_s": len(latencies) / seconds,
        "images_per_s": tally.images / seconds,
        "mean_s": float(latencies.mean()) if len(latencies) else None,
        "latency_s": percentiles(latencies),
        "answer_s": percentiles(np.asarray(tally.answered, np.float64)),
        "mean_batch": images / runs if runs > 0 else None,
        "clients": {
            "processes": len(works),
            "connections": sum(work.connections for work in works),
            "cores": list(works[0].cores),
            "busy": tally.busy,
            "lag_p99_s": client.lag(tally),
            "waited": tally.waited,
        },
        "limit": _limit(tally),
    }


def _limit(tally: Tally) -> str | None:
    """Why the figures say more of the clients than of the server; None where they do not."""
    if tally.busy > _MOST_BUSY:
        return f"a client process computed for {tally.busy:.0%} of its time: take more --processes, or more cores"
    if (late := client.lag(tally)) > _MOST_LAG:
        return f"1 % of the requests were sent {1e3 * late:.0f} ms late or more: the clients have too few cores"
    return None
