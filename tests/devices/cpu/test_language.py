"""The cpu device: CUDA's language as the shim gives it, the same bits in any order, and reports of wrong kernels."""

from __future__ import annotations

import ctypes
import hashlib
import platform

import numpy as np
import pytest

from tests.support.cpu_kernels import Array, fixture_kernel, launch
from vgg16gpu.devices.cpu import compiler as cpu_compiler
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import KernelError


def sequence(n: int) -> Array:
    """n different floats, none of them round."""
    return np.sin(np.arange(n)).astype(np.float32)


@pytest.mark.sanitize
def test_scalars_pointers_and_macros(device: CpuDevice) -> None:
    x, y = sequence(1000), np.full(1000, np.nan, np.float32)
    launch(device, fixture_kernel("scale", FACTOR=3), [y, x, 0.5, 999], grid=(8,), block=(128,))
    assert np.array_equal(y[:999], np.float32(1.5) * x[:999])
    assert np.isnan(y[999])


@pytest.mark.sanitize
def test_three_dimensional_grid_and_block(device: CpuDevice) -> None:
    y = np.zeros(4 * 3 * 2 * 24, np.int32)
    launch(device, fixture_kernel("number"), [y], grid=(4, 3, 2), block=(2, 3, 4))
    assert np.array_equal(y, 1 + np.arange(y.size))


@pytest.mark.sanitize
def test_barrier_and_static_shared_memory(device: CpuDevice) -> None:
    x, y = sequence(128 * 9), np.empty(128 * 9, np.float32)
    launch(device, fixture_kernel("turn_round"), [y, x], grid=(9,), block=(128,))
    assert np.array_equal(y.reshape(9, 128), x.reshape(9, 128)[:, ::-1])


@pytest.mark.sanitize
@pytest.mark.parametrize("threads", [1, 31, 33, 100, 1024])
@pytest.mark.parametrize("rounds", [0, 1, 4, 7])
def test_barriers_in_a_loop_over_dynamic_shared_memory(device: CpuDevice, threads: int, rounds: int) -> None:
    x, y = sequence(threads * 3), np.empty(threads * 3, np.float32)
    kernel = fixture_kernel("turn_round_often")
    launch(device, kernel, [y, x, rounds], grid=(3,), block=(threads,), shared=4 * threads)
    expected = x.reshape(3, threads)[:, :: -1 if rounds % 2 else 1]
    assert np.array_equal(y.reshape(3, threads), expected)


@pytest.mark.sanitize
def test_shuffles(device: CpuDevice) -> None:
    y = np.full((64, 8), -1, np.int32)
    launch(device, fixture_kernel("shuffles"), [y], block=(64,))
    t = np.arange(64)
    warp, lane = t // 32 * 32, t % 32
    expected = [
        warp + 5,
        np.where(lane >= 3, t - 3, t),
        np.where(lane < 29, t + 3, t),
        t ^ 9,
        t // 8 * 8 + 1,
        np.where(t % 8 < 5, t + 3, t),
        np.where(t % 4 >= 2, t - 2, t),
        4 * (t ^ 1),
    ]
    assert np.array_equal(y, np.stack(expected, axis=1))


@pytest.mark.sanitize
def test_votes_also_in_diverged_halves_of_a_warp(device: CpuDevice) -> None:
    y = np.zeros((64, 4), np.uint32)
    launch(device, fixture_kernel("votes"), [y], block=(64,))
    bit = 1 << np.arange(32, dtype=np.int64)
    for warp in range(2):
        rows, t = y[32 * warp : 32 * warp + 32], 32 * warp + np.arange(32)
        assert (rows[:, 0] == bit[t % 3 == 0].sum()).all()
        assert (rows[:, 1] == warp).all()
        assert (rows[:, 2] == warp).all()
        assert (rows[:16, 3] == 0xAAAA).all()
        assert (rows[16:, 3] == 0x55550000).all()


