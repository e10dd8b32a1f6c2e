"""The GPU device on a real GPU: copies, launches, graphs, threads, neighbours, and everything given back."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from vgg16gpu.devices import cuda
from vgg16gpu.devices.base import Counters, Lane, Transfer
from vgg16gpu.devices.cuda import MAX_TRANSFER_NBYTES, CudaDevice
from vgg16gpu.devices.cuda_context import CHUNK_NBYTES
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program import Arena, Dim3, Kernel, Pointer, Scalar, Step

pytestmark = pytest.mark.gpu

SOURCE = """
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 128
#endif

// out[i] = a * inp[i] + b
extern "C" __global__ void axpb_f32(float* out, const float* inp, float a, int b, int count) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < count) out[i] = fmaf(a, inp[i], (float)b);
}

// The same through dynamic shared memory, `skip` floats into it.
extern "C" __global__ void axpb_shared_f32(float* out, const float* inp, float a, int b, int count, int skip) {
  DYNAMIC_SHARED(float, buffer);
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < count) buffer[skip + threadIdx.x] = inp[i];
  __syncthreads();
  if (i < count) out[i] = fmaf(a, buffer[skip + threadIdx.x], (float)b);
}

// The same, also where it may start before the kernel before it has ended.
extern "C" __global__ void axpb_early_f32(float* out, const float* inp, float a, int b, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < count) out[i] = fmaf(a, inp[i], (float)b);
}

