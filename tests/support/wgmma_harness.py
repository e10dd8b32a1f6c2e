"""Hopper's kernels under test: a graph goes the production way, and every op is judged on what its kernel has read.

Floating point: float64 numpy on the inputs and weights as the element of the precision holds them. int8: the bits of
tests/support/quantised_reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from tests.support import quantised_reference, reference
from tests.support.closeness import assert_close, rms
from tests.support.kernel_harness import Result, normal, run_graph, seeded
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, Op, Relu, Shape
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels import tile_choice
from vgg16gpu.compiler.op_kernels.conv import conv_first, conv_first_two
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import LargeTile, SmallTile
from vgg16gpu.compiler.op_kernels.gemm.fc_wgmma_tiles import GemmTile, GemvTile
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.compiler.quantization.scheme import Scale, Scales, quantise, quantised_inputs
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu.device import usable_cores
from vgg16gpu.errors import Error
from vgg16gpu.program.launch import CompiledModel, Kernel, KernelLaunch, LaunchPlan
from vgg16gpu.program.types import DeviceFacts, DType, TensorDesc
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.outputs import LARGEST_FLOAT16

Images: TypeAlias = npt.NDArray[Any]  # float32 (N, C, H, W) or (N, F), or uint8 (N, H, W, C)
Array64: TypeAlias = npt.NDArray[np.float64]
Tile: TypeAlias = LargeTile | SmallTile | conv_first.FirstConvTile | conv_first_two.ConvPairTile | GemmTile | GemvTile

WINDOW = Window((3, 3), pads=Pads(1, 1, 1, 1))
ELEMENTS = {"fp32": DType.F16_PAIR, "fp16": DType.F16, "bf16": DType.BF16}
PRECISIONS = (*ELEMENTS, "int8")
CLIPPED = 0.8  # of the largest magnitude: unsigned bytes that let some values saturate

# Norm-wise over a layer: twice what rounding alone gives for fp16 and bf16; a sum of rounded products left in float32
# keeps the tensor cores' own error, which grows with its length.
NORM_WISE = {DType.F16_PAIR: 3e-7, DType.F16: 3e-4, DType.BF16: 2.5e-3}
SUMS_OF_HALVES = 3e-5
CHANNEL_WISE = 1e-6  # fp32, over each output channel, as a library that adds float32 in its own order
MIN_PIXELS = 64  # of a channel that is judged by itself
ROUNDING = {DType.F16_PAIR: 2.0**-21, DType.F16: 2.0**-11, DType.BF16: 2.0**-8, DType.F32: 2.0**-23}


@dataclass(frozen=True, eq=False)
class Trial:
    """A graph, images for it, and how to compute it. `tile` is forced on all ops whose kernel has such tiles.

    `keep_values`: when it is judged, every op has a kernel of its own.
    """

    graph: Graph
    x: Images
    precision: str
    tile: Tile | None = None
    samples: Array | None = None  # what fixes the scales of fp32, if not the images themselves, mirrored
    kernels: str = "wgmma"
    keep_values: bool = True

    @property
    def element(self) -> DType | None:
        """What products are made of; None for int8, where values differ."""
        return ELEMENTS.get(self.precision)

    @property
    def shape(self) -> Shape:
        """Of the graph's input."""
        return self.x.shape if self.x.dtype == np.float32 else (len(self.x), self.x.shape[3], *self.x.shape[1:3])

    @cached_property
    def normalisation(self) -> Normalisation | None:
        if self.x.dtype == np.float32:
            return None
        channels = range(self.x.shape[3])
        return Normalisation(tuple(0.3 + 0.1 * c for c in channels), tuple(0.2 + 0.05 * c for c in channels))

    @cached_property
    def floats(self) -> Array:
        """The images as the graph's input."""
        if self.normalisation is None:
            return self.x
        scale, shift = self.normalisation.scale_and_shift
        return np.moveaxis(quantised_reference.fmaf(self.x, scale, shift), -1, 1)

    @cached_property
    def scales(self) -> Scales:
        """int8: of every value that is read as integers."""
        values = reference.evaluate(self.graph, self.floats)
        largest = {name: float(np.abs(values[name]).max()) for name in values}
        return {
            name: Scale(float(np.float32(largest[name] / 127 if signed else CLIPPED * largest[name] / 255)), signed)
            for name, signed in quantised_inputs(self.graph).items()
        }

    @property
    def options(self) -> PlanOptions:
        quantised = quantise(self.graph, self.scales) if self.precision == "int8" else None
        samples = np.ascontiguousarray(self.floats[..., ::-1]) if self.samples is None else self.samples
        return PlanOptions(
            self.precision, self.kernels, normalisation=self.normalisation, samples=lambda: samples, quantised=quantised
        )

    def plan(self, facts: DeviceFacts, *batches: int, keep_values: bool = False) -> CompiledModel:
        """The plan for these batch sizes, or for the trial's own."""
        shapes = [(batch, *self.shape[1:]) for batch in batches or (len(self.x),)]
        with forced(self.tile):
            made = make_plan(self.graph, facts, shapes, replace(self.options, keep_values=keep_values))
        self._check_tile(made)
        return made

    def run(self, device: Device) -> Result:
        """Once, on guarded memory."""
        with forced(self.tile):
            result = run_graph(device, self.graph, self.x, self.options, keep_values=self.keep_values)
        self._check_tile(result.plan)
        return result

    def _check_tile(self, plan: CompiledModel) -> None:
        """A tile that does not fit would have been passed over."""
        for program in plan.programs if self.tile else ():
            found = [step for steps in program.input.entries.values() for step in (*steps.steps, *program.steps)]
            assert any(has_tile(step, self.tile) for step in found), f"{self.tile} is used nowhere"


