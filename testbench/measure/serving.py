"""How fast `vgg16gpu serve` answers, beside the road that it is built on: its own server, its own clients, one machine.

    python -m testbench.measure.serving MODEL --pictures DIR --output FILE [--against fastapi]      needs serving/

The server has half of the cores, and as many front ends as it starts there by itself, or `--front-ends`. Processes of
clients have the other half. JPEG files and pixels, a picture a request, by `testbench.server`; with `--decode-gpu`
JPEG files once more. Beside it: what `infer` makes of the same pictures on half of the cores (`testbench.pipeline`),
and what one picture takes without a server, decoded here and run by an engine of batch 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import run
from typing import Any, Final

from tests.serving.running import serving
from vgg16gpu import Engine
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.io.preprocessing import default_preprocess
from vgg16gpu.pictures.images import fitted
from vgg16gpu_serving.command import front_ends

REPEATS: Final = 200  # of a lone picture
JPEG, UINT8 = "jpeg", "uint8"
LEAST: Final = {"vgg16gpu, jpeg: by the pipeline": 0.8, "vgg16gpu, uint8: answers/s": 5000.0}
MOST: Final = {
    f"vgg16gpu, {form}: ms{what}": bound
    for form in (JPEG, UINT8)
    for what, bound in ((" beyond decoding and running", 1.5), (", p99 at half load", 10.0))
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and say the ratios."""
    options = _options(arguments)
    cores = Cores.split(2)
    decoders = ("cpu", "gpu") if options.decode_gpu else ("cpu",)
    options.front_ends = {by: options.front_ends or cores.front_ends(options.device, by) for by in decoders}
    content: dict[str, Any] = {
        "what": __doc__,
        "front_ends": options.front_ends,
        "client_processes": len(cores.clients),
    }
    content["alone"] = _alone(options)
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as name:
        folder = Path(name)
        with on_cores(cores.server):
            content["pipeline"] = _pipeline(options, folder / "pipeline.json")
        against = ("--against", options.against, "--device", options.device) if options.against else ()
        content["serving"] = _served(options, cores, "cpu", (f"{JPEG},{UINT8}", *against), folder / "cpu.json")
        if options.decode_gpu:
            content["serving_decode_gpu"] = _served(options, cores, "gpu", (JPEG,), folder / "gpu.json")
    content["ratios"] = _ratios(content)
    write(options.output, {**content, "environment": content["alone"].pop("environment")})
    for what, number in content["ratios"].items():
        print(f"{what}: {number:.4g}{_judged(what, number) if options.device == 'cuda' else ''}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each load")
    parser.add_argument("--clients", default="1,64,256")
    parser.add_argument("--front-ends", type=int, metavar="N", help="default: as many as the server starts by itself")
    parser.add_argument("--against", default="", metavar="NAMES", help="fastapi")
    parser.add_argument("--decode-gpu", action="store_true", help="also a server with --decode gpu")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="latency over load")
    return parser.parse_args(arguments)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What measurements of a server are told: the model, its device and precision, pictures, where to write."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pictures", type=Path, required=True, metavar="DIR", help="JPEG files")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    return parser


