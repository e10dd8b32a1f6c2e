"""The column matrix of im2col.cu bit for bit, and what all variants share that multiply with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.lab.harness import problem_id, random_problems
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.program.values import Arena, Pointer
from vgg16gpu_lab.measure.trial import InvalidLaunchError, RefusedError, Trial
from vgg16gpu_lab.problem import Array, Problem
from vgg16gpu_lab.variant import Launches, Variant, places
from vgg16gpu_lab.variants.gemm import (
    gemm_basic,
    gemm_by_block,
    gemm_by_column,
    gemm_by_row,
    gemm_named,
    gemm_register,
    gemm_shared,
    im2col,
    im2col_vector,
)

MODES = (gemm_basic, gemm_shared, gemm_named, gemm_register)
PARTITIONS = (gemm_by_row, gemm_by_column, gemm_by_block)
ALL = tuple(module.VARIANTS[0] for module in (im2col_vector, *MODES, *PARTITIONS))
SQUARE = tuple(module.VARIANTS[0] for module in (*MODES, gemm_by_block))  # blocks of block x block threads
each = pytest.mark.parametrize("variant", ALL, ids=lambda variant: variant.name)


def matrix(problem: Problem, x: Array) -> Array:
    """(N, taps, pixels), as the definition says."""
    edge = ((0, 0), (0, 0), (problem.padding,) * 2, (problem.padding,) * 2)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, edge), (problem.kernel,) * 2, axis=(2, 3))
    windows = windows[:, :, :: problem.stride, :: problem.stride]  # n, c, i, j, p, q
    return windows.transpose(0, 1, 4, 5, 2, 3).reshape(problem.batch, problem.taps, -1)


def converted(device: Device, variant: Variant, problem: Problem) -> tuple[Array, Array]:
    """What the variant's conversion writes, and x."""
    with Trial(device, variant, problem) as trial:
        columns = np.full(im2col.matrix_nbytes(problem) // 4, np.nan, np.float32)
        address = trial._at(trial._places.workspace)
        device.copy_in(address, columns)
        trial.convert()
        device.copy_out(columns, address)
        device.synchronize()
        return columns, trial.x


def memory(device: Device, trial: Trial) -> Bytes:
    """All bytes of the arrays of a trial."""
    everything = np.empty(trial._nbytes, np.uint8)
    device.copy_out(everything, trial._at(Pointer(Arena.ACTIVATIONS, 0)))
    device.synchronize()
    return everything


def planned(variant: Variant, problem: Problem) -> Launches:
    parameters = variant.with_defaults({})
    return variant.launches(problem, parameters, places(problem, variant.workspace_nbytes(problem, parameters))[0])


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", random_problems("im2col", 8), ids=problem_id)
def test_rows_of_taps(device: Device, problem: Problem) -> None:
    columns, x = converted(device, gemm_basic.VARIANTS[0], problem)
    assert np.array_equal(columns, matrix(problem, x).ravel())


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", random_problems("im2col", 8), ids=problem_id)
def test_rows_of_pixels(device: Device, problem: Problem) -> None:
    columns, x = converted(device, im2col_vector.VARIANTS[0], problem)
    assert np.array_equal(columns, matrix(problem, x).transpose(0, 2, 1).ravel())


def test_a_thread_copies_all_channels_of_an_output() -> None:
    """Columns along x where rows of the matrix are taps, rows along x in S1's."""
    problem = Problem(2, 7, 20, 40, 1, padding=1)
    copies = {variant.name: planned(variant, problem).convert[0] for variant in ALL}
    assert copies.pop("im2col-vector").grid == (2, 3, 2)
    assert {step.grid for step in copies.values()} == {(3, 2, 2)}
    assert {step.block for step in copies.values()} == {(16, 16, 1)}


@pytest.mark.parametrize("problem", random_problems("one chain", 4), ids=problem_id)
def test_every_product_adds_in_the_same_order(device: Device, problem: Problem) -> None:
    """One chain of multiply-adds for each output, taps in order: the same bits, however the work is dealt out."""
    results = {}
    for variant in ALL:
        with Trial(device, variant, problem) as trial:
            results[variant.name] = trial.run()
    first = results["gemm-basic"]
    assert all(np.array_equal(first, y) for y in results.values())


@each
@pytest.mark.parametrize("problem", random_problems("nothing else", 3), ids=problem_id)
def test_a_product_writes_nothing_but_y(device: Device, variant: Variant, problem: Problem) -> None:
    """What is stored behind y lands in the matrix, which lies there."""
    with Trial(device, variant, problem) as trial:
        trial.convert()
        before = memory(device, trial)
        trial.run()
        after = memory(device, trial)
        start, end = trial._places.y.offset, trial._places.y.offset + 4 * math.prod(problem.y_shape)
        assert np.array_equal(before[:start], after[:start])
        assert np.array_equal(before[end:], after[end:])


@each
@pytest.mark.parametrize("stride", [2, 3])
def test_the_work_falls_with_the_square_of_the_stride(variant: Variant, stride: int) -> None:
    full = Problem(batch=1, channels=3, height=1024, width=1024, outputs=1, padding=1)
    strided = replace(full, stride=stride)
    one, other = (planned(variant, problem).compute[0] for problem in (full, strided))
    fall = pytest.approx(stride**2, rel=0.01)
    assert one.flop / other.flop == fall
    assert one.nbytes / other.nbytes == fall
    assert variant.workspace_nbytes(full, {}) / variant.workspace_nbytes(strided, {}) == fall
    if variant.name == "gemm-by-row":  # the same thread has fewer outputs
        assert one.grid == other.grid
        assert one.arguments[-1].value / other.arguments[-1].value == fall
    else:
        assert np.prod(one.grid) / np.prod(other.grid) == fall


@each
def test_what_a_launch_must_do(variant: Variant) -> None:
    problem = Problem(batch=2, channels=3, height=9, width=8, outputs=5, padding=1, stride=2)  # 5x4 pixels, 27 taps
    launches = planned(variant, problem)
    (copy,), (product,) = launches.convert, launches.compute
    assert (copy.flop, copy.nbytes) == (0, 4 * (2 * 3 * 72 + 2 * 27 * 20))
    assert (product.flop, product.nbytes) == (2 * 2 * 5 * 20 * 27, 4 * (2 * 27 * 20 + 5 * 27 + 2 * 5 * 20))
    assert variant.workspace_nbytes(problem, {}) == 4 * 2 * 27 * 20


@pytest.mark.parametrize("variant", SQUARE, ids=lambda variant: variant.name)
def test_a_block_of_64_by_64_threads_is_no_launch(device: Device, variant: Variant) -> None:
    with pytest.raises(InvalidLaunchError, match="a block of 64x64x1 is 4096 threads, at most 1024"):
        Trial(device, variant, Problem(1, 3, 16, 16, 1), {"block": 64})


@each
@pytest.mark.parametrize("block", [0, -1])
def test_a_block_of_nothing_is_refused(device: Device, variant: Variant, block: int) -> None:
    with pytest.raises(RefusedError, match=rf"{variant.name}: block={block}: a block has at least 1 thread"):
        Trial(device, variant, Problem(1, 3, 8, 8, 1), {"block": block})
