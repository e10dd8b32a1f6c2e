"""The planning of the kernels on Hopper's tensor cores: tiles, grids, tensor maps, workspace and weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import selection
from tests.support.kernel_signatures import arguments
from tests.support.random_graphs import SAME
from vgg16gpu.compiler.compile import SAMPLES
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Op, Pool, Shape
from vgg16gpu.compiler.graph.window import Window
from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.compiler.op_kernels.gemm.fc_wgmma_tiles import TILE_OUT
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.compiler.quantization.scheme import Scale, quantise, quantised_inputs
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.launch import CompiledModel, KernelLaunch, LaunchPlan, TmaDescriptor
from vgg16gpu.program.types import DeviceFacts, DType, Pointer, aligned
from vgg16gpu.runtime.executor import check_memory

HOPPER = DeviceFacts("cuda", "an H200", 132, (9, 0), 232448, 2**37, 2**37, tensor_maps=True)
MULTIPROCESSOR_SHARED = 228 << 10  # of which a block takes 1 KB more than it asks for
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
BATCHES = (1, 8) if selection.choice() == selection.REPRESENTATIVE else (1, 2, 8, 32, 128)  # each takes 0.2 s
CONVOLUTIONS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
WIDEST_BOX = 256


def hollow(*shape: int) -> Array:
    """Weights that take no memory."""
    return np.broadcast_to(np.float32(0), shape)


@cache
def vgg16(size: int, width: int = 1, hidden: int = 4096) -> Graph:
    """VGG16, its channels divided by `width`."""
    ops: list[Op] = []
    x, channels = "x", 3
    for block, (filters, count) in enumerate(CONVOLUTIONS, 1):
        for number in range(1, count + 1):
            y, filters_ = f"conv{block}_{number}", filters // width
            weight, bias = hollow(filters_, channels, 3, 3), hollow(filters_)
            ops.append(Conv(x, y, (y,), weight, bias, SAME, relu=True, pool=number == count))
            x, channels = y, filters_
    side = size // 32
    if side > 7:
        ops.append(Pool(x, "average", ("average",), "average", Window((side - 6, side - 6))))
        x, side = "average", 7
    features = channels * side * side
    for y, outputs, relu in (("fc6", hidden, True), ("fc7", hidden, True), ("scores", 1000, False)):
        ops.append(Gemm(x, y, (y,), hollow(outputs, features), hollow(outputs), relu, flattens=y == "fc6"))
        x, features = y, outputs
    return Graph(GraphInput("x", (None, 3, size, size)), tuple(ops), ("scores",))


def options_of(graph: Graph, precision: str) -> PlanOptions:
    if precision == "int8":
        signed = quantised_inputs(graph)
        scales = {name: Scale(0.5, is_signed) for name, is_signed in signed.items()}
        return PlanOptions(precision, quantised=quantise(graph, scales), keep_values=True)
    return PlanOptions(precision, samples=lambda: hollow(SAMPLES, 3, 224, 224), keep_values=True)


@cache
def plan_of(precision: str, size: int = 224, width: int = 1, hidden: int = 4096) -> CompiledModel:
    graph = vgg16(size, width, hidden)
    return make_plan(graph, HOPPER, [(batch, 3, size, size) for batch in BATCHES], options_of(graph, precision))


NETS = ((224, 1, 4096), (244, 1, 4096), (48, 2, 100), (61, 3, 96))
IN_MAKE_TEST = ("fp16-224", "bf16-61", "fp32-48", "int8-48")
KEYS = (*((precision, *net) for net in NETS for precision in PRECISIONS[:3]), ("int8", 48, 2, 100))


def _plan(key: tuple[Any, ...]) -> Any:
    slow = pytest.mark.slow(reason="takes a second; plans of each size and each precision stand for it")
    name = f"{key[0]}-{key[1]}"
    return pytest.param(key, id=f"{name}-{key[2]}", marks=() if name in IN_MAKE_TEST else slow)


each_plan = pytest.mark.parametrize("key", [_plan(key) for key in KEYS])


def programs(*key: Any) -> Iterator[tuple[LaunchPlan, Mapping[str, KernelLaunch]]]:
    """Each program with its steps by the value that they compute."""
    plan = plan_of(*key)
    for program in plan.programs:
        yield program, {step.names[-1]: step for step in program.all_steps() if step.kernel.name != "convert"}


def maps(step: KernelLaunch) -> list[TmaDescriptor]:
    return [argument for argument in step.arguments if isinstance(argument, TmaDescriptor)]


def defines(step: KernelLaunch) -> dict[str, int]:
    return dict(step.kernel.defines)


# ---- A whole VGG16


def test_vgg16_is_sixteen_launches() -> None:
    for program, steps in programs("fp16"):
        sources = [step.kernel.source for step in program.all_steps()]
        gemm = "gemv.cu" if program.batch == 1 else "gemm_wgmma.cu"
        assert sources[0] == "conv_first.cu"
        assert {*sources[1:13]} <= {"conv_wgmma.cu", "conv_wgmma_small.cu"}
        assert sources[13:] == [gemm] * 3
        assert len(steps) == 16
        assert program.flop == program.batch * 30_940_528_640
        assert program.outputs == (program.values[-1],)  # written in place


def test_fully_connected_weights_lie_there_once() -> None:
    """138.4 million weights."""
    plan = plan_of("fp16")
    assert plan.weights.weights_nbytes < 278e6
    for op in vgg16(224, 1, 4096).ops:
        if isinstance(op, Gemm):
            uploads = [up.array for up in plan.weights.uploads if np.may_share_memory(up.array, op.weight)]
            assert sum(array.nbytes for array in uploads) == op.weight.nbytes


def on_a_card_with(free: int) -> Any:
    """What `check_memory` asks of a device."""
    return SimpleNamespace(facts=replace(HOPPER, memory_free=free))


def test_a_gigabyte_is_enough() -> None:
    graph, batch = vgg16(224), 32
    options = replace(options_of(graph, "fp16"), keep_values=False)
    plan = make_plan(graph, HOPPER, [(batch, 3, 224, 224)], options)
    need = plan.device_nbytes + plan.weights.staging_nbytes
    check_memory(plan, on_a_card_with(800 * 10**6))
    check_memory(plan, on_a_card_with(need))
    with pytest.raises(
        DeviceError, match=rf"needs {need / 1e6:.0f} MB of memory for batch {batch} and 300 MB are free"
    ):
        check_memory(plan, on_a_card_with(300 * 10**6))


# ---- Tensor maps


@each_plan
def test_tensor_maps_are_what_the_copy_engine_takes(key: tuple[Any, ...]) -> None:
    """CUDA driver API, cuTensorMapEncodeTiled: sizes, strides and alignment."""
    plan = plan_of(*key)
    seen = 0
    for program in plan.programs:
        for step in program.all_steps():
            for tensor in maps(step):
                seen += 1
                assert 1 <= len(tensor.dimensions) == len(tensor.box) == len(tensor.strides) + 1 <= 5
                assert all(1 <= size <= WIDEST_BOX for size in tensor.box), step.label
                assert all(1 <= size < 2**32 for size in tensor.dimensions)
                assert all(stride % 16 == 0 and stride < 2**40 for stride in tensor.strides)
                assert tensor.pointer.offset % 16 == 0
                assert tensor.swizzle_nbytes in (64, 128)
                row = tensor.dimensions[0] * tensor.element.nbytes
                assert row % 64 == 0  # whole blocks of channels; what a box has beyond is zero
    assert seen


@each_plan
def test_maps_of_values_cover_them_and_no_more(key: tuple[Any, ...]) -> None:
    for program, steps in programs(*key):
        values = {value.pointer: value for value in program.values}
        for step in steps.values():
            for name in ("inp", "out"):
                tensor = arguments(step).get(name)
                if isinstance(tensor, TmaDescriptor) and values[tensor.pointer].element is not DType.F32:
                    value = values[tensor.pointer]
                    assert math.prod(tensor.dimensions) * value.element.nbytes == value.nbytes, step.label


@each_plan
def test_maps_of_weights_cover_what_is_packed(key: tuple[Any, ...]) -> None:
    plan = plan_of(*key)
    packs = [upload.pack for upload in plan.weights.uploads if upload.pack]
    packs += plan.calibration.finish if plan.calibration else ()
    packed = {arguments(step)["out"]: step for step in packs if step.kernel.name == "pack_blocks"}
    for program in plan.programs:
        for step in program.all_steps():
            if step.kernel.source not in ("conv_wgmma.cu", "conv_wgmma_small.cu"):
                continue
            tensor = arguments(step)["weight"]
            given = arguments(packed[tensor.pointer])
            block = defines(packed[tensor.pointer])["BLOCK"]
            slabs = given["blocks"] * given["TAPS"] * tensor.element.planes
            assert tensor.dimensions == (block, given["OCP"], slabs)
            assert defines(step)["BLOCK_BYTES"] == block * tensor.element.nbytes


# ---- Tiles, grids and what they ask for


@each_plan
def test_launches_fit_the_device(key: tuple[Any, ...]) -> None:
    for program, steps in programs(*key):
        for step in steps.values():
            assert step.shared <= HOPPER.shared_nbytes
            assert step.block.x * step.block.y * step.block.z <= 1024
            assert step.grid.y <= 65535
            assert step.grid.z <= 65535
            blocks = defines(step).get("BLOCKS_PER_SM", 1)
            assert (step.shared + 1024) * blocks <= MULTIPROCESSOR_SHARED
            if step.programmatic and step.kernel.source.startswith("conv_wgmma") and blocks == 1:
                assert step.shared >= 114 << 10  # the next kernel's blocks must not crowd in
        assert program.batch in BATCHES


@each_plan
def test_convolutions_cover_their_maps(key: tuple[Any, ...]) -> None:
    for program, steps in programs(*key):
        shapes = {value.name: value for value in program.values}
        for name, step in steps.items():
            if step.kernel.source not in ("conv_wgmma.cu", "conv_wgmma_small.cu"):
                continue
            given, macros = arguments(step), defines(step)
            y = shapes[name]
            small = step.kernel.name == "conv_wgmma_small"
            height, width = given["height"], given["width"]
            pool = macros["POOL"]
            assert y.shape[2:] == ((height // 2, width // 2) if pool else (height, width))
            tile_width = macros.get("FLAT_PITCH") or 8
            tile_rows = macros["TILE_ROWS"] * (1 + macros.get("PAIR_TILES", 0))
            used = y.shape[3] * (1 + pool), y.shape[2] * (1 + pool)
            assert (given["tiles_x"] - 1) * tile_width < used[0] <= given["tiles_x"] * tile_width
            assert (given["tiles_y"] - 1) * tile_rows < used[1] <= given["tiles_y"] * tile_rows
            filters = 64 if small or macros["PAIR_TILES"] else 128
            assert given["oc_tiles"] * filters == y.pitch
            assert given["images"] == program.batch
            tiles = given["oc_tiles"] * given["tiles_x"] * given["tiles_y"] * program.batch
            if small:
                assert step.grid == (tiles * macros["SPLITS"], 1, 1)
                assert step.block == (160, 1, 1)
            else:
                assert given["tiles"] == tiles
                assert step.grid == (min(tiles, HOPPER.multiprocessors), 1, 1)
                assert step.block == (384, 1, 1)


@each_plan
def test_counters_are_nobody_elses(key: tuple[Any, ...]) -> None:
    """Words as the kernels' headers count them, between the input and the error word."""
    for program, steps in programs(*key):
        used: list[tuple[int, int]] = []
        for step in steps.values():
            given = arguments(step)
            words = 0
            if step.kernel.name == "gemm_wgmma":
                words = 2 * step.grid.x * step.grid.y
            elif defines(step).get("EXCHANGE") == 2:
                words = step.grid.x // defines(step)["SPLITS"]
            elif step.kernel.name == "gemv":
                words = int(defines(step)["GROUPS"] > 1)
            if words:
                used.append((given.get("counters", given.get("taken")).offset, words))
        ends = [offset + 4 * words for offset, words in used]
        first = program.control.counters.offset
        assert [offset for offset, _ in sorted(used)] == [first, *sorted(ends)][: len(used)]
        assert aligned(max(ends, default=first)) == program.control.error.offset


