"""lab/kernels/lab/gemm: the column matrix of im2col.cu bit for bit, the products of it, their blocks and tiles."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.lab.harness import check, random_problems
from tests.lab.reports.machine_code import cubin, section
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.kernel_source import read_source
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


def planned(variant: Variant, problem: Problem) -> Launches:
    parameters = variant.with_defaults({})
    return variant.launches(problem, parameters, places(problem, variant.workspace_nbytes(problem, parameters))[0])


@pytest.mark.sanitize
def test_rows_of_taps_and_of_pixels(device: Device) -> None:
    for problem in random_problems("im2col", 3, kernel=3):
        columns, x = converted(device, gemm_basic.VARIANTS[0], problem)
        assert np.array_equal(columns, matrix(problem, x).ravel())
        columns, x = converted(device, im2col_vector.VARIANTS[0], problem)
        assert np.array_equal(columns, matrix(problem, x).transpose(0, 2, 1).ravel())


def test_every_product_adds_in_the_same_order(device: Device) -> None:
    """One chain of multiply-adds for each output, taps in order: the same bits, however the work is dealt out."""
    results, problem = {}, Problem(2, 3, 20, 37, 5, padding=1)
    for variant in ALL:
        with Trial(device, variant, problem) as trial:
            results[variant.name] = trial.run()
    first = results["gemm-basic"]
    assert all(np.array_equal(first, y) for y in results.values())


def test_what_a_launch_must_do() -> None:
    problem = Problem(batch=2, channels=3, height=9, width=8, outputs=5, padding=1, stride=2)  # 5x4 pixels, 27 taps
    for variant in ALL:
        launches = planned(variant, problem)
        (copy,), (product,) = launches.convert, launches.compute
        assert (copy.flop, copy.nbytes) == (0, 4 * (2 * 3 * 72 + 2 * 27 * 20))
        assert (product.flop, product.nbytes) == (2 * 2 * 5 * 20 * 27, 4 * (2 * 27 * 20 + 5 * 27 + 2 * 5 * 20))
        assert variant.workspace_nbytes(problem, {}) == 4 * 2 * 27 * 20
    assert planned(gemm_by_block.VARIANTS[0], problem) == planned(gemm_basic.VARIANTS[0], problem)


def test_blocks_that_are_none(device: Device) -> None:
    """Of 64x64 threads the published one never ran: 0.003 ms is what it takes to be turned down."""
    launches, problem = device.counters.launches, Problem(1, 3, 16, 16, 1)
    assert 64 in gemm_by_block.VARIANTS[0].parameters["block"]
    for variant in SQUARE:
        with pytest.raises(InvalidLaunchError, match="a block of 64x64x1 is 4096 threads, at most 1024"):
            Trial(device, variant, problem, {"block": 64})
    for variant in ALL:
        for block in (0, -1):
            with pytest.raises(RefusedError, match=rf"{variant.name}: block={block}: a block has at least 1 thread"):
                Trial(device, variant, problem, {"block": block})
    assert device.counters.launches == launches


# ---- Tiles in shared memory, with and without names

(SHARED,) = gemm_shared.VARIANTS
BLOCKS = SHARED.parameters["block"]


def machine_code(folder: Path, name: str, block: int) -> bytes:
    """Of the kernel `name` in lab/kernels/lab/<name>.cu for sm_90, as the product is compiled."""
    text = read_source(f"lab/{name}.cu")
    return section(cubin(text, folder, f"-DBLOCK={block}").read_bytes(), f".text.{name}")


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.slow(reason="of sources that seldom change")
def test_same_machine_code_as_without_names(tmp_path: Path, block: int) -> None:
    named, shared, register = (
        machine_code(tmp_path, f"gemm_{mode}", block) for mode in ("named", "shared", "register")
    )
    assert len(named) > 16 * block  # a multiply-add of 16 bytes for each tap of a tile
    assert named == shared
    assert register != shared


# ---- Tiles of registers

(REGISTER,) = gemm_register.VARIANTS
SMALL = Problem(1, 3, 16, 16, 1)
SHAPES = [dict(zip(("block", "tile"), pair, strict=True)) for pair in itertools.product((8, 16, 32), (1, 2, 4, 8))]
FITTING = [shape for shape in SHAPES if not REGISTER.refuses(SMALL, shape)]


@pytest.mark.first_case(reason="test_variants.py has the usual shape")
@pytest.mark.parametrize("shape", FITTING, ids=lambda shape: "{block}x{tile}".format(**shape))
def test_several_register_tiles_along_each_side(device: Device, shape: dict[str, int]) -> None:
    edge = shape["block"] * shape["tile"]
    check(device, REGISTER, Problem(2, 2, 5, edge + 3, 2 * edge + 1, padding=1), shape)


def test_more_sums_than_registers_are_refused(device: Device) -> None:
    assert {(shape["block"], shape["tile"]) for shape in SHAPES if shape not in FITTING} == {(32, 8)}
    with pytest.raises(RefusedError, match="a tile of 8x8 needs about 104 registers, each of 32x32 threads gets 64"):
        Trial(device, REGISTER, SMALL, {"block": 32, "tile": 8})
    assert "needs about 279 registers, each of 4x4 threads gets" in REGISTER.refuses(SMALL, {"block": 4, "tile": 15})
    assert REGISTER.refuses(SMALL, {"block": 16, "tile": 0}) == "tile=0: a thread has at least 1 output"