@dataclass(frozen=True)
class Cores:
    """Who stays on which."""

    server: tuple[int, ...]
    clients: tuple[int, ...]

    @classmethod
    def split(cls, parts: int) -> Cores:
        """The first of so many equal parts for the server, one at least; the others are for clients."""
        usable = sorted(os.sched_getaffinity(0))
        count = max(1, len(usable) // parts)
        return cls(tuple(usable[:count]), tuple(usable[count:]) or tuple(usable))

    def front_ends(self, device: str, decode: str = "cpu") -> int:
        """As many as a server starts there by itself."""
        with on_cores(self.server):
            return front_ends(device_waits=device == "cuda" and decode == "cpu")

    @property
    def of_clients(self) -> tuple[str, str]:
        """Return the option by which `testbench.server` takes the cores of clients."""
        return "--client-cores", ",".join(map(str, self.clients))


def _alone(options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of one picture without a server: decoded and fitted, and run."""
    data = next(iter(sorted(options.pictures.iterdir()))).read_bytes()
    with Engine(options.model, device=options.device, precision=options.precision) as engine:
        channels, height, width = engine.program.input.shape[1:]
        preprocess = default_preprocess(channels)

        def decode() -> Any:
            return fitted(data, "picture", channels, height, width, preprocess)

        pixels = decode()[None]
        decoding, running = _median(decode), _median(lambda: engine.run(pixels))
        return {"decode_s": decoding, "run_s": running, "environment": environment(engine.device)}


def _median(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Commands that start meanwhile stay on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _pipeline(options: argparse.Namespace, record: Path) -> dict[str, Any]:
    """The record of `testbench.pipeline`."""
    where = ("--device", options.device, "--precision", options.precision)
    words = (options.model, "--pictures", options.pictures, *where)
    effort = ("--decode", ",".join(options.front_ends), "--repeats", 3, "--seconds", 1)
    return _measured("testbench.pipeline", (*words, *effort), record)


def _served(
    options: argparse.Namespace, cores: Cores, decode: str, bodies: Sequence[str], record: Path
) -> dict[str, Any]:
    """The record of `testbench.server`, of a server that decodes by `decode`."""
    devices = ("--devices", "cuda:0") if options.device == "cuda" else ()
    workers = str(options.front_ends[decode])
    asked = ("--precision", options.precision, "--workers", workers, "--decode", decode, "--no-page")
    with on_cores(cores.server), serving(*devices, *asked, model=options.model, threads=None) as server:
        plot = ("--plot", options.plot) if options.plot and decode == "cpu" else ()
        words = (f"http://127.0.0.1:{server.port}", "--model", options.model, "--pictures", options.pictures, *plot)
        load = ("--clients", options.clients, "--seconds", options.seconds, *cores.of_clients)
        found = _measured("testbench.server", (*words, *load, "--bodies", *bodies), record)
        return {**found, "stats": server.ask("GET", f"/v2/models/{found['serving']['model']}/stats").json}


def _measured(module: str, words: Sequence[object], record: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *map(str, words), "--output", str(record)]
    run(command, check=True, stdout=sys.stderr)
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def _ratios(content: dict[str, Any]) -> dict[str, float]:
    """What the figures come to."""
    pipeline = {run["decode"]: run["rows_per_s"] for run in content["pipeline"]["runs"]}
    found: dict[str, float] = {f"pipeline, decoded by the {by.upper()}: pictures/s": pipeline[by] for by in pipeline}
    for kind, decode in (("serving", "cpu"), ("serving_decode_gpu", "gpu")):
        loads = content.get(kind, {"loads": []})["loads"]
        for server, form in dict.fromkeys((row["server"], row["form"]) for row in loads):
            rows = [row for row in loads if (row["server"], row["form"]) == (server, form)]
            label = f"{server}, {form}{', decoded on the GPU' if kind != 'serving' else ''}"
            found |= _of_loads(label, form, rows, content["alone"])
            if form == JPEG:
                found[f"{label}: by the pipeline"] = found[f"{label}: answers/s"] / pipeline[decode]
    return found


def _judged(what: str, number: float) -> str:
    """Whether a promise for one GPU with 16 cores is kept; nothing where there is none."""
    if what in LEAST:
        return f" (at least {LEAST[what]:g}: {'met' if number >= LEAST[what] else 'not met'})"
    return f" (at most {MOST[what]:g}: {'met' if number <= MOST[what] else 'not met'})" if what in MOST else ""


def _of_loads(label: str, form: str, rows: Sequence[dict[str, Any]], alone: dict[str, Any]) -> dict[str, float]:
    """The most, a lone request beyond its own time, and p99 at half of the most."""
    closed = [row for row in rows if row["load"] == "closed"]
    opened = [row for row in rows if row["load"] == "open"]
    found = {f"{label}: answers/s": max(row["answers_per_s"] for row in closed)}
    own = alone["run_s"] + (alone["decode_s"] if form == JPEG else 0.0)
    for row in closed:
        if row["amount"] == 1:
            found[f"{label}: ms of a lone request"] = 1e3 * row["latency_s"]["p50"]
            found[f"{label}: ms beyond decoding and running"] = 1e3 * (row["latency_s"]["p50"] - own)
    if len(opened) == 3:  # a quarter, a half and four fifths
        found[f"{label}: ms, p99 at half load"] = 1e3 * opened[1]["latency_s"]["p99"]
    return found


if __name__ == "__main__":
    sys.exit(main())