@contextmanager
def forced(tile: Tile | None) -> Iterator[None]:
    """The tables of measured tiles name this one, whatever the problem."""
    found = tile_choice.found

    def always(facts: DeviceFacts, name: str, kinds: Mapping[str, type[Any]]) -> Any:
        return (
            tile_choice.Choice(tile, programmatic=True) if type(tile) in kinds.values() else found(facts, name, kinds)
        )

    with mock.patch.object(tile_choice, "found", always):
        yield


def has_tile(step: KernelLaunch, tile: Tile | None) -> bool:
    """Whether a step runs with this tile."""
    match tile:
        case LargeTile():
            wanted = {"TILE_ROWS": tile.rows, "FLAT_PITCH": tile.flat_pitch, "PAIR_TILES": int(tile.pair_tiles)}
        case SmallTile():
            wanted = {"TILE_ROWS": tile.rows, "SPLITS": tile.splits, "EXCHANGE": tile.exchange}
            wanted |= {"BLOCKS_PER_SM": tile.blocks_per_sm, "HALO_STAGES": tile.halo_stages}
            wanted |= {"TAPS_PER_STAGE": tile.taps}
        case conv_first.FirstConvTile():
            wanted = {"TILE_W": tile.width}
        case conv_first_two.ConvPairTile():
            wanted = {"WARPGROUPS": tile.warpgroups, "TILE_ROWS": tile.rows}
        case GemvTile():
            wanted = {"ROWS": tile.rows, "UNROLL_K": tile.unroll, "SPLIT_K": tile.split}
        case GemmTile():
            wanted = {"TILE_N": tile.images, "TILE_K": tile.depth} if step.grid.z == tile.splits else {"": 0}
        case None:
            wanted = {}
    return wanted.items() <= dict(step.kernel.defines).items()


@contextmanager
def resident(device: Device, trial: Trial, *batches: int, keep_values: bool = False) -> Iterator[Executor]:
    """The trial's plan on the device, as an engine holds it."""
    plan = trial.plan(device.facts, *batches, keep_values=keep_values)
    device.build(plan.kernels)
    made = Executor(plan, device)
    try:
        yield made
    finally:
        made.close()


