"""Kernels compiled as CLIPS and CLIPS_INPUT: what they give without limits, clipped, bit by bit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

import numpy as np
import pytest

from tests.kernels.test_guard import AT_THE_EDGES
from tests.support.kernel_harness import (
    CONV_TILES,
    Result,
    assert_same_bits,
    conv_as,
    kernels_of,
    normal,
    run_graph,
    seeded,
)
from tests.support.kernel_signatures import arguments
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    Array,
    Clip,
    Conv,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    Identity,
    LeakyRelu,
    Limits,
    Op,
)
from vgg16gpu.compiler.graph.window import Pads, Window
from vgg16gpu.compiler.op_kernels.conv import conv_mma, conv_mma_first
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import TILES as HALO_TILES
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda.device import CudaDevice
from vgg16gpu.devices.kernel_source import files
from vgg16gpu.program.launch import KernelLaunch

LIMITS: Final = (-0.75, 1.25)  # both are float16 and bfloat16: who rounds first and clips then gives the same
POSITIVE: Final = (0.0, 1.25)
SAME: Final = Window((3, 3), pads=Pads(1, 1, 1, 1))


@dataclass(frozen=True)
class Case:
    """A kernel, an op that it computes, and how it comes to compute it."""

    kernel: str
    shape: tuple[int, ...]
    op: str
    precision: str = "fp32"
    kernels: str = "ffma"
    of: str = "cpu"  # float32 kernels for devices of this kind
    pool: bool = False

    def __str__(self) -> str:
        return f"{self.kernel}-{self.op}-{self.precision}-{'x'.join(map(str, self.shape))}{'-pool' * self.pool}"


def made(case: Case, limits: Limits | None) -> Graph:
    """The op alone, or behind a copy so that it does not take the input in, with a copy behind it."""
    random = seeded(str(case))
    channels, constants = case.shape[1], {}
    inner, names = "x", ("y",)
    match case.op:
        case "conv" | "few" | "inner":
            filters = {"few": 3, "inner": 64}.get(case.op, 20)
            weight = normal(random, filters, channels, 3, 3, scale=math.sqrt(2 / (9 * channels)))
            bias = normal(random, filters, scale=0.3)
            op: Op = Conv(inner, "y", names, weight, bias, SAME, pool=case.pool, limits=limits)
        case "gemm":
            length = math.prod(case.shape[1:])
            weight = normal(random, 20, length, scale=math.sqrt(2 / length))
            flattens = len(case.shape) == 4
            op = Gemm(inner, "y", names, weight, normal(random, 20, scale=0.3), flattens=flattens, limits=limits)
        case "grouped":
            constants["w"] = normal(random, channels, channels // 2, 3, 3)
            op = GeneralConv(inner, "y", names, ("w",), SAME, group=2, limits=limits)
        case "add":
            constants["w"] = normal(random, channels, 1, 1)
            op = Arithmetic(inner, "y", names, ("w",), limits=limits)
        case "leaky":
            op = LeakyRelu(inner, "y", names, alpha=0.9, limits=limits)
        case _:
            constants |= {name: normal(random, channels) ** 2 + np.float32(0.1) for name in "wbmv"}
            op = GeneralBatchNorm(inner, "y", names, tuple("wbmv"), limits=limits)
    ops = (op, Identity("y", "z", ("z",)))
    return Graph(GraphInput("x", (None, *case.shape[1:])), ops, ("z",), (), constants)


def run(device: Device, case: Case, limits: Limits | None) -> tuple[Array, KernelLaunch]:
    """What the op gives, and the launch of the case's kernel."""
    x = normal(seeded(f"x of {case}"), *case.shape)
    options = PlanOptions(case.precision, case.kernels, samples=lambda: x)
    forced: Any = conv_as(CONV_TILES["small"], 4) if case.kernel == "conv_igemm_reduce_f32" else kernels_of(case.of)
    if case.kernel == "conv_igemm_f32":
        forced = conv_as(CONV_TILES["large"])
    if case.kernel == "conv_mma_3x3":
        forced = mock.patch.object(conv_mma, "_tile", return_value=HALO)
    with forced:
        result = run_graph(device, made(case, limits), x, options)
    entries = [step for entry in result.program.input.entries.values() for step in entry.steps]
    steps = [step for step in (*entries, *result.program.steps) if step.kernel.name == case.kernel]
    assert steps, [step.kernel.label for step in (*entries, *result.program.steps)]
    return result.value("y"), steps[-1]