@each_plan
def test_a_kernel_can_copy_what_goes_in_and_comes_back(key: tuple[Any, ...]) -> None:
    """However many counters lie between: both blocks begin at a multiple of 16 bytes, and are whole words."""
    for program, _ in programs(*key):
        starts = [entry.pointer.offset for entry in program.input.entries.values()]
        places = [program.control.error.offset, *starts]
        assert [place % 16 for place in places] == [0] * len(places)
        assert program.returned_nbytes % 4 == 0
        assert [(program.control.end - start) % 4 for start in starts] == [0] * len(starts)


# ---- Fully connected layers


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 17, 64, 128, 129, 1000])
@pytest.mark.parametrize(("features", "outputs"), [(25088, 4096), (4096, 1000), (64, 65), (1000, 130)])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gemms_cover_outputs_and_images(precision: str, features: int, outputs: int, batch: int) -> None:
    op = Gemm("x", "y", ("y",), hollow(outputs, features), None)
    shape: Shape = batch, features
    graph = Graph(GraphInput("x", (None, features)), (op,), ("y",))
    options = PlanOptions(precision, samples=lambda: hollow(1, features))
    program = make_plan(graph, HOPPER, [shape], options).programs[0]
    step = program.steps[-1]
    given, macros = arguments(step), defines(step)
    assert given["pitch"] == outputs
    assert given["K"] >= features
    if batch == 1:
        assert step.kernel.source == "gemv.cu"
        unit = 8 // macros["SPLIT_K"] * macros["ROWS"]
        assert 8 % macros["SPLIT_K"] == 0
        assert unit <= 32
        if macros["GROUPS"] > 1:  # they take units until there are no more
            assert (step.grid.x, macros["GROUPS"]) == (HOPPER.multiprocessors, 4)
            assert step.grid.x * macros["GROUPS"] * unit < outputs
            assert step.shared == given["K"] * (4 if precision == "fp32" else 2)
        else:
            assert (step.grid.x - 1) * unit < outputs <= step.grid.x * unit
            assert (macros["GROUPS"], step.shared) == (1, 0)
        return
    assert given["N"] == batch
    assert (step.grid.x - 1) * macros["TILE_N"] < batch <= step.grid.x * macros["TILE_N"]
    assert (step.grid.y - 1) * TILE_OUT < outputs <= step.grid.y * TILE_OUT
    assert 1 <= step.grid.z <= ceil_div(given["K"], macros["TILE_K"])
    assert macros["STAGES"] >= 2
    weight, inputs = given["weight"], given["inp"]
    assert weight.dimensions == (given["K"], outputs)
    assert inputs.dimensions == (given["K"], batch, inputs.element.planes)
    assert weight.swizzle_nbytes == inputs.swizzle_nbytes == 128
    workspace = 4 * math.prod(step.grid) * TILE_OUT * macros["TILE_N"]
    assert isinstance(given["workspace"], Pointer)
    assert given["workspace"].offset + workspace <= program.activations_nbytes
