"""Whole networks on the mma kernels: conversions, accuracy, and plans for cards that are not here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tests.compiler.planner.test_conv_wgmma_plan import options_of, vgg16
from tests.support.kernel_harness import normal, seeded
from tests.support.kernel_signatures import arguments
from tests.support.mma_harness import PRECISIONS, STORED, MmaTrial
from tests.support.random_graphs import HALF
from tests.support.wgmma_harness import check, convolution, fully, value_of
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, BatchNorm, Op, Pool
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.program.launch import KernelLaunch, LaunchPlan
from vgg16gpu.program.types import DeviceFacts, DType
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.digits import heldout

# ---- Values that several read, and ops on float32 in between


def branches() -> Graph:
    """a goes to a convolution, to an average pool and out; b is normalised on the way to the classifier."""
    random = seeded("branches")
    ones = np.ones(20, np.float32)
    norm = BatchNorm(
        "b", "c", ("c",), 1 + normal(random, 20, scale=0.1), normal(random, 20), normal(random, 20), ones, 1e-5
    )
    ops: tuple[Op, ...] = (
        convolution(random, "x", "a", 3, 20, relu=True),
        convolution(random, "a", "b", 20, 20, relu=True, pool=True),
        norm,
        Pool("a", "p", ("p",), "average", HALF),
        convolution(random, "p", "q", 20, 5, relu=True),
        fully(random, "c", "d", 20 * 4 * 3, 30, flattens=True, relu=True),
        fully(random, "d", "e", 30, 7),
    )
    return Graph(GraphInput("x", (None, 3, 8, 6)), ops, ("e", "a", "q"))


@pytest.mark.first_case(reason="kernels' own tests have each precision")
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_branches_and_conversions(device: Device, precision: str, batch: int) -> None:
    graph = branches()
    result = check(device, MmaTrial(graph, normal(seeded("x"), batch, 3, 8, 6), precision))
    elements = {name: value_of(result.program, name).element for name in "abcdepq"}
    assert {elements[name] for name in "cepq"} == {DType.F32}
    assert elements["d"] is STORED[precision]
    assert "convert" in {step.kernel.name for step in result.program.steps}
    assert [output.shape for output in result.outputs] == [(batch, 7), (batch, 20, 8, 6), (batch, 5, 4, 3)]


# ---- The shipped net, through an engine

ERRORS = {"fp16": 0.01, "bf16": 0.05, "int8": 0.2}  # of the scores, at most


@cache
def digits(count: int) -> tuple[Array, Array, Array]:
    """Handwritten digits, what they are, and the scores of fp32."""
    images, _, labels = (values[:count] for values in heldout())
    with Engine(digits_model(), device="cpu", batch=50, kernels="ffma") as engine:
        return images, labels, np.asarray(engine.run(images))


@pytest.mark.slow(reason="each kernel on tensor cores has its float64 test")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_digits_are_read_as_well_as_in_fp32(device: Device, precision: str) -> None:
    images, labels, exact = digits(450)
    assert len(labels) == 450
    kind = device.facts.kind
    with Engine(digits_model(), device=kind, batch=(1, 50), precision=precision, kernels="mma") as engine:
        assert {*engine.plan.families.values()} == {"mma"}
        scores = engine.run(images)
        alone = engine.run(images[:1])
    assert isinstance(scores, np.ndarray)
    if precision == "int8":
        assert np.array_equal(alone, scores[:1])
    else:  # a GPU takes other kernels for one image, with other orders of sums
        assert score_error(np.asarray(alone)[0], scores[0]) <= ERRORS[precision]
    right, wanted = (float((found.argmax(axis=1) == labels).mean()) for found in (scores, exact))
    assert abs(right - wanted) <= 0.01
    errors = [score_error(found, reference) for found, reference in zip(scores, exact, strict=True)]
    assert 0 < float(np.median(errors)) <= ERRORS[precision]


# ---- Cards that are not here


def card(
    capability: tuple[int, int], shared_kib: int, multiprocessors: int, *, tensor_maps: bool = False
) -> DeviceFacts:
    return DeviceFacts(
        "cuda",
        f"a card of {capability[0]}.{capability[1]}",
        multiprocessors,
        capability,
        shared_kib << 10,
        24 << 30,
        24 << 30,
        tensor_maps=tensor_maps,
    )


# Shared memory of a block: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
CARDS = {
    "sm_75": card((7, 5), 64, 40),
    "sm_80": card((8, 0), 163, 108),
    "sm_86": card((8, 6), 99, 82),
    "sm_89": card((8, 9), 99, 128),
    "sm_120": card((12, 0), 99, 170),
    "sm_90 without cuda-bindings": card((9, 0), 227, 132),
}
BATCHES = (1, 2, 8, 32, 128)


def programs(facts: DeviceFacts, precision: str) -> Iterator[LaunchPlan]:
    size, width, hidden = (48, 2, 100) if precision == "int8" else (224, 1, 4096)
    graph = vgg16(size, width, hidden)
    yield from make_plan(graph, facts, [(n, 3, size, size) for n in BATCHES], options_of(graph, precision)).programs


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CARDS)
def test_launches_fit_the_card_and_cover_the_work(name: str, precision: str) -> None:
    facts = CARDS[name]
    for program in programs(facts, precision):
        values = {value.name: value for value in program.values}
        for step in program.all_steps():
            assert step.shared <= facts.shared_nbytes, step.label
            assert math.prod(step.block) <= 1024
            assert step.grid.x < 2**31
            assert max(step.grid.y, step.grid.z) < 2**16
            if step.kernel.name == "conv_mma":
                covers(step, math.prod(values[step.names[-1]].stored_shape[:-1]))
            if step.kernel.name == "conv_mma_3x3":
                covers_halos(step)


def covers(step: KernelLaunch, pixels: int) -> None:
    """Whether the tiles of a convolution hold all `pixels` that it stores, and not one tile more."""
    given, macros = arguments(step), dict(step.kernel.defines)
    assert given["rows"] == pixels * (4 if macros["POOL"] else 1)
    assert step.grid.x == -(-given["rows"] // macros["TILE_PX"]) * -(-given["OC"] // macros["TILE_OC"])
    assert step.block.x == 32 * (macros["TILE_OC"] // macros["WARP_OC"]) * (macros["TILE_PX"] // macros["WARP_PX"])


def covers_halos(step: KernelLaunch) -> None:
    """The same for tiles of rows and of columns of all images side by side."""
    given, macros = arguments(step), dict(step.kernel.defines)
    height, width = (given[name] // 2 * 2 if macros["POOL"] else given[name] for name in ("H", "W"))
    tiles = (given["OC"], "TILE_OC"), (height, "TILE_ROWS"), (given["N"] * width, "TILE_COLUMNS")
    assert step.grid.x == math.prod(-(-size // macros[tile]) for size, tile in tiles)
    assert step.block.x == 32 * (macros["TILE_OC"] // macros["WARP_OC"]) * (macros["TILE_COLUMNS"] // 8)
