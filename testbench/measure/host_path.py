"""What is added around the kernels: copies, host time, starts. Exit code 1 when a bound below is exceeded.

    python -m testbench.measure.host_path MODEL.onnx [--precision fp32,fp16,bf16,int8] [--batch 128] [--output FILE]

For each precision, on a GPU, with the model in the page cache:

- a run at batch 1 on the device (between two events, each waited for), and from host to host (wall clock of
  `Engine.run`) with float32 and uint8 arrays of the caller's and with those in `Engine.input()`;
- host time of one launch of the graph;
- `Engine.stream` of uint8 arrays in memory at a large batch, beside the same on the device back to back;
- processes of their own, from the start of Python to the scores of one image: a first one that compiles all kernels,
  then some that find them, and Python's byte code, in caches; and in one more the largest anonymous memory meanwhile.

Times are medians in seconds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vgg16gpu.bench.measure.cold_start import with_byte_code
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.cli.common.show import add_row, console, table
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.runtime.engine import Engine

MAX_ADDED_S = 50e-6  # host to host over device-resident
MAX_LAUNCH_S = 15e-6
MAX_START_S = 1.0
MAX_FIRST_START_S = 25.0
MIN_STREAM_RATE = 0.95  # of the device-resident rate
MAX_ANONYMOUS_NBYTES = 300e6
RUNS, ROUNDS, BATCHES, STARTS = 300, 3, 100, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table; 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.host_path", description="What is added around the kernels."
    )
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default=",".join(PRECISIONS))
    parser.add_argument("--batch", type=int, default=128, help="of the stream")
    parser.add_argument("--output", help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    records, where = [], None
    for precision in options.precision.split(","):
        starts = _starts(options, precision)
        with Engine(options.model, device=options.device, precision=precision, batch=(1, options.batch)) as engine:
            records.append({"precision": precision, **_batch_1(engine), **_stream(engine, options.batch), **starts})
            where = environment(engine.device)
    for record in records:
        record["exceeded"] = _exceeded(record)
    _show(records)
    if options.output:
        content = {"what": __doc__, "model": options.model, "environment": where, "records": records}
        write(Path(options.output), content)
    return int(any(record["exceeded"] for record in records))


def _batch_1(engine: Engine) -> dict[str, float]:
    found = {}
    for element_type in engine.program.input.entries:
        x = _image(engine, element_type, 1)
        engine.run(x)
        launch = engine.executor.launcher(1, element_type)
        engine.device.measure(launch, RUNS // 6)
        found[f"device_{element_type}_s"] = statistics.median(engine.device.measure(launch, RUNS))
        own = engine.input(element_type)[:1]
        rounds = [(_median(partial(engine.run, x)), _median(partial(engine.run, own))) for _ in range(ROUNDS)]
        found[f"host_{element_type}_s"], found[f"host_own_{element_type}_s"] = map(
            statistics.median, zip(*rounds, strict=True)
        )
    found["launch_s"] = _launch_seconds(engine)
    return found


def _median(work: Callable[[], object]) -> float:
    for _ in range(RUNS // 6):
        work()
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _launch_seconds(engine: Engine, launches: int = 10) -> float:
    """Host time of a launch, from bursts so short that the queue never fills."""
    launch, seconds = engine.executor.launcher(1), []
    for _ in range(RUNS // launches):
        started = time.perf_counter()
        for _ in range(launches):
            launch()
        seconds.append((time.perf_counter() - started) / launches)
        engine.device.synchronize()
    return statistics.median(seconds)


def _stream(engine: Engine, batch: int) -> dict[str, float]:
    x = _image(engine, "uint8", batch)
    engine.run(x)
    launch = engine.executor.launcher(batch, "uint8")
    for _ in engine.stream([x] * 5):
        pass
    before = engine.device.measure_back_to_back(launch, BATCHES)
    started = time.perf_counter()
    for _ in engine.stream([x] * BATCHES):
        pass
    streamed = (time.perf_counter() - started) / BATCHES
    after = engine.device.measure_back_to_back(launch, BATCHES)  # the clock has settled by then
    return {"resident_s": (before + after) / 2, "stream_s": streamed, "stream_batch": batch}


def _image(engine: Engine, element_type: str, count: int) -> Any:
    _, channels, height, width = engine.program.input.shape
    random = np.random.default_rng(0)
    if element_type == "uint8":
        return random.integers(0, 256, (count, height, width, channels), np.uint8)
    return random.standard_normal((count, channels, height, width), np.float32)


ANSWER = """
import sys, time
import numpy as np
from vgg16gpu import Engine