extern "C" __global__ void fault_f32(float* out) { out[threadIdx.x] = 1.0f; }
"""
COUNT = 1000
BLOCK = 128
MEBIBYTE = 2**20
NEAR_BASELINE = 4 * MEBIBYTE  # the driver allocates in units of 2 MiB


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels") / "axpb.cu"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def kernel(source):
    return Kernel(source, "axpb_f32", (("BLOCK", BLOCK),))


@pytest.fixture
def plain_gpu(monkeypatch):
    """A GPU without cuda-bindings: no graphs."""
    monkeypatch.setattr(cuda, "load_bindings", lambda: None)
    with closing(CudaDevice()) as device:
        assert not device.uses_graphs
        yield device


def axpb(kernel, out, inp, a=2.0, b=1):
    """The step out = a * inp + b, between offsets of the activation arena."""
    arguments = (
        Pointer(Arena.ACTIVATIONS, out),
        Pointer(Arena.ACTIVATIONS, inp),
        Scalar(a, "f"),
        Scalar(b),
        Scalar(COUNT),
    )
    return Step(kernel, Dim3(-(-COUNT // BLOCK)), Dim3(BLOCK), arguments, label="axpb")


def chain(kernel, length):
    """x -> 2x + 1 `length` times, between two places."""
    return [axpb(kernel, (index + 1) % 2 * 4096, index % 2 * 4096) for index in range(length)]


def run_chain(device, launch, address, x, length):
    """What a bound chain makes of x, which lies at the start of its arena."""
    device.copy_in(address, x)
    launch()
    result = np.full_like(x, np.nan)
    device.copy_out(result, address + length % 2 * 4096)
    device.synchronize()
    return result


def chained(x, length):
    for _ in range(length):
        x = 2 * x + 1
    return x


def numbers():
    return np.arange(COUNT, dtype=np.float32) % 37


# Copies


@pytest.mark.parametrize("nbytes", [1, 4097, CHUNK_NBYTES, CHUNK_NBYTES + 1, 5 * CHUNK_NBYTES // 2])
def test_copies_from_ordinary_memory(gpu, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    address = gpu.allocate(nbytes)
    before = Counters(**vars(gpu.counters))
    kept = data.copy()
    gpu.copy_in(address, data)
    data[:] = 0  # ordinary memory may change once copy_in returns
    result = np.zeros_like(data)
    gpu.copy_out(result, address)
    gpu.synchronize()
    np.testing.assert_array_equal(result, kept)
    done = gpu.counters.since(before)
    assert (done.copies_in, done.copies_out) == (-(-nbytes // CHUNK_NBYTES), 1)
    gpu.free(address)


def test_uploads_one_after_the_other_share_the_chunks(gpu):
    arrays = [np.full(CHUNK_NBYTES // 4 * 3, value, np.float32) for value in (1, 2, 3)]
    addresses = [gpu.allocate(array.nbytes) for array in arrays]
    for address, array in zip(addresses, arrays, strict=True):
        gpu.copy_in(address, array)
    for address, array in zip(addresses, arrays, strict=True):
        result = np.zeros_like(array)
        gpu.copy_out(result, address)
        gpu.synchronize()
        assert (result == array).all()
        gpu.free(address)


def test_a_pinned_buffer_is_given_back_once(gpu):
    count = len(gpu._held.buffers)
    buffer = gpu.pinned(4096)
    assert len(gpu._held.buffers) == count + 1
    gpu.unpin(buffer)
    assert len(gpu._held.buffers) == count
    with pytest.raises(DeviceError, match="not pinned here"):
        gpu.unpin(np.zeros(16, np.uint8))


def test_a_pinned_buffer_is_copied_whole(gpu):
    buffer = gpu.pinned(3 * CHUNK_NBYTES)
    address = gpu.allocate(buffer.nbytes)
    buffer[:] = np.arange(buffer.size, dtype=np.uint32).astype(np.uint8)
    before = Counters(**vars(gpu.counters))
    gpu.copy_in(address, buffer[4:].view(np.float32))
    result = gpu.pinned(buffer.nbytes - 4)
    gpu.copy_out(result, address)
    gpu.synchronize()
    np.testing.assert_array_equal(result, buffer[4:])
    assert gpu.counters.since(before) == Counters(1, 1, 0, 1, 0)
    gpu.free(address)


def test_copies_from_a_mapped_file(gpu, tmp_path):
    data = np.random.default_rng(1).standard_normal(CHUNK_NBYTES // 3, dtype=np.float32)
    np.save(tmp_path / "data.npy", data)
    mapped = np.load(tmp_path / "data.npy", mmap_mode="r")
    address = gpu.allocate(mapped.nbytes)
    gpu.copy_in(address, mapped)
    result = np.zeros_like(data)
    gpu.copy_out(result, address)
    gpu.synchronize()
    np.testing.assert_array_equal(result, data)
    gpu.free(address)


def test_a_copy_of_a_strided_array_is_refused(gpu):
    with pytest.raises(DeviceError, match="not contiguous"):
        gpu.copy_in(0, np.zeros((4, 4), np.float32)[:, ::2])


def test_a_copy_to_nowhere_is_refused(gpu):
    with pytest.raises(DeviceError, match="cuMemcpy"):
        gpu.copy_in(0, np.zeros(4, np.float32))


# Lanes


@pytest.fixture
def busy(gpu, kernel):
    """A call that gives the compute lane milliseconds of work."""
    gpu.build([kernel])
    address = gpu.allocate(8192)
    gpu.copy_in(address, np.zeros(COUNT, np.float32))
    yield gpu.bind(chain(kernel, 4000), {Arena.ACTIVATIONS: address})
    gpu.free(address)


def test_lanes_keep_the_order_that_events_give(gpu, kernel, busy):
    """Up, on, through 16 kernels and down again, with the compute lane late and the buffers used over and over."""
    landing, place, leaving = (gpu.allocate(8192) for _ in range(3))
    launch = gpu.bind(chain(kernel, 16), {Arena.ACTIVATIONS: place})
    source, target = gpu.pinned(4 * COUNT).view(np.float32), gpu.pinned(4 * COUNT).view(np.float32)
    uploaded, computed, downloaded = (gpu.event() for _ in range(3))
    for start in range(3):
        source[:] = numbers() + start
        target[:] = np.nan
        busy()
        gpu.copy_in(landing, source, Lane.UPLOAD)
        gpu.record(uploaded, Lane.UPLOAD)
        gpu.follow(Lane.COMPUTE, uploaded)
        gpu.copy_on_device(place, landing, source.nbytes)
        launch()
        gpu.copy_on_device(leaving, place, source.nbytes)
        gpu.record(computed, Lane.COMPUTE)
        gpu.follow(Lane.DOWNLOAD, computed)
        gpu.copy_out(target, leaving, Lane.DOWNLOAD)
        gpu.record(downloaded, Lane.DOWNLOAD)
        gpu.wait(downloaded)
        np.testing.assert_array_equal(target, chained(numbers() + start, 16))
    for address in (landing, place, leaving):
        gpu.free(address)


def test_lanes_do_not_wait_for_each_other(gpu, busy):
    buffer, address = gpu.pinned(4096), gpu.allocate(4096)
    for lane, copy in (
        (Lane.UPLOAD, lambda: gpu.copy_in(address, buffer, Lane.UPLOAD)),
        (Lane.DOWNLOAD, lambda: gpu.copy_out(buffer, address, Lane.DOWNLOAD)),
    ):
        copied, computed = gpu.event(), gpu.event()
        busy()
        gpu.record(computed, Lane.COMPUTE)
        copy()
        gpu.record(copied, lane)
        gpu.wait(copied)
        assert not gpu._held.marks[computed].query()
        gpu.wait(computed)
    gpu.free(address)


def test_an_event_that_was_never_recorded_is_reached(gpu):
    event = gpu.event()
    before = Counters(**vars(gpu.counters))
    gpu.wait(event)
    gpu.follow(Lane.COMPUTE, event)
    gpu.synchronize()
    assert gpu.counters.since(before) == Counters(synchronisations=2)


def test_a_copy_on_the_device_counts_as_a_launch(gpu):
    addresses = [gpu.allocate(4096) for _ in range(2)]
    data = np.arange(4096, dtype=np.uint32).astype(np.uint8)
    gpu.copy_in(addresses[0], data)
    before = Counters(**vars(gpu.counters))
    gpu.copy_on_device(addresses[1], addresses[0], data.nbytes)
    assert gpu.counters.since(before) == Counters(launches=1)
    result = np.zeros_like(data)
    gpu.copy_out(result, addresses[1])
    gpu.synchronize()
    np.testing.assert_array_equal(result, data)
    for address in addresses:
        gpu.free(address)


# Memory


def test_allocations_are_aligned(gpu):
    addresses = [gpu.allocate(nbytes) for nbytes in (0, 1, 300, 5000)]
    assert all(address % 256 == 0 for address in addresses)
    assert len(set(addresses)) == 4
    for address in addresses:
        gpu.free(address)


def test_too_large_an_allocation_says_need_and_free(gpu):
    need = gpu.facts.memory_total + 1
    with pytest.raises(DeviceError, match=f"{need:,} bytes needed, [0-9,]+ free of {gpu.facts.memory_total:,}"):
        gpu.allocate(need)


def test_what_is_not_allocated_cannot_be_freed(gpu):
    address = gpu.allocate(10)
    gpu.free(address)
    with pytest.raises(DeviceError, match="not allocated"):
        gpu.free(address)


# Kernels


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_graph_and_plain_launches_agree(gpu, plain_gpu, kernel, length):
    results = []
    for device in (gpu, plain_gpu):
        device.build([kernel])
        address = device.allocate(8192)
        launch = device.bind(chain(kernel, length), {Arena.ACTIVATIONS: address})
        before = device.counters.launches
        results += [run_chain(device, launch, address, numbers(), length) for _ in range(3)]
        assert device.counters.launches - before == 3 * length
        device.free(address)
    for result in results:
        np.testing.assert_array_equal(result, chained(numbers(), length))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize("start", [8, 16], ids=["by the copy engine", "by a kernel"])
def test_round_trips(gpu, plain_gpu, source, start, length, early):
    """Copy in, launches and copy out: as one graph, and one by one; again and again in the same buffers."""
    kernel = Kernel(source, "axpb_early_f32" if early else "axpb_f32", (("BLOCK", BLOCK),))
    steps = [replace(step, early=early and gpu.facts.compute_capability >= (9, 0)) for step in chain(kernel, length)]
    for device in (gpu, plain_gpu):
        device.build([kernel])
        address = device.allocate(8192)
        launch = device.bind(steps, {Arena.ACTIVATIONS: address})
        inwards, outwards = device.pinned(4 * COUNT), device.pinned(4 * COUNT + start)[start:]
        download = Transfer(outwards, address + length % 2 * 4096)
        run = device.round_trip(Transfer(inwards, address), launch, download)
        for more in range(3):
            inwards.view(np.float32)[:] = numbers() + more
            outwards.fill(0xFF)
            before = Counters(**vars(device.counters))
            run()
            np.testing.assert_array_equal(outwards.view(np.float32), chained(numbers() + more, length))
            assert device.counters.since(before) == Counters(1, 1, length, 1, 0)
        device.free(address)


def test_launches_are_given_back_one_by_one(gpu, plain_gpu, kernel):
    """Others of the same kernel, and a round trip that was made of them, go on."""
    for device in (gpu, plain_gpu):
        device.build([kernel])
        address, buffer = device.allocate(8192), device.pinned(4 * COUNT)
        before = len(device._held.sequences)
        first, second = (device.bind(chain(kernel, 2), {Arena.ACTIVATIONS: address}) for _ in range(2))
        transfer = Transfer(buffer, address)
        trip = device.round_trip(transfer, first, transfer)
        assert len(device._held.sequences) == before + (3 if device.uses_graphs else 2)
        trip()
        if device.uses_graphs:
            device.unbind(first)
            buffer.view(np.float32)[:] = numbers()
            trip()
            np.testing.assert_array_equal(buffer.view(np.float32), chained(numbers(), 2))
        for launch in (first, trip, trip, lambda: None):
            device.unbind(launch)
        assert len(device._held.sequences) == before + 1
        for launch in (first, trip):
            with pytest.raises(KernelError, match="given back"):
                launch()
        np.testing.assert_array_equal(run_chain(device, second, address, numbers(), 2), chained(numbers(), 2))
        device.unbind(second)
        device.unpin(buffer)
        device.free(address)


@pytest.mark.parametrize("nbytes", [4, 20, MAX_TRANSFER_NBYTES - 4, MAX_TRANSFER_NBYTES, MAX_TRANSFER_NBYTES + 4])
def test_a_round_trip_brings_every_byte(gpu, nbytes):
    """There and back, on both sides of the size at which the copy engine takes over."""
    address = gpu.allocate(nbytes)
    inwards, outwards = gpu.pinned(nbytes), gpu.pinned(nbytes + 16)
    outwards.fill(7)
    inwards[:] = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    gpu.build([])
    gpu.round_trip(Transfer(inwards, address), gpu.bind([], {}), Transfer(outwards[:nbytes], address))()
    np.testing.assert_array_equal(outwards[:nbytes], inwards)
    assert (outwards[nbytes:] == 7).all()
    gpu.free(address)


def test_a_round_trip_needs_pinned_memory(gpu):
    launch = gpu.bind([], {})
    pinned, ordinary = Transfer(gpu.pinned(16), 0), Transfer(np.zeros(16, np.uint8), 0)
    for upload, download in ((pinned, ordinary), (ordinary, pinned)):
        with pytest.raises(DeviceError, match="host memory from `pinned`"):
            gpu.round_trip(upload, launch, download)


def test_a_round_trip_of_anything_that_can_be_called(gpu):
    """What wraps a launch, to watch it say, is called in every run."""
    address, calls = gpu.allocate(16), []
    buffers = gpu.pinned(16), gpu.pinned(16)
    run = gpu.round_trip(Transfer(buffers[0], address), lambda: calls.append(1), Transfer(buffers[1], address))
    for value in (1, 2):
        buffers[0].fill(value)
        run()
        assert (buffers[1] == value).all()
    assert calls == [1, 1]
    gpu.free(address)


def test_graphs_are_used_where_the_bindings_are(gpu):
    pytest.importorskip("cuda.bindings.driver")
    assert gpu.uses_graphs


def test_dynamic_shared_memory_beyond_the_default(gpu, source):
    kernel = Kernel(source, "axpb_shared_f32", (("BLOCK", BLOCK),))
    gpu.build([kernel])
    address = gpu.allocate(8192)
    steps = []
    for index, shared in enumerate((gpu.facts.shared_nbytes, 60_000 // 4 * 4, 2048)):  # the largest first
        small = axpb(kernel, (index + 1) % 2 * 4096, index % 2 * 4096)
        arguments = (*small.arguments, Scalar(shared // 4 - BLOCK))
        steps.append(Step(kernel, small.grid, small.block, arguments, shared=shared))
    launch = gpu.bind(steps, {Arena.ACTIVATIONS: address})
    np.testing.assert_array_equal(run_chain(gpu, launch, address, numbers(), 3), chained(numbers(), 3))
    too_much = Step(kernel, Dim3(1), Dim3(BLOCK), steps[0].arguments, shared=gpu.facts.shared_nbytes + 4)
    with pytest.raises(KernelError, match="bytes of shared memory for a block"):
        gpu.bind([too_much], {Arena.ACTIVATIONS: address})
    gpu.free(address)


def test_resources(gpu, kernel):
    gpu.build([kernel])
    resources = gpu.resources(kernel)
    assert resources.registers > 0
    assert resources.shared_nbytes == 0
    assert resources.local_nbytes == 0


def test_arguments_that_are_not_the_kernels_are_refused(gpu, kernel):
    pytest.importorskip("cuda.bindings.driver")
    gpu.build([kernel])
    good = axpb(kernel, 0, 4096)
    swapped = (*good.arguments[:3], good.arguments[0], good.arguments[4])
    for arguments in (good.arguments[:-1], (*good.arguments, Scalar(1)), (), swapped):
        with pytest.raises(
            KernelError, match=r"axpb .*the step has \d arguments .* the kernel takes 5 \(8 8 4 4 4 bytes\)"
        ):
            gpu.bind([Step(kernel, good.grid, good.block, arguments, label="axpb")], {Arena.ACTIVATIONS: 0})


def test_a_block_too_large_is_refused(gpu, kernel):
    gpu.build([kernel])
    good = axpb(kernel, 0, 4096)
    with pytest.raises(KernelError, match="a block of 2048 threads"):
        gpu.bind([Step(kernel, good.grid, Dim3(1024, 2), good.arguments)], {Arena.ACTIVATIONS: 0})


def test_a_step_that_is_refused_is_named_and_leaves_the_device_usable(gpu, kernel):
    gpu.build([kernel])
    address = gpu.allocate(8192)
    good = axpb(kernel, 4096, 0)
    bad = Step(kernel, Dim3(1, 65536), good.block, good.arguments, label="conv9_9")
    with pytest.raises(KernelError, match="conv9_9"):
        gpu.bind([good, bad], {Arena.ACTIVATIONS: address})()
    launch = gpu.bind([good], {Arena.ACTIVATIONS: address})
    np.testing.assert_array_equal(run_chain(gpu, launch, address, numbers(), 1), chained(numbers(), 1))
    gpu.free(address)


def test_a_kernel_that_is_not_built(gpu, source):
    kernel = Kernel(source, "axpb_f32", (("BLOCK", 77),))
    for use in (lambda: gpu.resources(kernel), lambda: gpu.bind([axpb(kernel, 0, 0)], {Arena.ACTIVATIONS: 0})):
        with pytest.raises(KernelError, match=r"axpb_f32<77> .*not built"):
            use()


def test_a_kernel_that_is_not_there(gpu, source):
    with pytest.raises(KernelError, match=r'axpb\.cu has no extern "C" kernel \'axpb_f64\''):
        gpu.build([Kernel(source, "axpb_f64")])


def test_a_compile_error_names_file_line_and_macros(gpu, tmp_path):
    path = tmp_path / "broken.cu"
    path.write_text('extern "C" __global__ void broken(float* out) {\n  *out = nonsense;\n}\n')
    with pytest.raises(KernelError) as caught:
        gpu.build([Kernel(str(path), "broken", (("TILE", 4),))])
    message = str(caught.value)
    assert f"{path} -DTILE=4 does not compile for sm_" in message
    assert f"{path}(2)" in message
    assert "nonsense" in message


# Time and counts


def test_measures(gpu, kernel):
    gpu.build([kernel])
    address = gpu.allocate(8192)
    gpu.copy_in(address, numbers())
    launch = gpu.bind(chain(kernel, 4), {Arena.ACTIVATIONS: address})
    before = Counters(**vars(gpu.counters))
    seconds = gpu.measure(launch, 5)
    assert len(seconds) == 5
    assert all(0 < second < 1 for second in seconds)
    assert 0 < gpu.measure_back_to_back(launch, 20) < 1
    assert gpu.counters.since(before) == Counters(0, 0, 25 * 4, 6, 0)
    gpu.free(address)


@pytest.mark.parametrize("graphs", [True, False])
def test_counters_against_the_calls_of_the_driver(monkeypatch, request, kernel, graphs):
    """Every call that PyCUDA and cuda-bindings get, counted without the device's help."""
    from pycuda import driver

    device = request.getfixturevalue("gpu" if graphs else "plain_gpu")
    if graphs:
        bindings = pytest.importorskip("cuda.bindings.driver")
    calls = dict.fromkeys(("htod", "dtoh", "launch", "graph", "wait", "alloc"), 0)

    def count(owner, attribute, name):
        original = getattr(owner, attribute)

        def counted(*arguments, **options):
            calls[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, attribute, counted)

    device.build([kernel])
    address = device.allocate(8192)
    launch = device.bind(chain(kernel, 3), {Arena.ACTIVATIONS: address})
    for attribute in ("memcpy_htod", "memcpy_htod_async"):
        count(driver, attribute, "htod")
    for attribute in ("memcpy_dtoh", "memcpy_dtoh_async"):
        count(driver, attribute, "dtoh")
    for attribute in ("prepared_async_call", "prepared_call", "__call__"):
        count(driver.Function, attribute, "launch")
    for owner in (driver.Stream, driver.Event, driver.Context):
        count(owner, "synchronize", "wait")
    count(driver, "mem_alloc", "alloc")
    if graphs:
        count(bindings, "cuGraphLaunch", "graph")
    buffers = device.pinned(4 * COUNT), device.pinned(4 * COUNT)
    trip = device.round_trip(Transfer(buffers[0], address), launch, Transfer(buffers[1], address + 4096))
    calls = dict.fromkeys(calls, 0)  # recording a graph executes nothing
    trip()
    once = {"htod": 0, "dtoh": 0, "launch": 0, "graph": 1, "wait": 1, "alloc": 0}
    one_by_one = {"htod": 1, "dtoh": 1, "launch": 3, "graph": 0, "wait": 1, "alloc": 0}
    assert calls == (once if graphs else one_by_one)
    calls = dict.fromkeys(calls, 0)
    before = Counters(**vars(device.counters))
    np.testing.assert_array_equal(run_chain(device, launch, address, numbers(), 3), chained(numbers(), 3))
    assert device.counters.since(before) == Counters(1, 1, 3, 1, 0)
    expected = {"htod": 1, "dtoh": 1, "launch": 0 if graphs else 3, "graph": int(graphs), "wait": 1, "alloc": 0}
    assert calls == expected
    device.free(device.allocate(10))
    assert calls == {**expected, "wait": 2, "alloc": 1}
    assert device.counters.since(before) == Counters(1, 1, 3, 2, 1)
    device.free(address)


