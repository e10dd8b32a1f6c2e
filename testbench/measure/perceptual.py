"""Features and perceptual losses with torch tensors in and out, beside torch and JAX: milliseconds a call.

    python -m testbench.measure.perceptual MODEL.onnx [--precision bf16,fp32] [--case 1x256,16x256] [--output FILE]

The layers are relu1_2, relu2_2, relu3_3 and relu4_3; the loss is the sum of their mean squared differences to a target,
with the gradient to the images. Every way of every cell is called for some tenths of a second after a warm-up: the
median of `ROUNDS` rounds of back to back calls, and the best round. At the largest number of images also sustained,
after `--sustained` seconds of calls, and cool, the round that follows a pause of `COOL` seconds. Who differs in a first
result from torch's float32 by more than `FAR` says so. torch is there in both orders of memory, launch by launch, as a
CUDA graph, and (`--peers compile`) compiled with max-autotune, which takes minutes; in fp32 also with TF32. A way that
fails leaves the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from testbench.measure import perceptual_ways
from testbench.measure.perceptual_ways import FEATURES, LOSS, Case
from testbench.measure.torch_calls import Call, by_wall, timed
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device

LAYERS: Final = ("relu1_2", "relu2_2", "relu3_3", "relu4_3")
PRECISIONS: Final = ("bf16", "fp16", "fp32")
CASES: Final = ("1x256", "4x256", "16x256", "1x512")
PEERS: Final = ("torch", "jax", "compile")
ROUNDS: Final = 7
SECONDS: Final = 0.04  # of a round
COOL: Final = 1.0  # seconds of a pause
NOT_HELD: Final = f"{'-':>9} {'-':>9}"
FAR: Final = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}  # norm-wise, of a first result from torch's in float32

Ways = Callable[[Case], Generator[tuple[str, Call]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table for each task and precision; 1 if a way failed or was far off."""
    options = _options(arguments)
    model, deadline = Model(options.model), time.monotonic() + options.budget
    content: dict[str, Any] = {"what": __doc__, "cells": []}
    with closing(open_device(options.device).device) as device:
        content["environment"] = environment(device)
    cases = [tuple(map(int, case.split("x"))) for case in options.case]
    most = max(count for count, _ in cases)
    for precision in options.precision:
        for task in (FEATURES, LOSS):
            for count, size in cases:
                case = Case(model, LAYERS, options.device, precision, task, count, size)
                sustained = options.sustained if count == most else 0.0
                content["cells"].append(_cell(case, _ways(case, options.peers), sustained, deadline))
                if options.output:  # what there is so far
                    write(options.output, content)
            _show(content["cells"][-len(cases) :])
    return int(any("error" in way or way.get("is_far") for cell in content["cells"] for way in cell["ways"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m testbench.measure.perceptual", description="Features and losses.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it works")
    parser.add_argument("--precision", type=listed, default=list(PRECISIONS))
    parser.add_argument("--case", type=listed, default=list(CASES), metavar="NxSIZE,...")
    parser.add_argument("--peers", type=listed, default=["torch", "jax"], help=", ".join(PEERS))
    parser.add_argument("--sustained", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="then no further way is begun")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    return parser.parse_args(arguments)


def _ways(case: Case, peers: Sequence[str]) -> list[tuple[str, Ways]]:
    """Who is measured, ours first, then the one that all are compared with."""
    tf32s = (False, True) if case.precision == "fp32" and case.device != "cpu" else (False,)
    found: list[tuple[str, Ways]] = [("vgg16gpu", perceptual_ways.ours)]
    for tf32 in tf32s:
        if "torch" in peers:
            found.append(("torch", partial(perceptual_ways.torchs, tf32=tf32)))
        if "jax" in peers:
            found.append(("JAX", partial(perceptual_ways.jaxs, tf32=tf32)))
        if "compile" in peers:
            found.append(("torch", partial(perceptual_ways.torchs, tf32=tf32, compiles=True)))
    return found


def _cell(case: Case, ways: Sequence[tuple[str, Ways]], sustained: float, deadline: float) -> dict[str, Any]:
    wanted = _reference(case)
    found: list[dict[str, Any]] = []
    for whose, made in ways:
        iterator, name = made(case), whose
        while time.monotonic() < deadline:
            try:
                name, call = next(iterator)
                found.append({"way": name, **_timed(case, call, sustained), **_distance(case, call(), wanted)})
            except StopIteration:
                break
            except Exception as error:
                after = f"{whose}, after {name}" if name != whose else whose
                found.append({"way": after, "error": f"{type(error).__name__}: {error}"[:300]})
                break
        iterator.close()
    return {"task": case.task, "precision": case.precision, "count": case.count, "size": case.size, "ways": found}


def _reference(case: Case) -> np.ndarray[Any, Any]:
    """What the first result should be, by torch in float32."""
    exact = Case(case.model, case.layers, case.device, "fp32", case.task, case.count, case.size)
    _, call = next(perceptual_ways.torchs(exact))
    return _first(call(), exact)


def _distance(case: Case, result: Any, wanted: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Norm-wise: of relu1_2's values, or of the losses."""
    found = _first(result, case)
    if case.task == LOSS and found.size > 1:
        found = found.mean(keepdims=True)  # a loss for each image
    distance = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    return {"distance": distance, "is_far": not distance <= FAR[case.precision]}


def _first(result: Any, case: Case) -> np.ndarray[Any, Any]:
    """The first result as float64, (N, C, H, W) or losses."""
    first = result[0]
    is_nhwc = case.task == FEATURES and type(first).__module__.startswith("jax")
    if not isinstance(first, np.ndarray):
        first = first.detach() if isinstance(first, torch.Tensor) else torch.from_dlpack(first)
        first = first.to("cpu", torch.float64).numpy()
    array = np.asarray(first, np.float64)
    return np.moveaxis(array, -1, 1) if is_nhwc else array.reshape(-1) if case.task == LOSS else array


def _timed(case: Case, call: Call, sustained: float) -> dict[str, float]:
    one_round = partial(by_wall, case.device)
    found = timed(one_round, call, rounds=ROUNDS, seconds=SECONDS)
    if sustained:
        times, end = int(found["calls_of_a_round"]), time.perf_counter() + sustained
        while time.perf_counter() < end:
            last = one_round(call, times)
        time.sleep(COOL)
        found |= {"sustained_ms": 1e3 * last, "cool_ms": 1e3 * one_round(call, times)}
    return found


def _show(cells: Sequence[dict[str, Any]]) -> None:
    print(f"\n{cells[0]['task']}, {cells[0]['precision']}, median ms a call", flush=True)
    names = dict.fromkeys(way["way"] for cell in cells for way in cell["ways"])
    print(
        f"{'':44}" + "".join(f"{cell['count']:>6}x{cell['size']}" for cell in cells) + " sustained      cool  distance"
    )
    for name in names:
        ways: list[dict[str, Any]] = [next((way for way in cell["ways"] if way["way"] == name), {}) for cell in cells]
        times = "".join(f"{way['median_ms']:10.4g}" if "median_ms" in way else f"{'-':>10}" for way in ways)
        held = [f"{way['sustained_ms']:9.4g} {way['cool_ms']:9.4g}" for way in ways if "sustained_ms" in way]
        far = max((way["distance"] for way in ways if "distance" in way), default=float("nan"))
        errors = {way["error"][:60] for way in ways if "error" in way}
        print(f"{name:44}{times} {held[-1] if held else NOT_HELD} {far:9.1e} {'; '.join(errors)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