@pytest.mark.sanitize
def test_atomics(device: CpuDevice) -> None:
    signed, unsigned, total = np.array([0, -1000, 0, 0], np.int32), np.zeros(3, np.uint32), np.zeros(1, np.float32)
    wide = np.zeros(1, np.uint64)
    launch(device, fixture_kernel("atomics"), [signed, unsigned, total, wide], grid=(50,), block=(64,))
    n = 50 * 64
    assert signed.tolist() == [n * (n - 1) // 2, -14, 2**20 - 1, 7]
    assert unsigned.tolist() == [2 * n, n - 1, n % 100]
    assert total[0] == n / 2
    assert wide[0] == n << 31


@pytest.mark.sanitize
def test_the_last_block_sees_what_the_others_wrote(device: CpuDevice) -> None:
    a, b = sequence(10_000), sequence(20_000)[10_000:]
    for _ in range(5):
        y, partial, arrived = np.full(1, np.nan, np.float32), np.full(40, np.nan, np.float32), np.zeros(1, np.uint32)
        kernel = fixture_kernel("dot_last_block")
        launch(device, kernel, [y, a, b, partial, arrived, 10_000], grid=(40,), block=(64,))
        assert y[0] == pytest.approx(np.dot(a.astype(np.float64), b), rel=1e-6)
        assert y[0] == np.cumsum(partial)[-1]  # in order, whoever came last
        assert arrived[0] == 0  # ready for the next launch


@pytest.mark.sanitize
def test_asynchronous_copies_with_zero_fill(device: CpuDevice) -> None:
    n4 = 150
    x, y = sequence(4 * n4), np.full(4 * n4, np.nan, np.float32)
    launch(device, fixture_kernel("copy_async"), [y, x, n4], grid=(3,), block=(32,))
    expected = x.reshape(n4, 4).copy()
    expected[::3] = 0
    assert np.array_equal(y.reshape(n4, 4), expected)


@pytest.mark.sanitize
def test_vector_lanes(device: CpuDevice) -> None:
    x, y = sequence(400), np.empty(100, np.float32)
    launch(device, fixture_kernel("row_sums"), [y, x, 100], grid=(4,), block=(32,))
    lanes = x.reshape(100, 4) + np.arange(100, dtype=np.float32)[:, None]
    assert np.array_equal(y, (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3]))


# ---- Arithmetic


def test_nan_and_signs_in_relu_and_maximum(device: CpuDevice) -> None:
    nan, inf = np.nan, np.inf
    a = np.array([1, -1, 0, nan, 1, nan, inf, -inf, -2], np.float32)
    b = np.array([2, -2, 0, 1, nan, nan, 1, 1, -1], np.float32)
    y = np.empty((9, 4), np.float32)
    launch(device, fixture_kernel("arithmetic"), [y, a, b, np.zeros(9, np.float32), 9])
    np.testing.assert_array_equal(y[:, 0], [1, 0, 0, nan, 1, nan, inf, 0, 0])
    np.testing.assert_array_equal(y[:, 1], [2, -1, 0, nan, nan, nan, inf, 1, -1])


def test_fmaf_rounds_once_and_the_compiler_never_fuses(device: CpuDevice) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    a, b = (rng.standard_normal(4096).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b).astype(np.float32)  # cancels: what is left is the rounding of the product
    y = np.empty((4096, 4), np.float32)
    launch(device, fixture_kernel("arithmetic"), [y, a, b, c, 4096], grid=(128,))
    exact = a.astype(np.float64) * b + c  # exact in float64: the product has 48 bits, and c cancels most of them
    assert np.array_equal(y[:, 2], exact.astype(np.float32))
    assert np.array_equal(y[:, 3], a * b + c)
    assert np.count_nonzero(y[:, 2] != y[:, 3]) > 1000