# Threads, neighbours, and the end


def in_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def free_memory():
    with closing(CudaDevice()) as device:
        return device.facts.memory_free


def one_life(kernel, call=lambda work: work()):
    """Open, build, run and close, each step by `call`."""
    device = call(CudaDevice)
    call(partial(device.build, [kernel]))
    address = call(partial(device.allocate, 64 * MEBIBYTE))
    call(partial(device.pinned, MEBIBYTE))
    call(partial(device.copy_in, address, np.zeros(2 * CHUNK_NBYTES, np.uint8)))
    call(partial(device.record, call(device.event), Lane.DOWNLOAD))
    launch = call(partial(device.bind, chain(kernel, 5), {Arena.ACTIVATIONS: address}))
    result = call(partial(run_chain, device, launch, address, numbers(), 5))
    buffer = call(partial(device.pinned, 8192))
    trip = call(partial(device.round_trip, Transfer(buffer, address), launch, Transfer(buffer, address)))
    call(trip)
    call(partial(device.measure, launch, 2))
    call(device.close)
    np.testing.assert_array_equal(result, chained(numbers(), 5))


@pytest.mark.usefixtures("gpu")  # keeps the context: what a new one takes is not the device's
@pytest.mark.parametrize("call", [lambda work: work(), in_a_thread], ids=["one thread", "a thread each"])
def test_close_gives_the_memory_back(kernel, call):
    one_life(kernel, call)  # the driver keeps some of what it first takes
    assert any(abs(taken_by_lives(kernel, call)) <= NEAR_BASELINE for _ in range(5))  # others use the card too


