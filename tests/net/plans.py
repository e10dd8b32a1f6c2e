"""Compare the plans that the compiler makes with recorded hashes: a refactoring must leave all of them equal.

    python -m tests.net.plans                        # one line: all equal, or what differs first; exit code 1 then
    python -m tests.net.plans --record               # write tests/net/plans.json, where a change of plans is meant
    python -m tests.net.plans --dump DIR --only fp16 # write the texts of the cases that have this in their names

VGG11 to 19 with weights of zero, digits with its own, on made-up facts of an H200, an A100, an RTX 4090 and a CPU:
whole nets and features at batches 1 to 128, gradients and losses at 1 and 16, in every precision. No device is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.net.text import PlanText
from vgg16gpu.compiler.compile import EngineOptions, compile_model
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.loss import Term, loss_graph, pair_graph, target_graph
from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op, Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale, quantised_inputs, stored_scales
from vgg16gpu.compiler.vgg.architecture import CONVOLUTIONS
from vgg16gpu.devices.tuned import TABLES, Kin, table
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.plans.gradients import gradient_plan

RECORD: Final = Path(__file__).with_name("plans.json")
PRECISIONS: Final = ("fp32", "fp16", "bf16", "int8")
DIFFERENTIABLE: Final = PRECISIONS[:3]
BATCHES: Final = (1, 2, 8, 32, 128)
FEW: Final = (1, 16)  # of gradients and losses
WIDTHS: Final = (64, 128, 256, 512, 512)
_MEMORY: Final = 1 << 37


def _card(name: str, multiprocessors: int, capability: tuple[int, int], shared: int, *, maps: bool) -> DeviceFacts:
    tuned = table(name, Path(), TABLES, Kin(capability, multiprocessors))
    return DeviceFacts("cuda", name, multiprocessors, capability, shared, _MEMORY, _MEMORY, maps, tuned=tuned)


FACTS: Final = {
    "h200": _card("NVIDIA H200", 132, (9, 0), 227 << 10, maps=True),
    "a100": _card("NVIDIA A100-SXM4-80GB", 108, (8, 0), 163 << 10, maps=False),
    "rtx4090": _card("NVIDIA GeForce RTX 4090", 128, (8, 9), 99 << 10, maps=False),
    "cpu": DeviceFacts("cpu", "a processor", 8, (0, 0), 227 << 10, _MEMORY, _MEMORY),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, record or dump; return 1 where a plan differs from the recorded one."""
    parser = argparse.ArgumentParser(prog="python -m tests.net.plans", description="Plans beside recorded ones.")
    parser.add_argument("--record", action="store_true", help="write the hashes of all plans")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the texts of plans there")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases that have this in their names")
    options = parser.parse_args(arguments)
    text = PlanText()
    found: dict[str, str] = {}
    for name, make in cases():
        if options.only in name:
            written = text.write(make())
            found[name] = hashlib.sha256(written.encode()).hexdigest()[:16]
            if options.dump:
                options.dump.mkdir(parents=True, exist_ok=True)
                (options.dump / f"{name}.txt").write_text(written)
    if options.record:
        RECORD.write_text(json.dumps(found, indent=0) + "\n")
        print(f"{len(found)} plans recorded")
        return 0
    recorded = json.loads(RECORD.read_text())
    expected = {name: digest for name, digest in recorded.items() if options.only in name}
    differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    if differing:
        print(f"{len(differing)} of {len(expected)} plans differ, the first is {differing[0]}")
        return 1
    print(f"{len(found)} plans are equal")
    return 0


def cases() -> Iterator[tuple[str, Callable[[], CompiledModel]]]:
    """Yield the name of each case, and what makes its plan."""
    for card, facts in FACTS.items():
        for net in CONVOLUTIONS:
            for precision in PRECISIONS:
                yield f"{net}-whole-{precision}-{card}", partial(whole_plan, vgg(net), precision, facts)
                if precision != "int8":
                    yield f"{net}-features-{precision}-{card}", partial(whole_plan, features(net), precision, facts)
        for precision in DIFFERENTIABLE:
            for batch in FEW:
                shape = (batch, 3, 256, 256)
                for net in ("vgg16", "vgg19"):
                    make = partial(gradient_plan, features(net), shape, facts, precision, "auto", _samples)
                    yield f"{net}-vjp-{precision}-{batch}-{card}", make
                for kind in ("squared", "absolute", "unit", "gram"):
                    yield f"vgg16-{kind}-{precision}-{batch}-{card}", partial(loss_plan, kind, shape, precision, facts)
                yield f"vgg16-targets-{precision}-{batch}-{card}", partial(targets_plan, shape, precision, facts)
                yield f"vgg16-pair-{precision}-{batch}-{card}", partial(pair_plan, shape, precision, facts)
        for kernels in ("mma", "ffma"):
            make = partial(whole_plan, vgg("vgg16"), "fp16", facts, kernels)
            if card == "h200" or kernels == "ffma":
                yield f"vgg16-{kernels}-fp16-{card}", make
        for precision in PRECISIONS:
            yield f"digits-{precision}-{card}", partial(digits_plan, precision, facts)