def build_together(device: Device, items: Iterable[pytest.Item], worker: int, workers: int) -> None:
    """Compile the kernels of all selected tests with a `case` at once: one after the other would take minutes.

    Each of several workers compiles a part, with a part of the cores; all find the result in the cache.
    """
    cases = [item.callspec.params.get("case") for item in items if hasattr(item, "callspec")]
    kernels: set[Kernel] = set()
    makers = [getattr(case, name) for case in cases for name in ("trial", "apart") if hasattr(case, name)]
    for make in makers[worker::workers]:
        with suppress(Error, AssertionError):  # the test itself will say it
            trial = make()
            kernels |= trial.plan(device.facts, keep_values=trial.keep_values).kernels
    wanted = sorted(kernels, key=repr)
    at_once = len(wanted) if workers == 1 else max(1, usable_cores() // workers)
    for first in range(0, len(wanted), max(1, at_once)):
        with suppress(Error):
            device.build(wanted[first : first + at_once])


# ---- Judging


def check(device: Device, trial: Trial) -> Result:
    """Run a trial and judge every value, every recorded magnitude and the outputs."""
    result = trial.run(device)
    assert not result.nonfinite.any()
    if trial.precision == "int8":
        _check_integers(trial, result)
    else:
        check_layers(trial, result.program, result.value)
    _check_maxima(trial, result)
    for name, output in zip(trial.graph.outputs, result.outputs, strict=True):
        np.testing.assert_array_equal(output, result.value(name), f"{name}: the way out changes nothing")
    return result


def check_layers(trial: Trial, program: LaunchPlan, read: Callable[[str], Array]) -> None:
    """Every Conv and Gemm against float64, on what it read."""
    stored = {value.name: value for value in program.values}
    for op in trial.graph.ops:
        if isinstance(op, Conv | Gemm):
            x = read(op.x) if op.x in stored else trial.floats[: program.batch]
            check_layer(op, x, read(op.y), trial.element or DType.F32, stored[op.y].element)


def check_layer(op: Conv | Gemm, x: Array, y: Array, element: DType, out_element: DType) -> None:
    """One op whose products are of `element` against float64: norm-wise, element by element, fp32 also by channel."""
    x64, weight = rounded(x, element), rounded(op.weight, element)
    exact = reference.apply(replace(op, weight=weight), x64)  # type: ignore[arg-type]
    label = f"{op.y} as {out_element.name}"
    as_sum = out_element is DType.F32 and element is not DType.F16_PAIR
    error = layer_error(y, exact)
    limit = SUMS_OF_HALVES if as_sum else NORM_WISE[element]
    assert error <= limit, f"{label}: norm-wise error {error:.3g}, at most {limit:.3g}"
    size = math.sqrt(op.weight[0].size) * rms(x64) * rms(weight) + (0.0 if op.bias is None else rms(op.bias))
    atol = size * (5e-6 if element is DType.F16_PAIR else 2e-4)
    assert_close(y, exact, atol, 1.001 * ROUNDING[out_element], label=label)
    if element is DType.F16_PAIR and y.ndim == 4 and y[:, 0].size >= MIN_PIXELS:
        for channel in range(y.shape[1]):
            error = layer_error(y[:, channel], exact[:, channel])
            assert error <= CHANNEL_WISE, f"{label}: error of channel {channel} {error:.3g}, at most {CHANNEL_WISE:.3g}"


def rounded(array: npt.NDArray[Any], element: DType) -> Array64:
    """float32 numbers as a tensor of this element holds them. Pairs have scales and lose nothing that counts."""
    if element is DType.F16:
        return array.astype(np.float16).astype(np.float64)
    if element is DType.BF16:
        bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def raw(result: Result, name: str) -> npt.NDArray[Any]:
    """What is stored, in the ONNX order, padding cut off once it has been found to be zero; planes first."""
    value = value_of(result.program, name)
    types = {1: np.int8 if value.element is DType.S8 else np.uint8, 2: np.uint16, 4: np.float32}
    planes = result.at(value.pointer, (value.element.planes, *value.stored_shape), types[value.element.nbytes])
    channels = value.shape[1]
    assert not planes[..., channels:].any(), f"{name}: channels {channels} and up are not zero"
    return np.moveaxis(planes, -1, 2)[:, :, :channels]


def value_of(program: LaunchPlan, name: str) -> TensorDesc:
    return next(value for value in program.values if value.name == name)


def step_of(program: LaunchPlan, name: str, element_type: str = "float32") -> KernelLaunch:
    """The step that stores this value, of a tensor-core kernel."""
    return next(step for step in program.all_steps(element_type) if step.names[-1:] == (name,) and step.flop)


def _check_integers(trial: Trial, result: Result) -> None:
    expected = quantised_reference.evaluate(trial.graph, trial.scales, trial.floats).stored
    for value in result.program.values:
        if value.element in (DType.U8, DType.S8):
            np.testing.assert_array_equal(raw(result, value.name)[0], expected[value.name], value.name)
    for name, output in zip(trial.graph.outputs, result.outputs, strict=True):
        np.testing.assert_array_equal(output, expected[name], name)


def _check_maxima(trial: Trial, result: Result) -> None:
    """The words hold the largest magnitude of each image, of the high plane for pairs; and it is in range."""
    control = result.program.control
    pooled = {op.y for op in trial.graph.ops if isinstance(op, Conv) and op.pool}
    for index, name in enumerate(control.watched):
        recorded = result.at(control.maxima(index), (result.program.batch,))
        assert (recorded >= control.lowest).all(), f"{name}: {recorded}"
        assert (recorded <= LARGEST_FLOAT16).all(), f"{name}: {recorded}"
        value = next((value for value in result.program.values if value.name == name), None)
        if value is not None and value.element in (DType.F16, DType.F16_PAIR):
            largest = np.abs(raw(result, name)[0].view(np.float16)).reshape(len(recorded), -1).max(axis=1)
            if name in pooled:  # may be taken before pooling
                assert (recorded >= largest).all(), f"{name}: {recorded}, stored {largest}"
            else:
                np.testing.assert_array_equal(recorded, largest.astype(np.float32), name)


# ---- Convolutions


@dataclass(frozen=True)
class ConvCase:
    """A 3x3 convolution and the size of its input, of which everything else is random."""

    precision: str
    shape: tuple[int, int, int, int]  # N, C, H, W
    filters: int
    tile: Tile | None = None
    relu: bool = True
    pool: bool = False
    bias: bool = True
    behind_relu: bool = False  # its input is no run-time input, and has no sign
    pixels: bool = False  # the input comes as bytes

    def __str__(self) -> str:
        batch, channels, height, width = self.shape
        flags = "-relu" * self.relu + "-pool" * self.pool + "-nobias" * (not self.bias)
        flags += "-behind_relu" * self.behind_relu + "-bytes" * self.pixels
        return f"{self.precision}-n{batch}-c{channels}-{height}x{width}-oc{self.filters}{flags}{tile_id(self.tile)}"

    def trial(self) -> Trial:
        """The graph and its input. int8 has a fully connected layer at the end, which reads integers."""
        random = seeded(str(self))
        batch, channels, height, width = self.shape
        conv = convolution(random, "r" if self.behind_relu else "x", "y", channels, self.filters)
        conv = replace(conv, relu=self.relu, pool=self.pool, bias=conv.bias if self.bias else None)
        ops: tuple[Op, ...] = (Relu("x", "r", ("r",)), conv) if self.behind_relu else (conv,)
        if self.precision == "int8":
            side = 2 if self.pool else 1
            ops = (*ops, fully(random, "y", "z", self.filters * (height // side) * (width // side), 20, flattens=True))
        graph = Graph(GraphInput("x", (None, *self.shape[1:])), ops, (ops[-1].y,))
        if self.pixels:
            x: Images = random.integers(0, 256, (batch, height, width, channels), np.uint8)
        else:
            x = normal(random, *self.shape)
        return Trial(graph, x, self.precision, self.tile)


def convolution(random: np.random.Generator, x: str, y: str, channels: int, filters: int, **options: Any) -> Conv:
    """Weights that keep the size of what they read, and a small bias."""
    weight = normal(random, filters, channels, 3, 3, scale=math.sqrt(2 / (9 * channels)))
    return Conv(x, y, (y,), weight, normal(random, filters, scale=0.1), WINDOW, **options)


def fully(random: np.random.Generator, x: str, y: str, length: int, outputs: int, **options: Any) -> Gemm:
    """The same for a fully connected layer."""
    weight = normal(random, outputs, length, scale=math.sqrt(2 / length))
    return Gemm(x, y, (y,), weight, normal(random, outputs, scale=0.1), **options)


def parameters(cases: Iterable[Any]) -> list[Any]:
    """For pytest: each case under its name."""
    return [pytest.param(case, id=str(case)) for case in cases]


def tile_id(tile: Tile | None) -> str:
    return "" if tile is None else "-" + "_".join(str(int(number)) for number in vars(tile).values())


def check_conv(device: Device, case: ConvCase, kernel: str) -> Result:
    """Judge a case, once its convolution has been found to run on that kernel."""
    result = check(device, case.trial())
    assert step_of(result.program, "y", "uint8" if case.pixels else "float32").kernel.name == kernel
    return result


# ---- Fully connected layers


@dataclass(frozen=True)
class FullyCase:
    """A chain of fully connected layers, all but the last one with a ReLU where `relu` says so; the rest is random."""

    precision: str
    shape: Shape  # (N, F), or (N, C, H, W), which the first layer flattens
    outputs: tuple[int, ...]
    tile: Tile | None = None
    relu: bool = True
    bias: bool = True

    def __str__(self) -> str:
        flags = "-relu" * self.relu + "-nobias" * (not self.bias) + tile_id(self.tile)
        return f"{self.precision}-{'x'.join(map(str, self.shape))}-{'-'.join(map(str, self.outputs))}{flags}"

    def trial(self) -> Trial:
        """The graph and its input."""
        random = seeded(str(self))
        lengths = math.prod(self.shape[1:]), *self.outputs
        ops = []
        for i, outputs in enumerate(self.outputs):
            last = i == len(self.outputs) - 1
            op = fully(random, f"v{i}", f"v{i + 1}", lengths[i], outputs, relu=self.relu and not last)
            ops.append(replace(op, flattens=i == 0 and len(self.shape) == 4, bias=op.bias if self.bias else None))
        graph = Graph(GraphInput("v0", (None, *self.shape[1:])), tuple(ops), (ops[-1].y,))
        return Trial(graph, normal(random, *self.shape), self.precision, self.tile)


def check_fully(device: Device, case: FullyCase, kernel: str) -> Result:
    """Judge a case, once all of its layers have been found to run on that kernel."""
    result = check(device, case.trial())
    for i in range(len(case.outputs)):
        assert step_of(result.program, f"v{i + 1}").kernel.name == kernel
    return result