def taken_by_lives(kernel, call):
    before = free_memory()
    for _ in range(4):
        one_life(kernel, call)
    return before - free_memory()


def test_close_with_work_under_way(kernel):
    device = CudaDevice()
    device.build([kernel])
    address = device.allocate(8192)
    launch = device.bind(chain(kernel, 200), {Arena.ACTIVATIONS: address})
    launch()
    event, buffer = device.event(), device.pinned(8192)
    trip = device.round_trip(Transfer(buffer, address), launch, Transfer(buffer, address))
    device.copy_in(address, buffer, Lane.UPLOAD)
    device.record(event, Lane.UPLOAD)
    device.close()
    device.close()
    uses = (device.event, partial(device.wait, event), partial(device.follow, Lane.COMPUTE, event))
    for use in (launch, trip, device.synchronize, partial(device.allocate, 1), partial(device.build, [kernel]), *uses):
        with pytest.raises(DeviceError, match="closed"):
            use()


def test_two_devices_live_side_by_side(gpu, kernel):
    with closing(CudaDevice()) as other:
        bound = []
        for device in (gpu, other):
            device.build([kernel])
            address = device.allocate(8192)
            bound.append((device, device.bind(chain(kernel, 3), {Arena.ACTIVATIONS: address}), address))
        for device, launch, address in bound + bound:
            np.testing.assert_array_equal(run_chain(device, launch, address, numbers(), 3), chained(numbers(), 3))
    device, launch, address = bound[0]
    np.testing.assert_array_equal(run_chain(device, launch, address, numbers(), 3), chained(numbers(), 3))
    device.free(address)


