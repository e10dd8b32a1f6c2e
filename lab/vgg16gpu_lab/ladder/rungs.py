"""The rungs in order. Predictions are for an H200 at batch 1 and 224x224.

Those of A to K and of M to P were written down before the rung's first run there, that of L when its own time was known
from a shorter ladder, those of Q to T after the product had been measured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.devices.base import Device
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import calibrate, calibration_engine
from vgg16gpu.runtime.engine import Engine
from vgg16gpu_lab.ladder import kernels, packed
from vgg16gpu_lab.ladder.kernels import Technique, partial_sums
from vgg16gpu_lab.ladder.net import DeviceNet, HostNet
from vgg16gpu_lab.ladder.planned import EngineNet, PlannedNet
from vgg16gpu_lab.ladder.rung import Rung, Running, Setting

PARTIALS = Technique(kernels.conv_partials, kernels.gemm_partials, kernels.pool_columns, partial_sums)
SERIAL = Technique(kernels.conv_serial, kernels.gemm_serial, kernels.pool_columns)
TREE = Technique(kernels.conv_tree, kernels.gemm_tree, kernels.pool_columns)
PIXELS = Technique(kernels.conv_pixels, kernels.gemm_tree, kernels.pool_pixels)
SHARED = Technique(kernels.conv_shared, kernels.gemm_tree, kernels.pool_pixels)
REGISTERS = Technique(kernels.conv_registers, kernels.gemm_tree, kernels.pool_pixels)
VECTORS = replace(REGISTERS, conv=packed.conv_vectors, weight=packed.packed)
WARPS = replace(VECTORS, conv=packed.conv_warps)
SWIZZLE = replace(VECTORS, conv=packed.conv_swizzle)
PIPELINE = replace(VECTORS, conv=packed.conv_pipeline)

SWITCH_NOTE = "A switch of the same kernels: no file of its own."
POOL_NOTE = "Pools begin their maximum at 0, as published, where a ReLU comes before, else at minus infinity."


def _by_host(technique: Technique, setting: Setting) -> Running:
    return HostNet(setting.graph, setting.shape, setting.device, technique)


def _by_device(technique: Technique, setting: Setting) -> Running:
    return DeviceNet(setting.graph, setting.shape, setting.device, technique)


def _planned(setting: Setting, **taken_away: bool) -> Running:
    return PlannedNet(setting.graph, setting.shape, setting.device, **taken_away)


def _engine(setting: Setting, **options: Any) -> Running:
    return EngineNet(Engine(setting.model, device=setting.device_name, size=setting.size, **options))


def _int8(setting: Setting) -> Running:
    """Open int8 with the file's own scales, else with scales calibrated on the given pictures."""
    if setting.model.has_scales:
        return _engine(setting, precision="int8")
    others = sample_inputs(setting.shape[1:])[1:] if setting.inputs is None else setting.inputs
    given = [NamedInput(f"sample {i}", setting.graph.input.to_file(x[np.newaxis])[0]) for i, x in enumerate(others, 1)]
    with calibration_engine(setting.model, device=setting.device_name, size=setting.size) as engine:
        scales = calibrate(engine, given).scales
    return _engine(setting, precision="int8", scales=scales)


def _no_splits(device: Device) -> str:
    if device.facts.kind == "cuda":
        return ""
    return "a CPU has few cores, and work for all of them: its plans split no sum"


def _no_graphs(device: Device) -> str:
    if device.facts.kind != "cuda":
        return "CUDA graphs are a GPU's; launching costs a CPU nothing"
    return "" if getattr(device, "uses_graphs", False) else "cuda-bindings is not installed (pip install cuda-bindings)"