def exponential(device: CpuDevice, x: Array) -> Array:
    y = np.empty_like(x)
    launch(device, fixture_kernel("exponential"), [y, x, x.size], grid=(-(-x.size // 256),), block=(256,))
    return y


def test_exponential_is_accurate_everywhere(device: CpuDevice) -> None:
    dense = np.arange(0x7F800000, step=10_007, dtype=np.uint32).view(np.float32)  # all magnitudes
    line = np.linspace(-104, 88.8, 50_001).astype(np.float32)
    x = np.concatenate([dense, -dense, line])
    x = x[(x > -150) & (x < 120)]
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x.astype(np.float64))
        nearest = exact.astype(np.float32)
    y = exponential(device, x)
    finite = np.isfinite(nearest)
    assert np.array_equal(np.isfinite(y), finite)
    ulp = np.spacing(np.maximum(nearest[finite], np.finfo(np.float32).smallest_subnormal)).astype(np.float64)
    assert np.max(np.abs(y[finite] - exact[finite]) / ulp) < 1.1


def test_exponential_of_special_values(device: CpuDevice) -> None:
    x = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 88.72283, 88.72284, 1e38, -103.97, -103.98, -1e38, 1e-40], np.float32
    )
    with np.errstate(over="ignore", under="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(exponential(device, x), expected)


def test_exponential_has_the_bits_that_are_recorded(device: CpuDevice) -> None:
    """The same text runs on a GPU: the bits depend on no compiler and on no machine."""
    x = (np.arange(20_000, dtype=np.float32) - 11_000) / np.float32(100)
    digest = hashlib.sha256(exponential(device, x).tobytes()).hexdigest()
    assert digest == "494a292aa4cf1dce882e7bde2c74df36f2f7e0123ea789412e7a5cfdb43c6fa5"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the layout of fenv_t is x86-64's")
def test_denormals_survive_a_caller_that_flushes_them(device: CpuDevice) -> None:
    libm = ctypes.CDLL("libm.so.6")
    before, flushing = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
    libm.fegetenv(before)
    libm.fegetenv(flushing)
    flushing[29] = bytes([flushing.raw[29] | 0x80])  # MXCSR bit 15, flush to zero
    flushing[28] = bytes([flushing.raw[28] | 0x40])  # MXCSR bit 6, denormals are zero
    x, y = np.full(512, 2e-38, np.float32), np.zeros(512, np.float32)
    libm.fesetenv(flushing)
    try:
        launch(device, fixture_kernel("scale"), [y, x, 0.125, 512], grid=(8,), block=(64,))
    finally:
        libm.fesetenv(before)
    assert y.tobytes() == np.full(512, 2.5e-39, np.float32).tobytes()


# ---- The same bits whatever the order


@pytest.fixture
def dot() -> tuple[Array, Array]:
    return sequence(5000), sequence(9000)[4000:]


def dot_bits(dot: tuple[Array, Array], check: cpu_compiler.Check | None = None) -> bytes:
    opened = CpuDevice(sanitize=check)
    y, partial, arrived = np.empty(1, np.float32), np.empty(24, np.float32), np.zeros(1, np.uint32)
    kernel = fixture_kernel("dot_last_block")
    launch(opened, kernel, [y, *dot, partial, arrived, 5000], grid=(24,), block=(64,))
    opened.close()
    return y.tobytes() + partial.tobytes()


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_same_bits_on_any_number_of_os_threads(
    dot: tuple[Array, Array], threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dot_bits(dot)
    monkeypatch.setenv("VGG16GPU_THREADS", threads)
    assert dot_bits(dot) == expected


@pytest.mark.parametrize("order", ["forward", "reverse", "1", "2", "3"])
def test_same_bits_in_any_order_of_threads(
    dot: tuple[Array, Array], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dot_bits(dot)
    monkeypatch.setenv("VGG16GPU_ORDER", order)
    assert dot_bits(dot) == expected


def test_the_order_of_threads_brings_a_missing_barrier_to_light(monkeypatch: pytest.MonkeyPatch) -> None:
    x, wrong = sequence(64), []
    for order in ("forward", "reverse", "7"):
        monkeypatch.setenv("VGG16GPU_ORDER", order)
        device, y = CpuDevice(sanitize="poison"), np.empty(64, np.float32)
        launch(device, fixture_kernel("missing_barrier", "faults.cu"), [y, x], block=(64,))
        wrong.append(frozenset(np.flatnonzero(np.isnan(y)).tolist()))
        device.close()
    assert all(wrong)
    assert len(set(wrong)) == 3


# ---- Wrong kernels


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "missing_thread",
            r"deadlock: of 64 threads 24 returned, 40 wait at __syncthreads \(40 at line 6\), 0 at a warp",
        ),
        ("two_barriers", r"its threads wait at different __syncthreads: 10 at line 13, 54 at line 16"),
        ("missing_lane", r"deadlock: of 64 threads 0 returned, 33 wait at .* \(33 at line 22\), 31 at a warp function"),
        ("lane_outside_mask", r"thread \(16, 0, 0\) calls .* mask 0000ffff, which leaves out its lane 16"),
        ("different_masks", r"thread \(\d+, 0, 0\) meets other lanes of its warp in .* different mask"),
    ],
)
def test_deadlocks_and_divergence_are_reported_with_counts(device: CpuDevice, name: str, message: str) -> None:
    y = np.zeros(64, np.int32)
    with pytest.raises(KernelError, match=rf"^{name}: block \(\d, 0, 0\): {message}"):
        launch(device, fixture_kernel(name, "faults.cu"), [y], grid=(3,), block=(64,))
    x, z = sequence(128), np.empty(128, np.float32)
    launch(device, fixture_kernel("turn_round"), [z, x], block=(128,))  # the device is still good
    assert np.array_equal(z, x[::-1])


def test_stack_overflow_is_reported(device: CpuDevice) -> None:
    y = np.zeros(32, np.float32)
    launch(device, fixture_kernel("deep_stack", "faults.cu"), [y, 4], block=(32,))
    with pytest.raises(KernelError, match=r"stack overflow: thread \d+ needs more than 32768 bytes"):
        launch(device, fixture_kernel("deep_stack", "faults.cu"), [y, 31], block=(32,))


@pytest.mark.parametrize(("name", "shared"), [("unwritten_shared", 0), ("unwritten_dynamic_shared", 128)])
def test_unwritten_shared_memory_reads_as_nan_in_checked_builds(name: str, shared: int) -> None:
    device, y = CpuDevice(sanitize="poison"), np.zeros(32, np.float32)
    for _ in range(2):  # in every block, not only in the first
        launch(device, fixture_kernel(name, "faults.cu"), [y], grid=(2,), block=(32,), shared=shared)
        assert np.count_nonzero(np.isnan(y)) == 1
        assert np.count_nonzero(y == 1) == 31
    device.close()
