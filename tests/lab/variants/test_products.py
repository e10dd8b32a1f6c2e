"""lab/kernels/lab/gemm: the column matrix of im2col.cu bit for bit, the products of it, their blocks and tiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lab.faults.edited import Fault
from tests.lab.harness import check, problem_id, random_problems
from tests.lab.reports.machine_code import cubin, section
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.kernel_source import read_source
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
@pytest.mark.parametrize("problem", random_problems("im2col", 4), ids=problem_id)
def test_rows_of_taps_and_of_pixels(device: Device, problem: Problem) -> None:
    columns, x = converted(device, gemm_basic.VARIANTS[0], problem)
    assert np.array_equal(columns, matrix(problem, x).ravel())
    columns, x = converted(device, im2col_vector.VARIANTS[0], problem)
    assert np.array_equal(columns, matrix(problem, x).transpose(0, 2, 1).ravel())


def test_a_thread_copies_all_channels_of_an_output() -> None:
    """Columns along x where rows of the matrix are taps, rows along x in S1's."""
    problem = Problem(2, 7, 20, 40, 1, padding=1)
    copies = {variant.name: planned(variant, problem).convert[0] for variant in ALL}
    assert copies.pop("im2col-vector").grid == (2, 3, 2)
    assert {step.grid for step in copies.values()} == {(3, 2, 2)}
    assert {step.block for step in copies.values()} == {(16, 16, 1)}


@pytest.mark.parametrize("problem", random_problems("one chain", 2), ids=problem_id)
def test_every_product_adds_in_the_same_order(device: Device, problem: Problem) -> None:
    """One chain of multiply-adds for each output, taps in order: the same bits, however the work is dealt out."""
    results = {}
    for variant in ALL:
        with Trial(device, variant, problem) as trial:
            results[variant.name] = trial.run()
    first = results["gemm-basic"]
    assert all(np.array_equal(first, y) for y in results.values())


@each
@pytest.mark.parametrize("problem", random_problems("nothing else", 1), ids=problem_id)
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
def test_what_a_launch_must_do(variant: Variant) -> None:
    problem = Problem(batch=2, channels=3, height=9, width=8, outputs=5, padding=1, stride=2)  # 5x4 pixels, 27 taps
    launches = planned(variant, problem)
    (copy,), (product,) = launches.convert, launches.compute
    assert (copy.flop, copy.nbytes) == (0, 4 * (2 * 3 * 72 + 2 * 27 * 20))
    assert (product.flop, product.nbytes) == (2 * 2 * 5 * 20 * 27, 4 * (2 * 27 * 20 + 5 * 27 + 2 * 5 * 20))
    assert variant.workspace_nbytes(problem, {}) == 4 * 2 * 27 * 20


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


def test_by_block_is_the_basic_product_again_and_by_row_has_a_thread_for_each_output_channel() -> None:
    problem = Problem(1, 3, 64, 64, 4)
    assert planned(gemm_by_block.VARIANTS[0], problem) == planned(gemm_basic.VARIANTS[0], problem)
    for outputs in (1, 64):  # however large the image is: what is launched beyond that leaves at once
        (step,) = planned(gemm_by_row.VARIANTS[0], replace(problem, height=4096, width=4096, outputs=outputs)).compute
        assert step.grid.x * step.block.x == -(-outputs // 16) * 16
        assert step.grid[1:] == (1, 1)


# ---- Tiles in shared memory, with and without names

(SHARED,) = gemm_shared.VARIANTS
BLOCKS = SHARED.parameters["block"]
BOTH = (SHARED, *gemm_named.VARIANTS)
GUARD = "    if (output < OC && pixel < pixels) {\n      UNROLL"
SEEN = "if (output >= OC || pixel >= pixels) y[-1] = 0.f;"  # what a thread without an output would do at each product
TAP = "filters[ty][tap], matrix[tap][tx], sum);"
ONE_OUTPUT = Problem(1, 3, 9, 7, 1, padding=1)


@pytest.mark.parametrize("block", BLOCKS)
def test_several_tiles_along_each_side(device: Device, block: int) -> None:
    check(device, SHARED, Problem(2, 2, 5, block + 3, 2 * block + 1, kernel=5, padding=2), {"block": block})


@pytest.mark.parametrize("variant", BOTH, ids=lambda variant: variant.name)
def test_a_thread_without_an_output_multiplies_nothing(device: Device, tmp_path: Path, variant: Variant) -> None:
    """As theirs (S2 3.2.2 and 3.2.3): with one output channel all rows of threads but the first only fetch."""
    told = Fault(variant, "sum = fmaf(", f"{SEEN} sum = fmaf(", ONE_OUTPUT)
    if variant is SHARED:
        told = replace(told, old="tap++) sum = fmaf(", new=f"tap++) {{ {SEEN} sum = fmaf(")
        told = replace(told, old=told.old + TAP, new=told.new + TAP + " }")
    with Trial(device, told.planted(tmp_path), ONE_OUTPUT) as trial:
        assert trial.error() < 1e-6
        assert trial.trespass() == ""
    unguarded = replace(told, variant=told.planted(tmp_path), old=GUARD, new="    {\n      UNROLL")
    with Trial(device, unguarded.planted(tmp_path / "unguarded"), ONE_OUTPUT) as trial:
        trial.run()
        assert trial.trespass() == "behind weight"


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
fitting = pytest.mark.parametrize("shape", FITTING, ids=lambda shape: "{block}x{tile}".format(**shape))


@fitting
@pytest.mark.parametrize("problem", random_problems("gemm-register", 2), ids=problem_id)
def test_random_shapes(device: Device, problem: Problem, shape: dict[str, int]) -> None:
    check(device, REGISTER, problem, shape)


@fitting
def test_several_register_tiles_along_each_side(device: Device, shape: dict[str, int]) -> None:
    edge = shape["block"] * shape["tile"]
    check(device, REGISTER, Problem(2, 2, 5, edge + 3, 2 * edge + 1, padding=1), shape)


def test_more_sums_than_registers_are_refused(device: Device) -> None:
    assert {(shape["block"], shape["tile"]) for shape in SHAPES if shape not in FITTING} == {(32, 8)}
    with pytest.raises(RefusedError, match="a tile of 8x8 needs about 104 registers, each of 32x32 threads gets 64"):
        Trial(device, REGISTER, SMALL, {"block": 32, "tile": 8})
    assert "needs about 279 registers, each of 4x4 threads gets" in REGISTER.refuses(SMALL, {"block": 4, "tile": 15})
    assert REGISTER.refuses(SMALL, {"block": 16, "tile": 0}) == "tile=0: a thread has at least 1 output"