RUNGS: Final = (
    Rung(
        letter="A",
        name="sums on the host",
        idea="a block for each output channel, a thread for each input channel; the host adds, pads, does bias, ReLU",
        source=kernels.PARTIALS,
        predicted=None,
        reason="the first rung: 6.8 GB of partial sums cross the bus and are added by one core, some seconds",
        open=partial(_by_host, PARTIALS),
        published_ms=20803.31,
        note=POOL_NOTE,
    ),
    Rung(
        letter="B",
        name="sums by thread 0",
        idea="the same, added in shared memory by thread 0 of the block",
        source=kernels.SERIAL,
        predicted=12,
        reason="no partial sums on the bus; instead 80 million additions in a row, some 8 cycles each: 0.4 s",
        open=partial(_by_host, SERIAL),
        published_ms=1197.87,
        note=POOL_NOTE,
    ),
    Rung(
        letter="C",
        name="no host between layers",
        idea="padding by a test in the kernel, bias and ReLU in a kernel: maps stay on the GPU",
        source=kernels.BIAS_RELU,
        predicted=1.2,
        reason="120 MB of maps less on the bus and less to do for numpy: some 80 ms of 500",
        open=partial(_by_device, SERIAL),
    ),
    Rung(
        letter="D",
        name="tree",
        idea="threads add in pairs, 9 steps for 512 of them",
        source=kernels.TREE,
        predicted=7,
        reason="a pixel takes a trip to memory and 9 barriers, some 900 cycles, where 576 to 4608 additions stood",
        open=partial(_by_device, TREE),
    ),
    Rung(
        letter="E",
        name="a thread for each output",
        idea="two-dimensional tiles of 16x16 pixels: no sum across threads, loads side by side",
        source=kernels.PIXELS,
        predicted=6,
        reason="bound by L1: two loads for each of 15.5 G products are 4 ms at its peak, 10 with latencies; D's: 70",
        open=partial(_by_device, PIXELS),
    ),
    Rung(
        letter="F",
        name="shared-memory tile",
        idea="the block's part of the map, with a rim, is loaded once and read nine times from shared memory",
        source=kernels.SHARED,
        predicted=0.9,
        reason="shared memory has the bandwidth of L1, which had the pixels already; filling it and barriers are extra",
        open=partial(_by_device, SHARED),
    ),
    Rung(
        letter="G",
        name="register tile",
        idea="implicit GEMM: 8 channels x 4 pixels a thread, each value loaded is used 4 or 8 times",
        source=kernels.REGISTERS,
        predicted=4,
        reason="12 loads for 32 FFMA instead of 64: 40 % of the FFMA peak where there are blocks enough, 2.5 ms in all",
        open=partial(_by_device, REGISTERS),
    ),
    Rung(
        letter="H",
        name="vector loads",
        idea="float4: weights, packed once, from memory; both operands, a thread's side by side, from shared memory",
        source=packed.VECTORS,
        predicted=1.25,
        reason="759 instructions for 512 FFMA in place of 976: 48 loads from shared memory, not 192; memory is waited "
        "for as before, 700 of some 2000 cycles a step where a multiprocessor has one block",
        open=partial(_by_device, VECTORS),
    ),
    Rung(
        letter="I",
        name="warp tiles",
        idea="8x8 outputs a thread, a warp's lanes form 4x8: its loads meet few addresses, each is used 8 times",
        source=packed.WARPS,
        predicted=0.8,
        reason="72 % of the instructions are FFMA, not 67 %; but blocks of 128 pixels are half as many: 100, 56 and 16 "
        "for 132 multiprocessors in conv3, conv4 and conv5, 70 % of the work, and no other warp works while one waits",
        open=partial(_by_device, WARPS),
    ),
    Rung(
        letter="J",
        name="swizzle",
        idea="a pixel's taps side by side: 16-byte stores to shared memory, an exclusive or keeps them apart in banks",
        source=packed.SWIZZLE,
        predicted=1.0,
        reason="12 stores of 1426 instructions a step are saved, and 4 turns of the banks where there is 1 are avoided "
        "that rung I did not have either: nothing to win at these shapes",
        open=partial(_by_device, SWIZZLE),
    ),
    Rung(
        letter="K",
        name="pipeline of copies",
        idea="cp.async, three stages: what is needed in two steps is on its way while this one is multiplied",
        source=packed.PIPELINE,
        predicted=1.3,
        reason="of some 2600 cycles a step, 700 were spent waiting for memory where a multiprocessor has one block, "
        "and that is 70 % of the work; the rest gains a barrier less",
        open=partial(_by_device, PIPELINE),
    ),
    Rung(
        letter="L",
        name="engine's FFMA kernels",
        idea="several things at once: channels last, all copies of 16 bytes; tuned tiles; products 16 bytes at a time",
        source="conv_igemm.cu",
        predicted=1.3,
        reason="a quarter of the copies and their addresses, tiles for each layer, fully connected layers at 4 TB/s; "
        "its own time, 1.9 ms, was known, K's was taken as 2.5",
        open=partial(_planned, fused=False, split=False, whole=False),
        note="Not one idea: what the planner makes of the product's float32 kernels before M to O are switched on.",
    ),
    Rung(
        letter="M",
        name="fused ReLU and pool",
        idea="ReLU and 2x2 max-pool where the convolution has its sums, before they are stored",
        source="conv_igemm.cu",
        predicted=1.1,
        reason="20 launches and 150 MB of traffic, most of it in L2, less: 0.1 to 0.15 ms of 1.5",
        open=partial(_planned, split=False, whole=False),
        note=SWITCH_NOTE,
    ),
    Rung(
        letter="N",
        name="split-K",
        idea="blocks share a sum where a layer has too few: 14x14 and 28x28 maps",
        source="conv_igemm.cu",
        predicted=1.4,
        reason="conv4 and conv5 are a third of the work and used 32 to 104 of 132 multiprocessors, one block each",
        open=partial(_planned, whole=False),
        lacks=_no_splits,
        note=SWITCH_NOTE,
    ),
    Rung(
        letter="O",
        name="CUDA graph",
        idea="copies and launches as one graph, sent with one call",
        source="conv_igemm.cu",
        predicted=1.15,
        reason="some 25 launches from Python, 5 us each, are mostly hidden behind kernels; gaps between kernels remain",
        open=_planned,
        lacks=_no_graphs,
        note=SWITCH_NOTE,
    ),
    Rung(
        letter="P",
        name="mma.sync",
        idea="tensor cores of any card since Turing: float16 values, products of 16x8 by a warp, float32 sums",
        source="conv_mma.cu",
        predicted=3,
        reason="half the bytes for the fully connected layers (115 to 58 us), and products at 5 times the rate of FFMA",
        open=partial(_engine, precision="fp16", kernels="mma"),
        precision="fp16",
    ),
    Rung(
        letter="Q",
        name="wgmma and TMA",
        idea="Hopper: products of 64 x 224 by four warps straight from shared memory, tiles fetched by the copy engine",
        source="conv_wgmma.cu",
        predicted=2,
        reason="mma.sync has 62 % of the tensor cores' rate; gemv at 4 TB/s, layers that start before the last ends",
        open=partial(_engine, precision="fp16", kernels="wgmma", keep_values=True),
        precision="fp16",
    ),
    Rung(
        letter="R",
        name="3xFP16",
        idea="float32 from the same kernels: each value as two float16, three products for one",
        source="conv_wgmma.cu",
        predicted=0.45,
        reason="a price, for the error of float32: three times the products and twice the bytes; floors 208 and 89 us",
        open=partial(_engine, precision="fp32", kernels="wgmma"),
    ),
    Rung(
        letter="S",
        name="fp16, two layers in one",
        idea="the first two convolutions and their pool in one kernel: the largest map is never stored",
        source="conv_first_two.cu",
        predicted=2.3,
        reason="1 / 0.45 for going back to float16, and 13 MB of map neither written nor read: 1.05",
        open=partial(_engine, precision="fp16", kernels="wgmma"),
        precision="fp16",
    ),
    Rung(
        letter="T",
        name="int8",
        idea="bytes with a scale, sums exact in int32",
        source="conv_wgmma.cu",
        predicted=1.5,
        reason="half the bytes, twice the rate: floors 89 and 45 us; the launches cost the same",
        open=_int8,
        precision="int8",
        note="Its scales are the file's own, or come from nine pictures like the one that is timed.",
    ),
)
LETTERS: Final = tuple(rung.letter for rung in RUNGS)
