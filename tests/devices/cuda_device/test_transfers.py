"""The GPU device on a real GPU: copies, streams, memory, facts."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from tests.devices.cuda_device.harness import COUNT, chain, chained, numbers
from vgg16gpu.devices.base import Counters, Stream
from vgg16gpu.devices.cuda.context import CHUNK_NBYTES
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.types import Arena

pytestmark = pytest.mark.gpu

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


def test_memory_of_the_callers_is_pinned_and_let_go(gpu):
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 16 * mmap.PAGESIZE)
    memory = np.frombuffer(mmap.mmap(descriptor, 16 * mmap.PAGESIZE), np.uint8)
    os.close(descriptor)
    memory[:] = np.arange(memory.size) % 251
    gpu.pin(memory)
    assert gpu._held.is_pinned(memory[100:200])
    address, result = gpu.allocate(1000), np.zeros(1000, np.uint8)
    gpu.copy_in(address, memory[4097:5097], Stream.UPLOAD)
    uploaded = gpu.event()
    gpu.record(uploaded, Stream.UPLOAD)
    gpu.wait(uploaded)
    gpu.copy_out(result, address)
    gpu.synchronize()
    np.testing.assert_array_equal(result, memory[4097:5097])
    gpu.free(address)
    gpu.unpin(memory)
    assert not gpu._held.is_pinned(memory)
    with pytest.raises(DeviceError, match="not pinned here"):
        gpu.unpin(memory)


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


# Streams


@pytest.fixture
def busy(gpu, kernel):
    """A call that gives the compute stream milliseconds of work."""
    gpu.build([kernel])
    address = gpu.allocate(8192)
    gpu.copy_in(address, np.zeros(COUNT, np.float32))
    yield gpu.bind(chain(kernel, 4000), {Arena.ACTIVATIONS: address})
    gpu.free(address)


def test_lanes_keep_the_order_that_events_give(gpu, kernel, busy):
    """Up, on, through 16 kernels and down again, with the compute stream late and the buffers used over and over."""
    landing, place, leaving = (gpu.allocate(8192) for _ in range(3))
    launch = gpu.bind(chain(kernel, 16), {Arena.ACTIVATIONS: place})
    source, target = gpu.pinned(4 * COUNT).view(np.float32), gpu.pinned(4 * COUNT).view(np.float32)
    uploaded, computed, downloaded = (gpu.event() for _ in range(3))
    for start in range(3):
        source[:] = numbers() + start
        target[:] = np.nan
        busy()
        gpu.copy_in(landing, source, Stream.UPLOAD)
        gpu.record(uploaded, Stream.UPLOAD)
        gpu.follow(Stream.COMPUTE, uploaded)
        gpu.copy_on_device(place, landing, source.nbytes)
        launch()
        gpu.copy_on_device(leaving, place, source.nbytes)
        gpu.record(computed, Stream.COMPUTE)
        gpu.follow(Stream.DOWNLOAD, computed)
        gpu.copy_out(target, leaving, Stream.DOWNLOAD)
        gpu.record(downloaded, Stream.DOWNLOAD)
        gpu.wait(downloaded)
        np.testing.assert_array_equal(target, chained(numbers() + start, 16))
    for address in (landing, place, leaving):
        gpu.free(address)


def test_lanes_do_not_wait_for_each_other(gpu, busy):
    buffer, address = gpu.pinned(4096), gpu.allocate(4096)
    for stream, copy in (
        (Stream.UPLOAD, lambda: gpu.copy_in(address, buffer, Stream.UPLOAD)),
        (Stream.DOWNLOAD, lambda: gpu.copy_out(buffer, address, Stream.DOWNLOAD)),
    ):
        copied, computed = gpu.event(), gpu.event()
        busy()
        gpu.record(computed, Stream.COMPUTE)
        copy()
        gpu.record(copied, stream)
        gpu.wait(copied)
        assert not gpu._held.marks[computed].query()
        gpu.wait(computed)
    gpu.free(address)


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


# Facts


def test_facts(gpu):
    facts = gpu.facts
    assert facts.kind == "cuda"
    assert facts.name
    assert facts.multiprocessors > 0
    assert facts.compute_capability >= (5, 0)
    assert facts.shared_nbytes >= 48 * 1024
    assert 0 < facts.memory_free <= facts.memory_total


def test_versions(gpu):
    versions = gpu.versions()
    assert set(versions) == {"driver", "driver_cuda", "cuda", "pycuda", "cuda_bindings", "nvcc"}
    assert all(versions.values())
    assert float(versions["cuda"]) <= float(versions["driver_cuda"]) + 1
