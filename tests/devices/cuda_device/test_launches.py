"""The GPU device on a real GPU: launches, graphs, round trips, refusals, times and counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.devices.cuda_device.harness import BLOCK, COUNT, axpb, chain, chained, numbers, run_chain
from vgg16gpu.devices.base import Counters, Transfer
from vgg16gpu.devices.cuda.context import MAX_TRANSFER_NBYTES
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.program.launch import GUARDED, Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Arena, Pointer

pytestmark = pytest.mark.gpu

# Kernels


@pytest.mark.parametrize("programmatic", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
@pytest.mark.parametrize("end", [8, 16], ids=["out by the copy engine", "out by a kernel"])
@pytest.mark.parametrize("start", [8, 16], ids=["in by the copy engine", "in by a kernel"])
def test_round_trips(gpu, plain_gpu, source, start, end, length, programmatic):
    """Copy in, launches and copy out: as one graph, and one by one; again and again in the same buffers."""
    kernel = Kernel(source, "axpb_early_f32" if programmatic else "axpb_f32", (("BLOCK", BLOCK),))
    dependent = programmatic and gpu.facts.compute_capability >= (9, 0)
    steps = [replace(step, programmatic=dependent) for step in chain(kernel, length)]
    for device in (gpu, plain_gpu):
        device.build([kernel])
        address = device.allocate(8192)
        launch = device.bind(steps, {Arena.ACTIVATIONS: address})
        inwards, outwards = (device.pinned(4 * COUNT + offset)[offset:] for offset in (start, end))
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


@pytest.mark.parametrize("is_captured_by_caller", [False, True])
def test_guarded_launches_of_a_graph_are_left_out_while_their_word_is_0(gpu, source, is_captured_by_caller):
    """These kernels do not look at the word themselves, so that it shows whether the graph has launched them."""
    plain, guarded = (Kernel(source, "axpb_f32", (("BLOCK", BLOCK), *more)) for more in ((), (GUARDED,)))
    word = Pointer(Arena.ACTIVATIONS, 12288)
    inside = [replace(axpb(guarded, 4096, 4096), guard=word)] * 2
    steps = [axpb(plain, 4096, 0), *inside, axpb(plain, 8192, 4096)]
    gpu.build([plain, guarded])
    if not gpu._has_conditions:
        pytest.skip("the driver has no conditional nodes")
    address = gpu.allocate(16384)
    launch = gpu.bind(steps, {Arena.ACTIVATIONS: address}, as_graph=not is_captured_by_caller)
    replay = gpu.foreign.capture(launch) if is_captured_by_caller else launch
    gpu.copy_in(address, numbers())
    for needed in (0, 1, 0, 7):  # the condition is found anew in each replay
        gpu.copy_in(address + word.offset, np.array([needed], np.int32))
        replay()
        found = np.empty(COUNT, np.float32)
        gpu.copy_out(found, address + 8192)
        gpu.synchronize()
        np.testing.assert_array_equal(found, chained(numbers(), 4 if needed else 2), str(needed))
    if is_captured_by_caller:
        replay.close()
    gpu.unbind(launch)
    gpu.free(address)


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
        steps.append(KernelLaunch(kernel, small.grid, small.block, arguments, shared=shared))
    launch = gpu.bind(steps, {Arena.ACTIVATIONS: address})
    np.testing.assert_array_equal(run_chain(gpu, launch, address, numbers(), 3), chained(numbers(), 3))
    too_much = KernelLaunch(kernel, Dim3(1), Dim3(BLOCK), steps[0].arguments, shared=gpu.facts.shared_nbytes + 4)
    with pytest.raises(KernelError, match="bytes of shared memory for a block"):
        gpu.bind([too_much], {Arena.ACTIVATIONS: address})
    gpu.free(address)


def test_arguments_that_are_not_the_kernels_are_refused(gpu, kernel):
    pytest.importorskip("cuda.bindings.driver")
    gpu.build([kernel])
    good = axpb(kernel, 0, 4096)
    swapped = (*good.arguments[:3], good.arguments[0], good.arguments[4])
    for arguments in (good.arguments[:-1], (*good.arguments, Scalar(1)), (), swapped):
        with pytest.raises(
            KernelError, match=r"axpb .*the step has \d arguments .* the kernel takes 5 \(8 8 4 4 4 bytes\)"
        ):
            gpu.bind([KernelLaunch(kernel, good.grid, good.block, arguments, label="axpb")], {Arena.ACTIVATIONS: 0})


def test_a_step_that_is_refused_is_named_and_leaves_the_device_usable(gpu, kernel):
    gpu.build([kernel])
    address = gpu.allocate(8192)
    good = axpb(kernel, 4096, 0)
    bad = KernelLaunch(kernel, Dim3(1, 65536), good.block, good.arguments, label="conv9_9")
    with pytest.raises(KernelError, match="conv9_9"):
        gpu.bind([good, bad], {Arena.ACTIVATIONS: address})()
    launch = gpu.bind([good], {Arena.ACTIVATIONS: address})
    np.testing.assert_array_equal(run_chain(gpu, launch, address, numbers(), 1), chained(numbers(), 1))
    gpu.free(address)


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
    """Every call that the driver's packages get, counted without the device's help."""
    device = request.getfixturevalue("gpu" if graphs else "plain_gpu")
    driver = device._held.driver
    if graphs:
        bindings = pytest.importorskip("cuda.bindings.driver")
    calls = dict.fromkeys(("htod", "dtoh", "launch", "graph", "wait", "alloc"), 0)

    def count(owner, attribute, name):
        original = getattr(owner, attribute, None)
        if original is None:
            return  # cuda-bindings stands for what of PyCUDA is used

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
