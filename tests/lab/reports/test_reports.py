"""Kernels compiled from the reports' own text: their answers are right, and ours are the same kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.lab.reports import reader, theirs
from tests.lab.reports.machine_code import counts
from tests.lab.reports.reader import Printed, runnable
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.kernel_source import read_source
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.problem import Array, Problem
from vgg16gpu_lab.variants import variants

OURS = {variant.name: variant for variant in variants()}
ONE_CHANNEL_OUT = Problem(1, 3, 31, 31, 1, padding=1)  # S1's and S2's kind
STRIDED = Problem(1, 3, 33, 33, 1, stride=2, padding=1)
SEVERAL = Problem(1, 3, 33, 41, 5, stride=2, padding=1)  # which S2's products take
BOUND = 1e-6  # ours fuse a product and its sum, theirs may not

# ---- Answers


def answer(device: Device, name: str, folder: Path, problem: Problem) -> tuple[Array, Trial]:
    """What a printed kernel computes. It writes nothing beside its arrays, and into none that it reads."""
    trial = Trial(device, theirs.variant(name, folder), problem)
    y = trial.run()
    if name == "s1-conv2":  # the answer is where running sums were
        device.copy_out(y, trial._base + trial._places.workspace.offset)
        device.synchronize()
    assert trial.trespass() == ""
    return y, trial


def difference(device: Device, theirs_y: Array, ours: str, problem: Problem, **parameters: int) -> float:
    with Trial(device, OURS[ours], problem, parameters) as trial:
        return layer_error(theirs_y, trial.run().astype(np.float64))


OURS_OF = {  # kernels as they are printed, and what computes the same here
    "s1-conv2": ("direct-published", "direct-rows", "direct-planes"),
    "s1-im2col": ("im2col-vector",),
    "s2-shared": ("gemm-shared",),
    "s2-reged": ("gemm-named",),
    "s2-basic": ("gemm-basic",),
    "s2-block": ("gemm-by-block",),
    "s2-row": ("gemm-by-row",),
    "s2-col": ("gemm-by-column",),
}


@pytest.mark.parametrize("name", OURS_OF)
def test_answers(device: Device, tmp_path: Path, name: str) -> None:
    for problem in (ONE_CHANNEL_OUT, STRIDED if name.startswith("s1") else SEVERAL):
        y, trial = answer(device, name, tmp_path, problem)
        with trial:
            assert layer_error(y, problem.expected(trial.x, trial.weight)) < BOUND
            for ours in OURS_OF[name]:
                assert difference(device, y, ours, problem) < BOUND


def test_s4s_serial_code_has_one_filter_for_all_input_channels(device: Device, tmp_path: Path) -> None:
    """It is the convolution where there is one input channel, and elsewhere that of the first filter for all."""
    alone = Problem(1, 1, 13, 11, 3, 4)
    y, trial = answer(device, "s4-serial", tmp_path, alone)
    with trial:
        assert layer_error(y, alone.expected(trial.x, trial.weight)) < BOUND
        for ours in ("halo-prefetch", "halo-published"):
            assert difference(device, y, ours, alone) < BOUND
    several = Problem(1, 3, 13, 11, 1, 4)
    y, trial = answer(device, "s4-serial", tmp_path, several)
    with trial:
        assert layer_error(y, several.expected(trial.x, trial.weight)) > 0.1
        first = np.repeat(trial.weight[:, :1], 3, axis=1)
        assert layer_error(y, several.expected(trial.x, first)) < BOUND


# ---- Machine code


def ours_counted(source: str, name: str, folder: Path, *macros: str) -> Counter[str]:
    return counts(read_source(source), name, folder, *macros)


def theirs_counted(printed: Printed, folder: Path) -> Counter[str]:
    return counts(runnable(printed), printed.name, folder, fused=True)


SAME = (
    (reader.S1_CONV2, "lab/direct_published.cu", "direct_published_f32", ()),
    (reader.S1_GEMM, "lab/im2col_vector.cu", "gemm_vector", ()),
    (reader.S2_IM2COL, "lab/im2col.cu", "im2col_taps", ()),
    (reader.S2_BASIC, "lab/gemm_basic.cu", "gemm_basic", ()),
    (reader.S2_BLOCK, "lab/gemm_basic.cu", "gemm_basic", ()),
    (reader.S2_ROW, "lab/gemm_by_row.cu", "gemm_by_row", ()),
    (reader.S2_COL, "lab/gemm_by_column.cu", "gemm_by_column", ()),
    (reader.S2_SHARED, "lab/gemm_shared.cu", "gemm_shared", (f"-DBLOCK={reader.TILE}",)),
    (reader.S2_REGED, "lab/gemm_named.cu", "gemm_named", (f"-DBLOCK={reader.TILE}",)),
)
KINDS = ("LDG", "STG", "LDS", "STS", "FFMA")


seldom = pytest.mark.slow(reason="of sources that seldom change; test_answers compares what they compute")


@seldom
@pytest.mark.parametrize(("printed", "source", "name", "macros"), SAME, ids=[each[0].label for each in SAME])
def test_as_many_loads_stores_and_products(
    tmp_path: Path, printed: Printed, source: str, name: str, macros: tuple[str, ...]
) -> None:
    found, expected = theirs_counted(printed, tmp_path), ours_counted(source, name, tmp_path, *macros)
    assert {kind: found[kind] for kind in KINDS} == {kind: expected[kind] for kind in KINDS}
    assert sum(found[kind] for kind in KINDS) > 0
