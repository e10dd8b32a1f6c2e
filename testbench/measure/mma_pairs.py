"""Check float32 by pairs on mma.sync against float64, time VGG16 with it, and time every tile of its convolutions.

    python -m testbench.measure.mma_pairs [check] [time] [tiles] [--device cuda] [--output FILE]

Without a part: check and time.

- check: tests' cases and layers of VGG16, with every tile. Records the norm-wise error of each layer on the input that
  it had, and the bias <y - r, r> / <r, r>. Tiles of one layer have to give the same bits.
- time: VGG16 of random weights by FFMA (before), by pairs on mma.sync (after), by wgmma and in fp16, in turns. With
  torch on a GPU a way is `Engine.run(x, stream=..., out=..., wait=False)` captured in a CUDA graph, else the engine's
  launches back to back, the input on the device. Milliseconds of a batch: median and best of `ROUNDS` rounds. Records
  also scores beside FFMA's, each launch of the pairs alone, and whether an image has the same bits in a batch.
- tiles: each launch of the pairs alone, with every tile of conv_mma_3x3 that the layer can have: for the estimates in
  vgg16gpu/compiler/op_kernels/conv/conv_mma_3x3.py.

`--device cpu`, to see that the program works, takes few small cases and the layers up to relu2_2. Exit code 1 where a
case fails, bits differ, or a way to compute VGG16 that the device should have fails. Needs pytest, whose cases it
judges; torch for CUDA graphs alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias
from unittest import mock

import numpy as np

from tests.kernels.conv import test_conv_mma_first_pairs as first_layer
from tests.kernels.conv import test_conv_mma_pairs as convolutions
from tests.kernels.conv.test_conv_igemm import Case as Shapes
from tests.support import reference
from tests.support.kernel_harness import Result
from tests.support.mma_harness import FullyMmaCase, MmaTrial
from tests.support.wgmma_harness import ConvCase
from tests.support.wgmma_harness import check as judge
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.measure.layers import LayerEffort, measure_layers
from vgg16gpu.bench.records.record import write
from vgg16gpu.bench.tune.float32 import random_vgg16
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.ops import Array, Conv
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.op_kernels.base import OpContext
from vgg16gpu.compiler.op_kernels.conv import conv_mma
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import PAIR_TILES, HaloTile, has_halos
from vgg16gpu.compiler.op_kernels.gemm import gemm_mma_pairs
from vgg16gpu.compiler.op_kernels.mma import PAIR_CONV_TILES, MmaTile
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error
from vgg16gpu.program.launch import Kernel
from vgg16gpu.program.types import TensorDesc
from vgg16gpu.runtime.engine import Engine

Record: TypeAlias = dict[str, Any]
Round: TypeAlias = Callable[[int], float]  # seconds of a call, of this number of them

CHECK, TIME, TILES = "check", "time", "tiles"
BEFORE, AFTER = "ffma", "mma"
WAYS: Final = {  # kernels and precision
    BEFORE: ("ffma", "fp32"),
    AFTER: ("mma", "fp32"),
    "wgmma": ("wgmma", "fp32"),
    "fp16 mma": ("mma", "fp16"),
}
ROUNDS: Final = 15
SECONDS: Final = {"cuda": 0.05, "cpu": 0.0}  # of a round: one call at least
EFFORT: Final = LayerEffort(seconds=0.05)  # of a launch alone
BATCHES: Final = {"cuda": (1, 8, 32, 128), "cpu": (1, 2)}
SIZE: Final = {"cuda": 224, "cpu": 32}
OUTPUTS: Final = {"cuda": None, "cpu": ("relu2_2",)}

# Cases of a GPU beside those of the tests.
DEEP: Final = (
    Shapes((2, 512, 14, 14), 512),
    Shapes((2, 512, 14, 14), 512, pool=True),
    Shapes((2, 256, 28, 28), 256, pool=True),
    Shapes((1, 64, 56, 56), 64),
    Shapes((5, 128, 17, 23), 128),
)
LARGE_FIRST: Final = ConvCase("fp32", (2, 3, 224, 224), 64, pixels=True)
FULLY_BATCHES: Final = (1, 8, 33, 128)


@dataclass(frozen=True)
class Group:
    """Cases whose value `y` has the same bits. makers: by the name of a case, what makes its trial."""

    y: str
    makers: Mapping[str, Callable[[], MmaTrial]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, write, print; 1 if a case or a way failed, or bits differ."""
    options = _options(arguments)
    parts = options.parts or [CHECK, TIME]
    content: Record = {"what": __doc__}
    with closing(open_device(options.device).device) as device:
        content["environment"] = environment(device)
        if CHECK in parts:
            content[CHECK] = check(device)
            _write(options.output, content)
    if TIME in parts or TILES in parts:
        model = random_vgg16()
    if TIME in parts:
        content[TIME] = times(model, options.device)
        _write(options.output, content)
    if TILES in parts:
        content[TILES] = tiles(model, options.device)
        _write(options.output, content)
    faults = _faults(content)
    print(*faults, f"faults: {len(faults)}", sep="\n", flush=True)
    return int(bool(faults))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.mma_pairs", description="float32 by pairs on mma.sync."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{CHECK}, {TIME}, {TILES}; without: {CHECK} {TIME}")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to see that it works")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - {CHECK, TIME, TILES}
    if unknown:
        parser.error(f"no part of this program: {', '.join(sorted(unknown))}")
    return options


