"""Calls that work on torch's tensors: captured as CUDA graphs, timed in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final, TypeAlias

import torch

Call: TypeAlias = Callable[[], Any]
Round: TypeAlias = Callable[[Call, int], float]  # seconds of a call, of this number of them

FIRST_CALLS: Final = 3  # before any is timed: they plan, allocate, and try algorithms


def captured(call: Call, stream: Any = None) -> Call:
    """Call `FIRST_CALLS` times, then capture what a call enqueues; return a call that replays it.

    stream: that on which `call` enqueues; None: `call` enqueues on the current stream, and gets one of its own here. A
    replay is enqueued on the stream that is current then, and returns what `call` returned in the capture.
    """
    torch.cuda.synchronize()
    stream = stream or torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(FIRST_CALLS):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: Any = None
    with torch.cuda.graph(graph, stream=stream):
        kept = call()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def timed(one_round: Round, call: Call, *, rounds: int, seconds: float, warm: float = 0.0) -> dict[str, float]:
    """Time `call` in rounds of about `seconds`, after `FIRST_CALLS` calls and at least `warm` seconds of them.

    Returns the median and the best of all rounds in milliseconds a call, and the number of calls of a round.
    """
    one_round(call, FIRST_CALLS)
    end = time.perf_counter() + warm
    while time.perf_counter() < end:
        one_round(call, FIRST_CALLS)
    times = max(1, round(seconds / one_round(call, 1)))
    found = [one_round(call, times) for _ in range(rounds)]
    return {"median_ms": 1e3 * median(found), "best_ms": 1e3 * min(found), "calls_of_a_round": times}


def by_wall(device: str, call: Call, times: int) -> float:
    """Return the seconds of a call by the host's clock; a GPU is waited for once, behind the last call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return (time.perf_counter() - start) / times


def by_events(call: Call, times: int) -> float:
    """Return the seconds of a call between two events of torch's current stream, on which the calls enqueue."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    stop.record()
    stop.synchronize()
    return 1e-3 * float(start.elapsed_time(stop)) / times


def wait(device: str) -> None:
    """Wait for all work on a GPU; "cpu" has none."""
    if device != "cpu":
        torch.cuda.synchronize()