def current_context():
    found = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found))
    return found.value


def test_the_threads_own_context_is_left_alone(gpu, kernel):
    before = current_context()
    one_life(kernel)
    assert current_context() == before
    with pytest.raises(DeviceError):
        gpu.allocate(gpu.facts.memory_total + 1)
    assert current_context() == before


def test_beside_torch(kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch is here without CUDA")
    ours = torch.arange(COUNT, device="cuda", dtype=torch.float32)
    one_life(kernel)
    with closing(CudaDevice()) as device, ThreadPoolExecutor(1) as pool:
        device.build([kernel])
        address = device.allocate(8192)
        theirs = pool.submit(lambda: [torch.rand(256, 256, device="cuda").sum().item() for _ in range(50)])
        launches = [
            device.bind(chain(kernel, 4), {Arena.ACTIVATIONS: address}) for _ in range(20)
        ]  # captures meanwhile
        results = [run_chain(device, launch, address, numbers(), 4) for launch in launches]
        assert all(0 < value < 256 * 256 for value in theirs.result())
    for result in results:
        np.testing.assert_array_equal(result, chained(numbers(), 4))
    in_a_thread(partial(one_life, kernel))
    assert float((ours * 2).sum()) == COUNT * (COUNT - 1)
    torch.cuda.synchronize()


def run_alone(code, source):
    """Run code in a process of its own, with warnings as errors; what it prints and complains of."""
    prelude = f"""
        import ctypes, threading
        import numpy as np
        from vgg16gpu.devices.cuda import CudaDevice
        from vgg16gpu.errors import KernelError
        from vgg16gpu.program import Arena, Dim3, Kernel, Pointer, Scalar, Step

        def context_is_active():
            flags, active = ctypes.c_uint(), ctypes.c_int()
            ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
            return bool(active.value)

        def bound(device, name, block=1):
            kernel = Kernel({source!r}, name, (("BLOCK", {BLOCK}),))
            device.build([kernel])
            steps = [Step(kernel, Dim3(1), Dim3(block), (Pointer(Arena.ACTIVATIONS, 0),))] * 2
            return device.bind(steps, {{Arena.ACTIVATIONS: 16}})
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split(), result.stderr


def test_the_context_is_released(source):
    said, complaints = run_alone(
        """
        device = CudaDevice()
        print(context_is_active())
        bound(device, "fault_f32")
        thread = threading.Thread(target=device.close)
        thread.start()
        thread.join()
        print(context_is_active())
        CudaDevice().close()
        print(context_is_active())
        """,
        source,
    )
    assert said == ["True", "False", "False"]
    assert complaints == ""


def test_a_forgotten_device_ends_quietly(source):
    said, complaints = run_alone(
        """
        device = CudaDevice()
        launch = bound(device, "fault_f32")
        device.allocate(1 << 20)
        buffer = device.pinned(1 << 20)
        thread = threading.Thread(target=lambda: globals().update(other=CudaDevice()))
        thread.start()
        thread.join()
        print("end")
        """,
        source,
    )
    assert said == ["end"]
    assert complaints == ""


def test_a_device_that_is_dropped_gives_its_memory_back(source):
    said, complaints = run_alone(
        """
        import gc
        device = CudaDevice()
        device.allocate(1 << 20)
        del device
        gc.collect()
        print(context_is_active())
        """,
        source,
    )
    assert said == ["False"]
    assert complaints == ""


def test_after_a_kernel_has_broken_the_context(source):
    said, _ = run_alone(
        """
        device = CudaDevice()
        address = device.allocate(1 << 20)
        buffer = device.pinned(1 << 20)
        launch = bound(device, "fault_f32")
        try:
            launch()
            device.synchronize()
        except KernelError as error:
            print("refused" if "illegal" in str(error) else error)
        device.free(address)
        device.close()
        device.close()
        print("closed")
        """,
        source,
    )
    assert said == ["refused", "closed"]


# Facts


def test_facts(gpu):
    facts = gpu.facts
    assert facts.kind == "cuda"
    assert facts.name
    assert facts.multiprocessors > 0
    assert facts.compute_capability >= (5, 0)
    assert facts.shared_nbytes >= 48 * 1024
    assert 0 < facts.memory_free <= facts.memory_total


def test_a_gpu_that_is_not_there(gpu):
    assert gpu.facts.name
    with pytest.raises(DeviceError, match=r"no GPU cuda:99: there (is|are) \d+ GPUs? here, cuda:0"):
        CudaDevice(99)


def test_versions(gpu):
    versions = gpu.versions()
    assert set(versions) == {"driver", "driver_cuda", "cuda", "pycuda", "cuda_bindings", "nvcc"}
    assert all(versions.values())
    assert float(versions["cuda"]) <= float(versions["driver_cuda"]) + 1