def check(device: Device, case: Case, limits: Limits) -> None:
    """Clipped to the bit, except of pairs, whose scales are those of what is stored."""
    plain, other = run(device, case, None)
    clipped, step = run(device, case, limits)
    assert ("CLIPS", 1) in step.kernel.defines
    assert ("CLIPS", 1) not in other.kernel.defines
    arguments(step)
    expected = np.clip(plain, *limits)
    assert (plain < limits[0]).any()
    assert (plain > limits[1]).any()
    if case.precision == "fp32" and case.kernels != "ffma":
        np.testing.assert_allclose(clipped, expected, rtol=0, atol=2.0**-20)
    else:
        assert_same_bits(clipped, expected)


MAPS: Final = (3, 6, 9, 14)
HALO: Final = HALO_TILES[-1]
CASES: Final = (
    Case("conv_direct_f32", MAPS, "conv"),
    Case("conv_igemm_f32", MAPS, "conv", of="cuda"),
    Case("conv_igemm_reduce_f32", (2, 70, 6, 6), "conv", pool=True),
    Case("conv_general_f32", MAPS, "grouped"),
    Case("gemm_direct_f32", (3, 70), "gemm"),
    Case("gemm_splitk_f32", (3, 5, 4, 4), "gemm", of="cuda"),
    *(Case("elementwise_f32", MAPS, op) for op in ("add", "leaky", "norm")),
    *(
        Case(kernel, shape, op, precision, "mma", pool=pool)
        for precision in ("fp16", "bf16")
        for kernel, shape, op, pool in (
            ("conv_mma", MAPS, "conv", False),
            ("conv_mma", MAPS, "conv", True),
            ("conv_mma_3x3", MAPS, "conv", False),
            ("conv_mma_3x3", MAPS, "conv", True),
            ("gemm_mma_finish", (3, 150), "gemm", False),
        )
    ),
    *(
        Case(kernel, shape, op, "fp32", "mma", pool=pool)
        for kernel, shape, op, pool in (
            ("conv_mma", (2, 20, 6, 7), "conv", False),
            ("conv_mma", (4, 9, 12, 7), "conv", True),
            ("conv_mma_3x3", (2, 20, 9, 14), "conv", False),
            ("conv_mma_3x3", (2, 20, 9, 14), "conv", True),
            ("gemm_mma_pairs_finish", (3, 150), "gemm", False),
        )
    ),
)
FEW: Final = Case("conv_few", (2, 70, 9, 14), "few", "fp16", "mma")
FIRST: Final = (
    *(Case("conv_mma_first", (3, 3, 9, 14), "conv", each, "mma") for each in ("fp16", "bf16")),
    Case("conv_mma_first_pairs", (3, 3, 9, 14), "conv", "fp32", "mma"),
)
HOPPER: Final = tuple(
    Case(kernel, shape, op, precision, "wgmma", pool=pool)
    for precision in ("fp32", "fp16", "bf16")
    for kernel, shape, op, pool in (
        ("conv_first", (3, 3, 17, 30), "conv", False),
        ("conv_wgmma_small", (1, 64, 14, 14), "inner", False),
        ("conv_wgmma_small", (1, 64, 14, 14), "inner", True),
        ("conv_wgmma", (16, 128, 56, 56), "inner", False),
        ("conv_wgmma", (16, 128, 56, 56), "inner", True),
        ("gemv", (1, 512), "gemm", False),
        ("gemm_wgmma", (33, 512), "gemm", False),
    )
)