def _write(output: Path | None, content: Record) -> None:
    if output:  # what there is so far
        write(output, content)


# ---- Against float64


def check(device: Device) -> list[Record]:
    """Judge every case; return a record of each, with `error` where it failed, and `has_same_bits` as its group."""
    groups = _groups(device.facts.kind)
    _build(device, [make for group in groups for make in group.makers.values()])
    records = []
    for group in groups:
        first: Array | None = None
        for name, make in group.makers.items():
            record, result = _judged(device, name, make())
            if result is not None:
                value = result.value(group.y)
                first = value if first is None else first
                record["has_same_bits"] = bool(np.array_equal(value.view(np.uint32), first.view(np.uint32)))
            records.append(record)
            errors = [f"{one['value']} {one['error']:.2e} (bias {one['bias']:+.1e})" for one in record["values"]]
            print(name, *errors, record.get("error", ""), flush=True)
    return records


def _groups(kind: str) -> list[Group]:
    """Return the cases for a device of this kind, the tiles of one layer in a group."""
    shapes: Sequence[Shapes] = convolutions.SANITIZED
    first: Sequence[ConvCase] = first_layer.SMALL
    if kind == "cpu":
        chains = [FullyMmaCase("fp32", (3, 200), (70, 70))]
        tiled = chains[0]
    else:
        shapes = (*convolutions.HALOS, *DEEP, *convolutions.OTHERS)
        first = (*first_layer.SHAPES, *first_layer.SMALL, LARGE_FIRST)
        chains = [FullyMmaCase("fp32", (batch, 25088), (4096, 1000)) for batch in FULLY_BATCHES]
        tiled = FullyMmaCase("fp32", (19, 1500), (130, 70))
    groups = [_tiles_of(one) for one in shapes]
    groups += [Group("y", {f"first {case}": partial(first_layer.trial_of, case)}) for case in first]
    with_tiles = [FullyMmaCase(tiled.precision, tiled.shape, tiled.outputs, tile=tile) for tile in gemm_mma_pairs.TILES]
    groups.append(Group("v1", {str(case): case.trial for case in with_tiles}))
    groups += [Group("v1", {str(case): case.trial}) for case in chains]
    return groups


def _tiles_of(shapes: Shapes) -> Group:
    """Return the cases of a convolution with every tile of the kernel that it belongs to."""
    fitting: Sequence[MmaTile | HaloTile] = PAIR_CONV_TILES
    if has_halos(shapes.make()[0], shapes.shape[3]):
        fitting = [tile for tile in PAIR_TILES if tile.can(pool=shapes.pool)]
    cases = [convolutions.Case(shapes, tile=tile) for tile in fitting]
    return Group("y", {str(case): case.trial for case in cases})


