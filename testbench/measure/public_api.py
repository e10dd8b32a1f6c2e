"""Time `Engine.run` on torch's tensors on the GPU, as users call it: captured in a CUDA graph, enqueued, waited for.

    python -m testbench.measure.public_api MODEL.onnx [--precision int8] [--batch 1,128] [--kernels mma] [--output FILE]

For each precision and batch an engine of that batch runs float32 images into the caller's own array (`out=`), on a
stream of torch's:

- CUDA graph: `run(x, stream=..., out=..., wait=False)` captured by torch.cuda.graph, replays between two events;
- eager: the same call, between two events, so that what the host takes longer than the kernels is in it;
- waiting: `run(x, stream=..., out=...)`, by the host's clock. With `--device cpu`, where arrays lie on the host, this
  is the only way, and gives a new array.

Milliseconds of a batch are the median and the best of `ROUNDS` rounds of back to back calls, after `WARM` seconds of
them. Behind its rounds each way has to give the bits of a plain `run(x)`. int8 reads the scales that `vgg16gpu
calibrate` wrote beside the model. A way that fails is recorded with its error and leaves the others; exit code 1 then,
and where bits differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from testbench.measure.torch_calls import Call, Round, by_events, by_wall, captured, timed
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.choices import KERNELS, PRECISIONS
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices import open_device
from vgg16gpu.runtime.engine import Engine

CARD: Final = "cuda"  # where the tensors lie
GRAPH, EAGER, WAITING, ENGINE = "CUDA graph", "eager", "waiting", "engine"
FORMS: Final = (GRAPH, EAGER, WAITING)
BATCHES: Final = (1, 8, 32, 128)
ROUNDS: Final = 7
SECONDS: Final = 0.05  # of a round
WARM: Final = 0.3  # seconds of calls before the rounds

Record = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to call an engine. make: returns the call; outputs: calls it once and returns the outputs on the host."""

    name: str
    make: Callable[[], Call]
    one_round: Round
    outputs: Callable[[Call], Array]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print a table; 1 if a way failed or gave other bits."""
    options = _options(arguments)
    calls = list[Record]()
    content: Record = {"what": __doc__, "model": Path(options.model).name, "family": options.kernels, "calls": calls}
    with closing(open_device(options.device).device) as device:
        content["environment"] = environment(device)
    for precision in options.precision:
        for batch in options.batch:
            calls += [{"precision": precision, "batch": batch, **found} for found in _cell(options, precision, batch)]
            if options.output:  # what there is so far
                write(options.output, content)
    _show(content)
    return int(bool(_faults(calls)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in listed(text)]

    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.public_api", description="Engine.run on torch's tensors."
    )
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to see that it works")
    parser.add_argument("--precision", type=listed, default=list(PRECISIONS), metavar="NAMES")
    parser.add_argument("--batch", type=numbers, default=list(BATCHES), metavar="NUMBERS")
    parser.add_argument("--kernels", choices=KERNELS, default=KERNELS[0], help="the family, as for Engine")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    return parser.parse_args(arguments)


def _cell(options: argparse.Namespace, precision: str, batch: int) -> list[Record]:
    """Measure all ways of a precision and a batch; what fails is a record with its error."""
    found = list[Record]()
    chosen: Any = {"device": options.device, "precision": precision, "batch": batch, "kernels": options.kernels}
    try:
        with Engine(options.model, **chosen) as engine:
            x = np.random.default_rng(0).standard_normal((batch, *engine.program.input.shape[1:]), np.float32)
            with (_on_host if options.device == "cpu" else _on_card)(engine, x) as (expected, ways):
                found += [_measured(way, expected) for way in ways]
            engine.check()
    except Exception as error:
        found.append({"way": ENGINE, "error": _described(error)})
    return found


@contextmanager
def _on_host(engine: Engine, x: Array) -> Iterator[tuple[Array, list[Way]]]:
    """Yield the outputs of a plain run and the one way of arrays on the host."""

    def run() -> Any:
        return engine.run(x)

    yield np.asarray(run()), [Way(WAITING, lambda: run, partial(by_wall, "cpu"), lambda call: np.asarray(call()))]


@contextmanager
def _on_card(engine: Engine, x: Array) -> Iterator[tuple[Array, list[Way]]]:
    """Yield the outputs of a plain run, on the host, and the ways of tensors on the GPU, on a stream of their own."""
    images = torch.from_numpy(x).to(CARD)
    expected: Array = torch.from_dlpack(engine.run(images)).cpu().numpy()
    out = torch.empty(expected.shape, dtype=torch.float32, device=images.device)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()

    def enqueue() -> None:
        engine.run(images, stream=stream, out=out, wait=False)

    def run() -> None:
        engine.run(images, stream=stream, out=out)

    def outputs(call: Call) -> Array:
        out.fill_(torch.nan)  # so that a call that writes nothing is seen
        call()
        stream.synchronize()
        return np.asarray(out.cpu().numpy())

    with torch.cuda.stream(stream):
        yield (
            expected,
            [
                Way(WAITING, lambda: run, partial(by_wall, "cpu"), outputs),  # each call waits by itself
                Way(EAGER, lambda: enqueue, by_events, outputs),
                Way(GRAPH, lambda: captured(enqueue, stream), by_events, outputs),
            ],
        )


def _measured(way: Way, expected: Array) -> Record:
    try:
        call = way.make()
        times = timed(way.one_round, call, rounds=ROUNDS, seconds=SECONDS, warm=WARM)
        return {"way": way.name, **times, "has_same_bits": _are_same_bits(way.outputs(call), expected)}
    except Exception as error:
        return {"way": way.name, "error": _described(error)}


def _are_same_bits(found: Array, expected: Array) -> bool:
    return bool(np.array_equal(found.view(np.uint32), expected.view(np.uint32)))


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _faults(calls: Sequence[Record]) -> list[str]:
    """Name the ways that failed or gave other bits."""
    return [
        f"{call['precision']} x{call['batch']}, {call['way']}: {call.get('error', 'other bits than a plain run')}"
        for call in calls
        if not call.get("has_same_bits")
    ]


def _show(content: Record) -> None:
    calls = content["calls"]
    forms = [form for form in FORMS if any(call["way"] == form for call in calls)]
    print(f"{content['model']}, kernels {content['family']}: ms a batch, median and best of {ROUNDS} rounds")
    print("precision batch" + "".join(f"{form:>20}" for form in forms))
    for precision, batch in dict.fromkeys((call["precision"], call["batch"]) for call in calls):
        named = {"precision": precision, "batch": batch}
        row = [_shown(calls, {**named, "way": form}) for form in forms]
        print(f"{precision:9} {batch:5}" + "".join(f"{text:>20}" for text in row))
    print(*_faults(calls), sep="\n", end="\n" if _faults(calls) else "")


def _shown(calls: Sequence[Record], names: Record) -> str:
    """Return the times of the call that has these names; a dash where it has none."""
    found = (call for call in calls if "median_ms" in call and names.items() <= call.items())
    return next((f"{call['median_ms']:.4g} {call['best_ms']:8.4g}" for call in found), "-")


if __name__ == "__main__":
    sys.exit(main())