@pytest.mark.parametrize("limits", [LIMITS, POSITIVE], ids=["two", "positive"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_clipped_to_the_bit(device: Device, case: Case, limits: Limits) -> None:
    check(device, case, limits)


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_first_layer(device: Device, case: Case) -> None:
    with mock.patch.object(conv_mma_first, "KINDS", ("cuda", "cpu")):
        check(device, case, LIMITS)


def test_few_outputs(device: Device) -> None:
    """The result is the graph's, in float32."""
    x = normal(seeded("few"), *FEW.shape)
    found = []
    for each in (None, LIMITS):
        graph = replace(made(FEW, each), outputs=("y",))
        graph = replace(graph, ops=graph.ops[:1])
        result = run_graph(device, graph, x, PlanOptions(FEW.precision, FEW.kernels))
        assert result.program.steps[-1].kernel.name == "conv_few"
        found.append(result.value("y"))
    assert_same_bits(found[1], np.clip(found[0], *LIMITS))


@pytest.mark.gpu
@pytest.mark.parametrize("limits", [LIMITS, POSITIVE], ids=["two", "positive"])
@pytest.mark.parametrize("case", HOPPER, ids=str)
def test_hopper(hopper: CudaDevice, case: Case, limits: Limits) -> None:
    check(hopper, case, limits)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_stays_and_infinity_ends(device: Device, value: float) -> None:
    case = Case("", (1, 3, 6, 6), "conv")
    x = normal(seeded("nan"), *case.shape)
    x[0, 1, 3, 3] = value
    with kernels_of("cpu"):
        result = run_graph(device, made(case, LIMITS), x)
    y = result.value("y")
    assert result.nonfinite.all()
    reached = np.zeros(y.shape[2:], np.bool_)
    reached[2:5, 2:5] = True
    assert np.isnan(y[:, :, reached]).all() == math.isnan(value)
    assert not np.isnan(y[:, :, ~reached]).any()
    if not math.isnan(value):
        assert np.isin(y[:, :, reached], LIMITS).all()


# ---- The run-time input


def chain(low: float, high: float) -> Graph:
    """A Clip of the input, a convolution, and one more."""
    random = seeded("chain")
    ops: list[Op] = [Clip("x", "c", ("c",), low=low, high=high)]
    for x, y, channels, pool in (("c", "a", 3, False), ("a", "b", 64, True)):
        weight = normal(random, 64, channels, 3, 3, scale=math.sqrt(2 / (9 * channels)))
        ops += [
            Conv(x, f"{y}0", (f"{y}0",), weight, normal(random, 64, scale=0.3), SAME, pool=pool),
            Clip(f"{y}0", y, (y,), low=-0.5, high=0.75),
        ]
    return Graph(GraphInput("x", (None, 3, 18, 22)), tuple(ops), ("b",))


def taken(device: Device, precision: str, kernels: str, x: Any, **options: Any) -> tuple[Result, Result]:
    """A run with clips in what takes the input in and what computes, and one with a launch for each."""
    wish = PlanOptions(precision, kernels, Normalisation((0.5,) * 3, (0.25,) * 3), samples=lambda: sample, **options)
    sample = normal(seeded("sample"), 2, 3, 18, 22)
    fused, apart = (run_graph(device, chain(-1.0, 1.5), x, wish, keep_values=keeps) for keeps in (False, True))
    return fused, apart


def inputs(element: str) -> Any:
    if element == "uint8":
        return seeded("bytes").integers(0, 256, (2, 18, 22, 3), np.uint8)
    return normal(seeded("inputs"), 2, 3, 18, 22, scale=2.0)


@pytest.mark.first_case(reason="each kernel has its limits in test_hopper and test_general")
@pytest.mark.parametrize("element", ["float32", "uint8"])
@pytest.mark.parametrize(("precision", "kernels"), [("fp32", "ffma"), ("fp16", "mma"), ("bf16", "mma")])
def test_an_input_is_clipped_as_it_is_taken_in(device: Device, precision: str, kernels: str, element: str) -> None:
    with mock.patch.object(conv_mma_first, "KINDS", ()):  # it adds in another order than what reads a clipped value
        fused, apart = taken(device, precision, kernels, inputs(element))
    (first,) = fused.program.input.entries[element].steps
    assert ("CLIPS_INPUT", 1) in first.kernel.defines
    arguments(first)
    names = [step.label for step in fused.program.steps]
    assert not any(name.startswith("clip") for name in names)
    assert sum(step.label.startswith("clip") for step in apart.program.steps) == 3
    assert_same_bits(fused.outputs[0], apart.outputs[0])


@pytest.mark.parametrize("element", ["float32", "uint8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_first_layer_clips_its_input(device: Device, precision: str, element: str) -> None:
    with mock.patch.object(conv_mma_first, "KINDS", ("cuda", "cpu")):
        fused, apart = taken(device, precision, "mma", inputs(element))
    (first,) = fused.program.input.entries[element].steps
    assert first.kernel.name == ("conv_mma_first_pairs" if precision == "fp32" else "conv_mma_first")
    assert {("CLIPS", 1), ("CLIPS_INPUT", 1)} <= {*first.kernel.defines}
    arguments(first)
    tolerance = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2}[precision]
    expected = apart.outputs[0]
    assert np.abs(fused.outputs[0] - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.gpu
@pytest.mark.parametrize("element", ["float32", "uint8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_first_layers_of_hopper(hopper: CudaDevice, precision: str, element: str) -> None:
    """Two convolutions in one launch, of pairs one; what the input is clipped to changes their order of sums."""
    fused, apart = taken(hopper, precision, "auto", inputs(element))
    (first, *_) = fused.program.input.entries[element].steps
    assert first.kernel.name == ("conv_first" if precision == "fp32" else "conv_first_two")
    assert {("CLIPS", 1), ("CLIPS_INPUT", 1)} <= {*first.kernel.defines}
    arguments(first)
    exact = run_graph(hopper, chain(-1.0, 1.5), inputs(element), options_of(), keep_values=True)
    for found in (fused, apart):
        tolerance = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2}[precision]
        assert np.abs(found.outputs[0] - exact.outputs[0]).max() <= tolerance * np.abs(exact.outputs[0]).max()


def options_of() -> PlanOptions:
    return PlanOptions("fp32", "ffma", Normalisation((0.5,) * 3, (0.25,) * 3))


def test_an_infinite_input_is_told_and_clipped(device: Device) -> None:
    x = inputs("float32")
    x[1, 0, 4, 4] = math.inf
    fused, apart = taken(device, "fp32", "ffma", x)
    assert fused.nonfinite.tolist() == apart.nonfinite.tolist() == [False, True]
    assert np.isfinite(fused.outputs[0]).all()
    assert_same_bits(fused.outputs[0], apart.outputs[0])


# ---- Which kernels there are


def test_every_kernel_with_an_activation_has_a_case() -> None:
    """A kernel that takes one is compiled with limits by a test of this file."""
    known = {case.kernel for case in (*CASES, FEW, *FIRST, *HOPPER)} | {"conv_first_two"}
    sources = {path.name: path.read_text(encoding="utf-8") for path in files(".cu")}
    declared = [part for text in sources.values() for part in text.split('extern "C" __global__')[1:]]
    taking = [part.partition(") {")[0] for part in declared if "ACTIVATION_PARAMETER(" in part.partition(") {")[0]]
    names = {re.findall(r"(\w+)\s*\(", re.sub(r"__\w+__\s*\([^()]*\)", "", part))[0] for part in taking}
    assert known == names
    edges = {name for name, text in sources.items() if "INPUT_PARAMETERS" in text}
    first_layers = {"conv_first.cu", "conv_first_two.cu", "conv_mma_first.cu", "conv_mma_first_pairs.cu"}
    assert edges == {"layout.cu", "preprocess.cu", *first_layers}
    assert edges - first_layers <= {*AT_THE_EDGES}