model, device, precision, started = sys.argv[1:]
with Engine(model, device=device, precision=precision) as engine:
    engine.run(np.ones(engine.program.input.shape, np.float32))
    print(time.time() - float(started))
"""

WATCH = """
import re, threading
from pathlib import Path

found, ended = [0], threading.Event()
def watch():
    while not ended.wait(0.005):
        found.append(int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
thread = threading.Thread(target=watch)
thread.start()
try:
    exec(answer)
finally:
    ended.set()
    thread.join()
print(1024 * max(found))
"""


def _starts(options: argparse.Namespace, precision: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as cache:
        variables = {**with_byte_code(f"{cache}/python"), "VGG16GPU_CACHE": f"{cache}/kernels"}

        def start(code: str) -> list[float]:
            command = [sys.executable, "-c", code, options.model, options.device, precision, str(time.time())]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
            return [float(line) for line in done.stdout.split()]

        first = start(ANSWER)[0]
        seconds = [start(ANSWER)[0] for _ in range(STARTS)]
        return {
            "first_start_s": first,
            "start_s": statistics.median(seconds),
            "starts_s": seconds,
            "anonymous_nbytes": int(start(f"answer = {ANSWER!r}\n{WATCH}")[1]),
        }


def _exceeded(record: dict[str, Any]) -> list[str]:
    """Which bounds a record breaks."""
    added = {
        name: record[f"host_{name}_s"] - record[f"device_{name.removeprefix('own_')}_s"]
        for name in ("float32", "uint8", "own_float32", "own_uint8")
    }
    failed = [
        f"host to host, {name}: {seconds * 1e6:.0f} us added"
        for name, seconds in added.items()
        if seconds > MAX_ADDED_S
    ]
    rate = record["resident_s"] / record["stream_s"]
    checks = {
        f"launch {record['launch_s'] * 1e6:.1f} us": record["launch_s"] <= MAX_LAUNCH_S,
        f"start {record['start_s']:.2f} s": record["start_s"] <= MAX_START_S,
        f"first start {record['first_start_s']:.1f} s": record["first_start_s"] <= MAX_FIRST_START_S,
        f"stream at {rate:.3f} of the device's rate": rate >= MIN_STREAM_RATE,
        f"{record['anonymous_nbytes'] / 1e6:.0f} MB anonymous": record["anonymous_nbytes"] <= MAX_ANONYMOUS_NBYTES,
    }
    return failed + [what for what, holds in checks.items() if not holds]


def _show(records: Sequence[dict[str, Any]]) -> None:
    numbers = [
        "batch 1, us",
        "float32 +",
        "uint8 +",
        "input() +",
        "launch, us",
        "stream",
        "first",
        "start, s",
        "anonymous, MB",
    ]
    shown = table(["precision", *numbers], right=numbers)
    for record in records:
        device = record["device_float32_s"]
        add_row(
            shown,
            record["precision"],
            f"{device * 1e6:.0f}",
            f"{(record['host_float32_s'] - device) * 1e6:.0f}",
            f"{(record['host_uint8_s'] - record['device_uint8_s']) * 1e6:.0f}",
            f"{(record['host_own_float32_s'] - device) * 1e6:.0f}",
            f"{record['launch_s'] * 1e6:.1f}",
            f"{record['resident_s'] / record['stream_s']:.3f}",
            f"{record['first_start_s']:.1f}",
            f"{record['start_s']:.2f}",
            f"{record['anonymous_nbytes'] / 1e6:.0f}",
        )
    console().print(shown)
    for record in records:
        for what in record["exceeded"]:
            console().print(f"{record['precision']}: {what}")


if __name__ == "__main__":
    sys.exit(main())
