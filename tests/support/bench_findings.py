"""Made-up findings of a benchmark: every regime, a peer that is checked and one that is not, no engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.layers import NAME, LayerTime
from vgg16gpu.bench.measure.timing import GpuState, Method, Regime, Summary
from vgg16gpu.bench.records.findings import Absent, BatchResult, BenchmarkEntry, Findings, Measured, Remarks
from vgg16gpu.bench.records.record import content

MODEL = {"path": "models/vgg16.onnx", "sha256": "0" * 64, "input_shape": [3, 224, 224]}
LOADED = GpuState(sm_mhz=1725.0, memory_mhz=3201.0, power_w=690.0, temperature_c=60.0, readings=4)


def summary(milliseconds: float) -> Summary:
    return Summary(1e-3 * milliseconds, 1.1e-3 * milliseconds, 0.9e-3 * milliseconds, 5, 3)


def entry(
    name: str, ms: float, *, variant: str = "", loaded: bool = False, unchecked: str = "", tf32: bool = False
) -> BenchmarkEntry:
    """Back to back `ms`, host to host one more; under load a tenth more. The error of TF32 is 4e-3."""
    times = [
        Measured(Regime.COOL, Method.BACK_TO_BACK, summary(ms)),
        Measured(Regime.COOL, Method.HOST_TO_HOST, summary(ms + 1)),
    ]
    if loaded:
        times.append(Measured(Regime.SUSTAINED, Method.BACK_TO_BACK, summary(1.1 * ms), LOADED))
    error = 4e-3 if tf32 else 1e-6
    return BenchmarkEntry(name, variant, None if unchecked else error, unchecked, tuple(times), tf32)


def batch_result(precision: str, batch: int, ours_ms: float, *others: BenchmarkEntry) -> BatchResult:
    layers = (
        LayerTime("input", "to_nhwc", ("input",), 1e-5, 5, 0, 10**6, 2.5e-7),
        LayerTime("conv 3x3 3->64 + relu", "conv", ("a", "b"), 1e-4, 5, 10**9, 10**6, 2e-5),
    )
    ours = entry(NAME, ours_ms, variant=f"cuda, {precision}", loaded=batch >= 32)
    return BatchResult(precision, batch, (ours, *others), layers, 10**9, [{"index": "0", "clocks.sm": "1980"}])


def findings(*results: BatchResult, kind: str = "cuda", absent: Sequence[Absent] = ()) -> Findings:
    environment = {
        "date": "2026-11-21T12:00:00+00:00",
        "cpu": "a CPU",
        "cores": 16,
        "device": {"name": "NVIDIA H200", "kind": kind},
        "cuda": {"driver": "580", "cuda": "13.0"},
        "versions": {
            "vgg16gpu": "0.1.0",
            "torch": "2.11.0",
            "jax": "0.11.2",
            "onnxruntime-gpu": "1.31.1",
            "pycuda": "2026.1",
        },
        "commit": {"hash": "a" * 40, "dirty": False},
    }
    ceilings = Ceilings(4e12, 6e13, 1 << 20, "a copy", {"fp16": 9e14, "int8": 1.8e15})
    remarks = Remarks(absent=list(absent))
    choice = f"{kind}: as asked"
    return Findings((3, 224, 224), choice, environment, kind, ceilings, 3.0, batches=list(results), remarks=remarks)


def result(kind: str = "cuda") -> dict[str, Any]:
    """Two precisions and two batch sizes as JSON content. In int8 JAX is not checked."""
    random = "random data"
    return content(
        findings(
            batch_result(
                "fp16",
                1,
                0.16,
                entry("torch", 0.45, variant="NCHW, eager"),
                entry("torch", 0.43, variant="NHWC"),
                entry("jax", 0.30),
            ),
            batch_result(
                "fp16", 32, 1.4, entry("torch", 3.9, variant="NHWC", loaded=True), entry("jax", 1.9, loaded=True)
            ),
            batch_result("int8", 1, 0.11, entry("jax", 0.29, variant=random, unchecked=random)),
            batch_result("int8", 32, 0.9, entry("jax", 1.5, variant=random, unchecked=random, loaded=True)),
            kind=kind,
        ),
        copy.deepcopy(MODEL),
        None,
    )


def result_with_tf32() -> dict[str, Any]:
    """fp32 at two batch sizes: ours is behind JAX's TF32 at 32, where onnxruntime has failed."""
    small = [("torch", 1.9, 0.57), ("jax", 2.0, 0.45), ("onnxruntime", 1.95, 0.5)]
    large = [("torch", 22.0, 5.9), ("jax", 22.5, 3.4)]

    def entries(times: Sequence[tuple[str, float, float]], *, loaded: bool) -> list[BenchmarkEntry]:
        strict = [entry(name, ms, variant="strict", loaded=loaded) for name, ms, _ in times]
        return strict + [entry(name, ms, variant="TF32", loaded=loaded, tf32=True) for name, _, ms in times]

    absent = (
        Absent("tensorrt", "tensorrt is not installed (pip install tensorrt): not compared"),
        Absent("onnxruntime", "failed twice: its process died of SIGSEGV", "fp32", 32, output=("last words",)),
        Absent("torch", "its scores differ from ours by 1.00e+00, more than 0.02", "fp32", 1, "NCHW, eager, TF32"),
    )
    results = (
        batch_result("fp32", 1, 0.33, *entries(small, loaded=False)),
        batch_result("fp32", 32, 4.1, *entries(large, loaded=True)),
    )
    return content(findings(*results, absent=absent), copy.deepcopy(MODEL), None)