def _build(device: Device, makers: Sequence[Callable[[], MmaTrial]]) -> None:
    """Compile the kernels of all cases at once: one after the other takes minutes. Errors are left to the cases."""
    kernels = set[Kernel]()
    for make in makers:
        with suppress(Error, AssertionError):
            trial = make()
            kernels |= trial.plan(device.facts, keep_values=trial.keep_values).kernels
    with suppress(Error):
        device.build(kernels)


def _judged(device: Device, name: str, trial: MmaTrial) -> tuple[Record, Result | None]:
    """Judge a case as its test does; return its record, and its values unless it cannot run."""
    record: Record = {"case": name, "values": []}
    try:
        result = judge(device, trial)
    except Exception as error:  # the next cases are judged all the same
        record["error"] = _described(error)
        try:
            result = trial.run(device)  # by how much it is wrong
        except Exception:
            return record, None
    stored = {value.name for value in result.program.values}
    for op in trial.graph.ops:
        x = result.value(op.x) if op.x in stored else trial.floats
        y, exact = result.value(op.y), reference.apply(op, x.astype(np.float64))
        bias = float(np.vdot(y.astype(np.float64) - exact, exact) / np.vdot(exact, exact))
        record["values"].append({"value": op.y, "error": layer_error(y, exact), "bias": bias})
    return record, result


# ---- Times


def times(model: Model, kind: str) -> Record:
    """Time VGG16 in every way and batch, in turns; return what was measured."""
    with ExitStack() as stack:
        engines, absent = dict[str, Engine](), dict[str, str]()
        for way in WAYS:
            try:
                engines[way] = stack.enter_context(_engine(model, kind, way))
            except Exception as error:  # a card without wgmma
                absent[way] = _described(error)
                print(f"{way}: {absent[way]}", flush=True)
        found: Record = {"absent": absent, "batches": [_batch(engines, kind, batch) for batch in BATCHES[kind]]}
        if AFTER in engines:
            found |= _of_pairs(engines[AFTER], kind)
        found["second_passes"] = {way: engine.second_passes for way, engine in engines.items()}
    return found


def _engine(model: Model, kind: str, way: str) -> Engine:
    kernels, precision = WAYS[way]
    chosen: Any = {"device": kind, "size": SIZE[kind], "batch": BATCHES[kind], "outputs": OUTPUTS[kind]}
    return Engine(model, precision=precision, kernels=kernels, **chosen)


def _batch(engines: Mapping[str, Engine], kind: str, batch: int) -> Record:
    """Return the times of all ways for a batch, and their scores' distance from FFMA's, norm-wise."""
    x, ways = _images(kind, batch), list[Record]()
    scores = {way: np.asarray(engine.run(x)) for way, engine in engines.items()}
    with ExitStack() as stack:
        rounds = {way: stack.enter_context(_round(engine, x)) for way, engine in engines.items()}
        calls, seconds = dict[str, int](), dict[str, list[float]]()
        for way, one_round in rounds.items():
            one_round(1)
            calls[way], seconds[way] = max(1, round(SECONDS[kind] / one_round(1))), []
        for _ in range(ROUNDS):
            for way, one_round in rounds.items():
                seconds[way].append(one_round(calls[way]))
    for way in engines:
        ms = {"median_ms": 1e3 * median(seconds[way]), "best_ms": 1e3 * min(seconds[way])}
        distance = layer_error(scores[way], scores[BEFORE]) if BEFORE in scores else None
        ways.append({"way": way, **ms, "calls_of_a_round": calls[way], "distance": distance})
    texts = [f"{way['way']} {way['median_ms']:.4g} (best {way['best_ms']:.4g})" for way in ways]
    print(f"batch {batch}, ms:", *texts, sep="  ", flush=True)
    return {"batch": batch, "ways": ways}


