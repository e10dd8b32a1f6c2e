"""Measure time and energy of one function whose channels come in other orders: fewer bits toggle in some.

    python -m testbench.measure.channel_order MODEL.onnx [--precision fp16,bf16,int8] [--batch 128] [--output FILE]

The file is a chain of convolutions with ReLU and a fully connected layer behind them (a VGG, as torch exports it). Its
channels are taken as they come, sorted by how often they are zero on pictures, and at random, which is the control:
outputs of a layer and inputs of the next one change places together, so the function stays; in int8 all have the scales
of the file's order. Orders run in turns under load.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.measure.layers import EngineContender
from vgg16gpu.bench.measure.timing import LostError, Sustained, Watch, measure_sustained
from vgg16gpu.bench.records.record import write
from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.compiler.graph.ops import Array, Conv
from vgg16gpu.compiler.quantization.scheme import Scale
from vgg16gpu.errors import ModelError
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import calibrate, calibration_engine
from vgg16gpu.runtime.engine import Engine

FILE, ZEROS, RANDOM = "as in the file", "by zeros", "at random"
SEED = 5  # of the random order
PICTURES = 4  # on which zeros are counted
SAME = 1e-3  # scores of one function in fp32, whose sums are added in other orders

Order: TypeAlias = Sequence[npt.NDArray[np.intp]]  # of each convolution's output channels


@dataclass(frozen=True)
class Row:
    """One order in one precision: the median of the rounds, and in each its time by that of the file's order."""

    precision: str
    order: str
    seconds: float
    ratios: Sequence[float]
    power_w: Sequence[float | None]  # None where nobody reads it, as sm_mhz
    sm_mhz: Sequence[float | None]
    difference: float  # of a score from that of the file's order, at most


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="fp16,bf16,int8")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3, help="of load before the first number")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        with Engine(options.model, device=options.device, batch=PICTURES, keep_values=True) as engine:
            pictures = sample_inputs(tuple(engine.program.input.shape[1:]))
            orders = orders_of(engine, pictures[:PICTURES])
            where = environment(engine.device)
        models = save_orders(options.model, orders, Path(folder))
        check_function(models, options.device, pictures[:PICTURES])
        rows: list[Row] = []
        for precision in options.precision.split(","):
            rows += measure(models, options.device, precision, pictures, options.batch, options.seconds, options.rounds)
    for row in rows:
        told = [f"{1e3 * row.seconds:.3f} ms", *(f"{power:.0f} W" for power in row.power_w if power is not None)]
        print(f"{row.precision} {row.order:14} {', '.join(told)}")
    if options.output:
        what = "time and power of one function whose channels come in other orders, in turns under load"
        content = {"what": what, "model": str(options.model), "batch": options.batch, "environment": where}
        write(options.output, {**content, "rows": [asdict(row) for row in rows]})
    return 0


def orders_of(engine: Engine, x: Array) -> dict[str, Order]:
    """Every order by its name; zeros are those that the next layer reads, behind ReLU and a pool that follows it."""
    engine.run(x)
    values = {names[-1]: array for names, array in engine.read_values()}
    zeros = [(values[op.y] == 0).mean(axis=(0, 2, 3)) for op in engine.graph.ops if isinstance(op, Conv)]
    rng = np.random.default_rng(SEED)
    return {
        FILE: [np.arange(len(share)) for share in zeros],
        ZEROS: [np.argsort(share, kind="stable") for share in zeros],
        RANDOM: [rng.permutation(len(share)) for share in zeros],
    }


def save_orders(model: Path, orders: Mapping[str, Order], folder: Path) -> dict[str, Path]:
    """A file of the same function for each order."""
    paths = {name: folder / f"{index}.onnx" for index, name in enumerate(orders)}
    for name, order in orders.items():
        proto = onnx.load(model)
        _permute(proto.graph, order)
        onnx.save(proto, paths[name])
    return paths


def _permute(graph: onnx.GraphProto, order: Order) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    weights = {name: numpy_helper.to_array(tensor) for name, tensor in tensors.items()}
    layers = [node for node in graph.node if node.op_type == "Conv"]
    layers.append(next(node for node in graph.node if node.op_type == "Gemm"))
    for (node, following), channels in zip(pairwise(layers), order, strict=True):
        for name in node.input[1:]:
            weights[name] = weights[name][channels]
        read = weights[following.input[1]]
        # Flat for the fully connected layer, which reads all pixels of a channel, one behind another.
        by_channel = read.reshape(len(read), len(channels), -1)[:, channels]
        weights[following.input[1]] = by_channel.reshape(read.shape)
    for name, tensor in tensors.items():
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weights[name]), name))


def check_function(models: Mapping[str, Path], device: str, x: Array) -> None:
    """Raises ModelError where a file's scores in fp32 are not those of the file's order: it is no such chain."""
    scores = {}
    for name, model in models.items():
        with Engine(model, device=device, batch=len(x)) as engine:
            scores[name] = engine.run(x)
        if not np.allclose(scores[name], scores[FILE], rtol=0, atol=SAME):
            raise ModelError(f"with its channels {name} the network is another one; take a VGG as torch exports it")


def measure(
    models: Mapping[str, Path], device: str, precision: str, pictures: Array, batch: int, seconds: float, rounds: int
) -> list[Row]:
    """All orders in one precision, in turns. Raises what Engine raises, and LostError of one that could not run on."""
    x = np.resize(pictures, (batch, *pictures.shape[1:]))
    scales = _scales(models[FILE], device, pictures) if precision == "int8" else None  # of values, by their names
    with ExitStack() as stack:
        contenders = {}
        for name, model in models.items():
            engine = Engine(model, device=device, precision=precision, batch=batch, scales=scales)
            contenders[name] = EngineContender(stack.enter_context(engine), x, precision)
        scores = {name: contender.scores() for name, contender in contenders.items()}
        found: list[list[Sustained]] = []
        for _ in range(rounds):
            turn = measure_sustained(list(contenders.values()), seconds, Watch(engine.device.facts.kind))
            found.append([_known(sustained) for sustained in turn])
    return [
        _row(precision, name, turns, found, float(np.abs(scores[name] - scores[FILE]).max()))
        for name, turns in zip(contenders, zip(*found, strict=True), strict=True)
    ]


def _scales(model: Path, device: str, pictures: Array) -> Mapping[str, Scale]:
    with calibration_engine(model, device=device) as engine:
        return calibrate(engine, [NamedInput(str(index), picture) for index, picture in enumerate(pictures)]).scales


def _known(sustained: Sustained | LostError | None) -> Sustained:
    if isinstance(sustained, LostError):
        raise sustained
    assert sustained is not None  # an engine runs on the device
    return sustained


def _row(
    precision: str, name: str, turns: Sequence[Sustained], found: Sequence[Sequence[Sustained]], difference: float
) -> Row:
    ratios = [turn.summary.median_s / first.summary.median_s for turn, (first, *_) in zip(turns, found, strict=True)]
    return Row(
        precision=precision,
        order=name,
        seconds=statistics.median(turn.summary.median_s for turn in turns),
        ratios=ratios,
        power_w=[turn.gpu.power_w if turn.gpu else None for turn in turns],
        sm_mhz=[turn.gpu.sm_mhz if turn.gpu else None for turn in turns],
        difference=difference,
    )


if __name__ == "__main__":
    sys.exit(main())