def whole_plan(graph: Graph, precision: str, facts: DeviceFacts, kernels: str = "auto") -> CompiledModel:
    """Plan a net for all batches at 224 pixels, bytes accepted; int8 by scales of 1."""
    options = PlanOptions(
        precision,
        kernels,
        normalisation=Normalisation((0.5,) * 3, (0.25,) * 3),
        samples=lambda: _samples((1, 3, 224, 224)),
        quantised=_quantised(graph) if precision == "int8" else None,
    )
    return make_plan(graph, facts, [(batch, 3, 224, 224) for batch in BATCHES], options)


def pair_plan(shape: tuple[int, ...], precision: str, facts: DeviceFacts) -> CompiledModel:
    """Plan the loss of all features of VGG16 against other images, with the gradients to both."""
    graph = features("vgg16")
    terms = [Term(output, "unit") for output in range(len(graph.outputs))]
    made = pair_graph(graph, terms, shape, gradients=2, precision=precision)
    shapes = {graph.input.name: shape, made.others[0].name: shape}
    options = PlanOptions(precision, samples=(lambda: _samples(shape)) if precision == "fp32" else None)
    return make_plan(made, facts, shapes, options)


def loss_plan(kind: Any, shape: tuple[int, ...], precision: str, facts: DeviceFacts) -> CompiledModel:
    """Plan the loss of all features of VGG16, with its gradient."""
    graph = features("vgg16")
    terms = [Term(i, kind, 1.0) for i in range(len(graph.outputs))]
    found = loss_graph(graph, terms, shape, gradient=True, precision=precision)
    return _plan_of_inputs(found.graph, {graph.input.name: shape, **found.targets}, precision, facts)


def targets_plan(shape: tuple[int, ...], precision: str, facts: DeviceFacts) -> CompiledModel:
    """Plan what makes targets: a map of the first feature, and a Gram matrix of the second."""
    graph = features("vgg16")
    made = target_graph(graph, [Term(0), Term(1, "gram")], shape)
    return _plan_of_inputs(made, {graph.input.name: shape}, precision, facts)


def _plan_of_inputs(graph: Graph, shapes: dict[str, Any], precision: str, facts: DeviceFacts) -> CompiledModel:
    shape = next(iter(shapes.values()))
    return make_plan(graph, facts, shapes, PlanOptions(precision, samples=lambda: _samples(shape)))


def digits_plan(precision: str, facts: DeviceFacts) -> CompiledModel:
    """Plan the shipped net from its file: importer, passes, real weights and scales."""
    return compile_model(_digits(), EngineOptions(batch=(1, 8), precision=precision), facts)


@cache
def _digits() -> Model:
    return Model(digits_model())


@cache
def vgg(name: str) -> Graph:
    """Return a VGG with weights of zero, which take no memory; ReLUs and pools are in the convolutions."""
    ops: list[Op] = list(_convolutions(CONVOLUTIONS[name]))
    x, length = ops[-1].y, 512 * 7 * 7
    for number, outputs in ((6, 4096), (7, 4096), (8, 1000)):
        y = f"fc{number}"
        ops.append(Gemm(x, y, (y,), _zeros(outputs, length), _zeros(outputs), relu=number != 8, flattens=number == 6))
        x, length = y, outputs
    return Graph(GraphInput("x", (None, 3, 224, 224)), tuple(ops), (x,))


@cache
def features(name: str) -> Graph:
    """Return its convolutions and pools, of open size; the last map of each block, before its pool, is an output."""
    ops: list[Op] = []
    outputs = []
    for op in _convolutions(CONVOLUTIONS[name]):
        if op.pool:
            kept = f"{op.y} before its pool"
            ops += [replace(op, y=kept, names=(kept,), pool=False), Pool(kept, op.y, (op.y,), "max", MAX_POOL_2X2)]
            outputs.append(kept)
        else:
            ops.append(op)
    return Graph(GraphInput("x", (None, 3, None, None)), tuple(ops[:-1]), tuple(outputs))


def _convolutions(blocks: Sequence[int]) -> Iterator[Conv]:
    x, channels = "x", 3
    for block, (count, filters) in enumerate(zip(blocks, WIDTHS, strict=True), start=1):
        for number in range(1, count + 1):
            y = f"conv{block}_{number}"
            window = Window((3, 3), pads=Pads(1, 1, 1, 1))
            weight = _zeros(filters, channels, 3, 3)
            yield Conv(x, y, (y,), weight, _zeros(filters), window, relu=True, pool=number == count)
            x, channels = y, filters


def _quantised(graph: Graph) -> dict[str, QuantisedOp]:
    scales = {name: Scale(1.0, signed) for name, signed in quantised_inputs(graph).items()}
    stored = stored_scales(graph, scales)
    return {
        op.y: QuantisedOp(_zeros(*op.weight.shape, dtype=np.int8), _zeros(len(op.weight)), scales[op.x], stored[op.y])
        for op in graph.ops
        if isinstance(op, Conv | Gemm)
    }


def _samples(shape: tuple[int, ...]) -> Any:
    return _zeros(1, *shape[1:])


def _zeros(*shape: int, dtype: type[np.generic] = np.float32) -> Any:
    return np.broadcast_to(dtype(0), shape)


if __name__ == "__main__":
    sys.exit(main())