def _images(kind: str, batch: int) -> Array:
    """Return float32 images (N, 3, H, W); image 0 is the same in every batch."""
    return np.random.default_rng(5).standard_normal((batch, 3, SIZE[kind], SIZE[kind]), np.float32)


@contextmanager
def _round(engine: Engine, x: Array) -> Iterator[Round]:
    """Yield a function that calls the engine on images and returns the seconds of a call."""
    if engine.device.facts.kind == "cpu" or find_spec("torch") is None:
        engine.run(x)  # leaves the input on the device
        yield partial(engine.device.measure_back_to_back, engine.executor.launcher(len(x)))
        return
    import torch  # noqa: PLC0415 - not on every machine that checks

    from testbench.measure.torch_calls import by_events, captured  # noqa: PLC0415 - imports torch

    images, stream = torch.from_numpy(x).cuda(), torch.cuda.Stream()
    out = torch.empty((len(x), *engine.program.outputs[0].shape[1:]), dtype=torch.float32, device="cuda")

    def enqueue() -> None:
        engine.run(images, stream=stream, out=out, wait=False)

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        replay = captured(enqueue, stream)

    def one_round(calls: int) -> float:
        with torch.cuda.stream(stream):
            return by_events(replay, calls)

    yield one_round
    engine.check()


def _of_pairs(engine: Engine, kind: str) -> Record:
    """Return each launch's time by batch, and whether image 0 alone has the bits that it has in the largest batch."""
    most = _images(kind, max(BATCHES[kind]))
    alone, together = (np.asarray(engine.run(x))[0] for x in (most[:1], most))
    same = bool(np.array_equal(alone.view(np.uint32), together.view(np.uint32)))
    return {"has_same_bits_in_a_batch": same, "launches": _launches(engine, kind)}


def _launches(engine: Engine, kind: str) -> list[Record]:
    """Return microseconds of each launch alone, caches warm, for every batch."""
    found = []
    for program in sorted(engine.plan.programs, key=lambda program: program.batch):
        engine.run(_images(kind, program.batch))  # every launch reads what the one before it has stored
        steps = measure_layers(engine, program, lambda _: 0.0, EFFORT)
        us = [{"label": step.label, "kernel": step.kernel, "us": 1e6 * step.median_s} for step in steps]
        found.append({"batch": program.batch, "steps": us})
        print(f"batch {program.batch}, us:", *(f"{one['kernel']} {one['us']:.1f}" for one in us), sep="  ", flush=True)
    return found


def tiles(model: Model, kind: str) -> list[Record]:
    """Time each launch of VGG16 with every tile of conv_mma_3x3; layers that a tile cannot have keep their own."""
    chosen, records = conv_mma._pair_tile, []
    for tile in PAIR_TILES:

        def forced(
            layer: OpContext[Conv], x: TensorDesc, out_h: int, out_w: int, tile: HaloTile = tile
        ) -> MmaTile | HaloTile:
            own = chosen(layer, x, out_h, out_w)
            return tile if isinstance(own, HaloTile) and tile.can(pool=layer.op.pool) else own

        print(f"tile of {tile.rows} rows", flush=True)
        with mock.patch.object(conv_mma, "_pair_tile", forced), _engine(model, kind, AFTER) as engine:
            records.append({"rows": tile.rows, "launches": _launches(engine, kind)})
    return records


# ---- Faults


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def _faults(content: Record) -> list[str]:
    """Name the cases and ways that failed, and those that gave other bits."""
    found = [f"{record['case']}: {record['error']}" for record in content.get(CHECK, ()) if "error" in record]
    found += [
        f"{record['case']}: other bits than its first tile"
        for record in content.get(CHECK, ())
        if not record.get("has_same_bits", True)
    ]
    timed = content.get(TIME, {})
    found += [f"{way}: {timed['absent'][way]}" for way in (BEFORE, AFTER) if way in timed.get("absent", ())]
    if not timed.get("has_same_bits_in_a_batch", True):
        found.append("time: image 0 alone has other bits than in the largest batch")
    return found


if __name__ == "__main__":
    sys.exit(main())
